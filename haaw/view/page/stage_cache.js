// The cache: keys and values of every position that was seen, a band a layer. It grows by rows, and never forgets.

import { h, svg } from "./dom.js";
import { fact, facts, figure, picker } from "./figure.js";
import { bytes, count, percent, plural } from "./numbers.js";
import { lastStep } from "./state.js";

export function cacheStage(page) {
  const { story, state, store } = page;
  const now = sizeAt(story, state.step);
  const before = state.step > 0 ? sizeAt(story, state.step - 1).length : 0;
  const { cache } = story;
  return [
    h("p", {}, "Every layer computed a key and a value for each position. They will be needed for every token to come, and they never change, so they are kept instead of computed again. This is the KV cache."),
    h("div", { class: "pickers" }, picker({ name: "step", label: "after step", value: state.step, most: lastStep(story), go: (changes) => store.go(changes) })),
    facts(
      fact(now.length, "positions held"),
      fact(now.capacity, "positions allocated"),
      fact(bytes(now.useful_bytes), "useful"),
      fact(bytes(now.allocated_bytes), "allocated"),
    ),
    figure({
      key: "cache-bands",
      picture: bands(story, state, now, before),
      sentence: sentence(now, before, state.step, cache),
      table: { columns: ["After step", "Positions held", "Positions allocated", "Useful bytes", "Allocated bytes"], rows: story.cache_sizes.map((each) => [
        each.step, each.length, each.capacity, count(each.useful_bytes), count(each.allocated_bytes)]) },
    }),
    figure({ key: "cache-growth", picture: growth(story, now), sentence: formula(cache, now) }),
  ];
}

export function sizeAt(story, step) {
  const own = story.cache_sizes.filter((each) => each.step === step);
  return own[own.length - 1] ?? story.cache_sizes[story.cache_sizes.length - 1];
}

/** One band a layer: the outline is what is allocated, the filling what is useful, the accent what is new. */
function bands(story, state, now, before) {
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
  const added = now.length - before;
  const moved = now.moved ? ` The memory was full, so a larger piece was taken and the rows were moved into it.` : "";
  return `After ${step ? `decode step ${step}` : "prefill"} each of ${plural(cache.layers, "layer")} holds ${plural(now.length, "row")} of keys and as many of values; ` +
    `${plural(added, "row")} ${added === 1 ? "is" : "are"} new. ${percent(now.useful_bytes / (now.allocated_bytes || 1))} of what is allocated is useful.${moved}`;
}

function formula(cache, now) {
  const size = cache.bytes_per_position / (2 * cache.layers * cache.kv_heads * cache.head_dim);
  return `A position costs 2 (key and value) × ${cache.layers} layers × ${cache.kv_heads} heads × ${cache.head_dim} channels × ${size} bytes = ${count(cache.bytes_per_position)} bytes. ` +
    `${count(now.length)} positions: ${count(now.useful_bytes)} bytes useful (solid line), ${count(now.allocated_bytes)} allocated (dashed).`;
}
