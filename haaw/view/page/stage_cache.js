// The cache: keys and values of the positions that were seen. What is drawn depends on the kind of cache; the numbers
// are those of the run, after the step that the state names.

import { calculatorOpener } from "./calculator_dialog.js";
import { offloaded, paged, quantised, sliding } from "./cache_kinds.js";
import { h, svg } from "./dom.js";
import { fact, facts, figure, picker } from "./figure.js";
import { bytes, count, percent, plural } from "./numbers.js";
import { lastStep } from "./state.js";

const KEPT = "Every layer computed a key and a value for each position. They will be needed for every token to come, and they never change, so they are kept instead of computed again. This is the KV cache.";

const ABOUT = {
  dynamic: " This one grows: when it is full, a piece twice as large is taken and the rows are moved.",
  static: " This one has all its memory from the start.",
  concatenated: " This one is the naive kind: for each new token all rows are copied into an array that is one row longer.",
  paged: " This one lies in blocks of a pool that many requests may share; a table says which block holds which positions.",
  sliding: " This one keeps only the last positions, in a ring: a new row overwrites the oldest, which is then gone.",
  quantised: " This one rounds what lies further back to few bits; the latest positions stay as they were computed.",
  offloaded: " This one lives outside of the memory that the model computes in; two layers at most are inside at a time.",
  none: " This request ran without one: every step computed the keys and values of all positions anew and dropped them.",
};

const DRAWN = { paged, sliding, quantised, offloaded };

export function cacheStage(page) {
  const { story, state, store } = page;
  const now = sizeAt(story, state.step);
  const before = state.step > 0 ? sizeAt(story, state.step - 1).length : 0;
  const { cache } = story;
  return [
    h("p", {}, KEPT, ABOUT[cache.kind] ?? ""),
    h("div", { class: "pickers" },
      picker({ name: "step", label: "after step", value: state.step, most: lastStep(story), go: (changes) => store.go(changes) }),
      cache.rings && picker({ name: "layer", label: "layer", value: state.layer, most: cache.layers - 1, go: (changes) => store.go(changes) })),
    facts(
      fact(count(now.length), cache.kind === "none" ? "positions computed" : "positions seen"),
      now.held && fact(count(now.held[state.layer]), `positions held in layer ${state.layer}`),
      fact(count(now.capacity), "positions allocated"),
      fact(bytes(now.useful_bytes), "useful"),
      fact(bytes(now.allocated_bytes), "allocated"),
      now.metadata_bytes > 0 && fact(bytes(now.metadata_bytes), cache.kind === "paged" ? "of table beside it" : "of ranges within it"),
    ),
    (DRAWN[cache.kind] ?? rowsInOrder)({ story, state, now, before }),
    figure({
      key: "cache-growth",
      picture: growth(story, now),
      sentence: formula(cache, now),
      table: { columns: ["After step", "Positions", "Positions allocated", "Useful bytes", "Allocated bytes"], rows: story.cache_sizes.map((each) => [
        each.step, count(each.length), count(each.capacity), count(each.useful_bytes), count(each.allocated_bytes)]) },
    }),
    calculatorOpener(page),
  ];
}

export function sizeAt(story, step) {
  const own = story.cache_sizes.filter((each) => each.step === step);
  return own[own.length - 1] ?? story.cache_sizes[story.cache_sizes.length - 1];
}

function rowsInOrder({ story, now, before, state }) {
  return figure({
    key: "cache-bands",
    picture: bands(story, now, story.cache.kind === "none" ? 0 : before),
    sentence: sentence(now, before, state.step, story.cache),
  });
}

/** One band a layer: the outline is what is allocated, the filling what is useful, the accent what is new. */
function bands(story, now, before) {
  const most = Math.max(...story.cache_sizes.map((each) => each.capacity), 1);
  const width = (positions) => ((1000 * positions) / most).toFixed(2);
  return h("div", { class: "bands" }, Array.from({ length: story.cache.layers }, (_, layer) =>
    h("div", { class: "band" }, h("small", { class: "tabular" }, `layer ${layer}`),
      svg("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", "aria-hidden": "true" },
        ["k", "v"].map((kind, i) => [
          svg("rect", { class: "allocated", x: 0, y: i * 10.5, width: width(now.capacity), height: 9 }),
          svg("rect", { class: "useful", x: 0, y: i * 10.5, width: width(before), height: 9 }),
          svg("rect", { class: "new", x: width(before), y: i * 10.5, width: Math.max(2, (1000 * (now.length - before)) / most).toFixed(2), height: 9 }),
        ])))));
}

/** Useful and allocated bytes after each step, as two lines. */
function growth(story, now) {
  const sizes = story.cache_sizes;
  const most = Math.max(...sizes.map((each) => each.allocated_bytes), 1);
  const x = (i) => ((1000 * i) / Math.max(1, sizes.length - 1)).toFixed(1);
  const line = (name) => sizes.map((each, i) => `${x(i)},${(98 - (94 * each[name]) / most).toFixed(1)}`).join(" ");
  const at = sizes.indexOf(now);
  return svg("svg", { class: "growth", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": "useful and allocated bytes after each step" },
    svg("polyline", { class: "allocated-line", points: line("allocated_bytes") }),
    svg("polyline", { class: "useful-line", points: line("useful_bytes") }),
    svg("line", { class: "now-line", x1: x(at), x2: x(at), y1: 0, y2: 100 }));
}

function sentence(now, before, step, cache) {
  const after = step ? `decode step ${step}` : "prefill";
  if (cache.kind === "none") {
    return `${step ? `Decode step ${step}` : "Prefill"} computed ${plural(now.length, "row")} of keys and as many of values in each of ${plural(cache.layers, "layer")}, all of them anew. When it ended, they were dropped: between two steps nothing is held.`;
  }
  const added = now.length - before;
  const moved = now.moved ? ` The memory was full, so a larger piece was taken and the rows were moved into it.` : "";
  return `After ${after}, each of ${plural(cache.layers, "layer")} holds ${plural(now.length, "row")} of keys and as many of values; ` +
    `${plural(added, "row")} ${added === 1 ? "is" : "are"} new. ${percent(now.useful_bytes / (now.allocated_bytes || 1))} of what is allocated is useful.${moved}`;
}

function formula(cache, now) {
  const size = cache.bytes_per_position / (2 * cache.layers * cache.kv_heads * cache.head_dim);
  return `A position costs 2 (key and value) × ${cache.layers} layers × ${cache.kv_heads} heads × ${cache.head_dim} channels × ${size} bytes = ${count(cache.bytes_per_position)} bytes${cache.kind === "quantised" ? " as floats" : ""}. ` +
    `${count(now.length)} positions: ${count(now.useful_bytes)} bytes useful (solid line), ${count(now.allocated_bytes)} allocated (dashed).`;
}
