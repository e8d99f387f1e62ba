// The kinds of cache whose rows do not simply lie in order: a table of blocks, a ring, codes and floats, a store
// outside. Each gives one figure, from the cache after a step (`now`) and how many positions there were before it.

import { h, svg } from "./dom.js";
import { figure } from "./figure.js";
import { bytes, count, percent, plural } from "./numbers.js";

const stepName = (state) => (state.step ? `decode step ${state.step}` : "prefill");

/** Blocks of the pool in the order of the table, each filled as far as it holds rows. */
export function paged({ story, state, now, before }) {
  const { block_size: size, pool_blocks: pool } = story.cache;
  const filled = (i) => Math.max(0, Math.min(size, now.length - i * size));
  const rows = now.blocks.map((block, i) => [i, block, `${i * size} to ${i * size + size - 1}`, filled(i), i * size + filled(i) > before ? "yes" : "no"]);
  return figure({
    key: "cache-blocks",
    picture: h("ol", { class: "blocks", "aria-label": "block table" }, now.blocks.map((block, i) =>
      h("li", { class: i * size + filled(i) > before ? "block new" : "block" },
        h("small", {}, `${i} →`), h("b", { class: "tabular" }, block),
        cells(size, (slot) => (slot >= filled(i) ? "allocated" : i * size + slot >= before ? "new" : "useful"))))),
    sentence: `After ${stepName(state)}, the table has ${plural(now.blocks.length, "block")} of ${plural(size, "position")}: position p lies in the block that stands at p div ${size}, in its row p mod ${size}. ` +
      `${count(now.length)} of ${plural(now.capacity, "row")} are filled (${percent(now.length / (now.capacity || 1))}). The pool has ${plural(pool, "block")} (${bytes(story.cache.pool_bytes)}) in all; ${count(pool - now.blocks.length)} of them ${pool - now.blocks.length === 1 ? "is" : "are"} not in this table.`,
    table: { columns: ["In the table", "Block of the pool", "Positions", "Rows filled", "Written in this step"], rows },
    title: "The block table",
  });
}

/** A row of small cells, `count` of them; many of them become a bar of the same parts. */
function cells(many, kindOf) {
  const runs = [];
  for (let i = 0; i < many; i++) {
    const kind = kindOf(i);
    if (many <= 64 || !runs.length || runs[runs.length - 1].kind !== kind) runs.push({ kind, from: i, length: 1 });
    else runs[runs.length - 1].length += 1;
  }
  const gap = many <= 64 ? 0.12 : 0;
  return svg("svg", { class: "cells", viewBox: `0 0 ${many} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
    runs.map((run) => svg("rect", { class: run.kind, x: run.from, y: 0, width: run.length - gap, height: 1 })));
}

/** What a layer holds on the line of all positions, and below it the rows of its ring as they lie. */
export function sliding({ story, state, now, before }) {
  const { rings, sinks, layers } = story.cache;
  const room = rings[state.layer];
  const rows = ringRows(now, state.layer, room, sinks);
  const kindOf = (position) => (position === null ? "allocated" : position >= before ? "new" : "useful");
  return [
    figure({
      key: "cache-window",
      picture: h("div", { class: "bands" }, Array.from({ length: layers }, (_, layer) =>
        h("div", { class: layer === state.layer ? "band picked" : "band" }, h("small", { class: "tabular" }, `layer ${layer}`),
          cells(now.length, (position) => (isHeld(now, layer, position, sinks) ? kindOf(position) : "evicted"))))),
      sentence: windowSentence({ story, state, now, before, room }),
      table: { columns: ["Layer", "Rows of its ring", "Positions held", "Oldest behind the sinks", "Evicted so far"], rows: Array.from({ length: layers }, (_, layer) => [
        layer, rings[layer] ?? "no ring", count(now.held[layer]), now.oldest[layer] ?? 0, count(now.length - now.held[layer])]) },
    }),
    room !== null && figure({
      key: "cache-ring",
      picture: h("div", { class: "ring" }, cells(room + 1, (row) => (row === room ? "spare" : kindOf(rows[row])))),
      sentence: `The rows of layer ${state.layer} as they lie in memory: ${sinks ? `${plural(sinks, "sink")} that never ${sinks === 1 ? "goes" : "go"} come first, then ` : ""}a ring in which position p stands in row ${sinks ? `${sinks} + (p − ${sinks})` : "p"} mod ${room - sinks}. The last row is spare: it keeps what a step overwrites until the step is complete.`,
      table: { columns: ["Row", "Position"], rows: rows.map((position, row) => [row, position ?? "empty"]) },
    }),
  ];
}

function isHeld(now, layer, position, sinks) {
  return now.oldest[layer] === null || position < sinks || position >= now.oldest[layer];
}

/** The position in each row of a ring without its spare row; null for one that was never written. */
function ringRows(now, layer, room, sinks) {
  const rows = Array.from({ length: room ?? 0 }, () => null);
  for (let position = 0; position < now.length; position++) {
    if (room !== null && isHeld(now, layer, position, sinks)) rows[position < sinks ? position : sinks + ((position - sinks) % (room - sinks))] = position;
  }
  return rows;
}

function windowSentence({ story, state, now, before, room }) {
  const { sinks } = story.cache;
  const gone = now.length - now.held[state.layer];
  const from = now.oldest[state.layer];
  const which = room === null ? "all of them: this layer has no window"
    : gone === 0 ? "all of them"
    : `${sinks ? `0 to ${sinks - 1} (sinks) and ` : ""}${from} to ${now.length - 1}; ${plural(gone, "position")} ${gone === 1 ? "was" : "were"} evicted and cannot be looked at any more`;
  return `After ${stepName(state)}, ${plural(now.length, "position")} have been seen, ${count(now.length - before)} of them new. Layer ${state.layer} holds ${count(now.held[state.layer])}: ${which}.`;
}

/** Where the bytes are: useful within allocated, one bar a part. */
function parts({ now }) {
  const most = Math.max(...now.parts.map((each) => each.allocated), 1);
  return h("div", { class: "bars" }, now.parts.map((each) =>
    h("div", { class: "bar-row" }, h("span", { class: "bar-name" }, each.name),
      svg("svg", { class: "bar", viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "track", x: 0, y: 0, width: ((1000 * each.allocated) / most).toFixed(2), height: 12 }),
        svg("rect", { class: "fill", x: 0, y: 0, width: ((1000 * each.useful) / most).toFixed(2), height: 12 })),
      h("span", { class: "tabular" }, bytes(each.allocated)))));
}

const partsTable = ({ now }) => ({ columns: ["Part", "Useful bytes", "Allocated bytes"], rows: now.parts.map((each) => [each.name, count(each.useful), count(each.allocated)]) });

export function quantised({ story, state, now, before }) {
  const { bits, group } = story.cache;
  const floats = now.length - now.quantised;
  const elements = 2 * story.cache.layers * story.cache.kv_heads * story.cache.head_dim;
  return [
    figure({
      key: "cache-precision",
      picture: cells(now.length, (position) => (position < now.quantised ? "codes" : position >= before ? "new" : "useful")),
      sentence: `After ${stepName(state)}, the first ${plural(now.quantised, "position")} are codes of ${bits} bits, in groups of ${group}, and the latest ${count(floats)} are floats as they were computed; ${plural(now.length - before, "position")} ${now.length - before === 1 ? "is" : "are"} new.`,
    }),
    figure({
      key: "cache-parts",
      picture: parts({ now }),
      sentence: `${count(now.quantised)} positions × ${count(elements)} numbers × ${bits} / 8 bytes = ${bytes(now.parts[0].useful)} of codes; the lowest value and the step of each group take ${bytes(now.parts[1].useful)} more, and the floats ${bytes(now.parts[2].useful)}. ` +
        `As floats alone, ${count(now.length)} positions would take ${bytes(now.length * story.cache.bytes_per_position)}.`,
      table: partsTable({ now }),
    }),
  ];
}

export function offloaded({ story, state, now, before }) {
  const where = story.cache.place === "host" ? "the memory of the host" : "a file on the disk";
  const inside = now.working.map((each) => (each.layer < 0 ? "a layer that is to come" : `layer ${each.layer}`)).join(" and ");
  return figure({
    key: "cache-parts",
    picture: parts({ now }),
    sentence: `After ${stepName(state)}, the store (${where}) holds ${plural(now.length, "position")} of all ${plural(story.cache.layers, "layer")}, ${count(now.length - before)} of them new. ` +
      `Where the model computes, there are ${plural(now.working.length, "working buffer")} (${bytes(now.parts[1].allocated)}), last for ${inside}. ` +
      `The step wrote out ${bytes(now.stored_bytes)}, brought in ${bytes(now.fetched_bytes)}, and waited for that for ${now.waited_ms} ms.`,
    table: {
      columns: ["After step", "Store, bytes", "Working buffers, bytes", "Written out, bytes", "Brought in, bytes", "Waited, ms"],
      rows: story.cache_sizes.map((each) => [each.step, count(each.parts[0].allocated), count(each.parts[1].allocated), count(each.stored_bytes), count(each.fetched_bytes), each.waited_ms]),
    },
  });
}
