// Looking closer at one value: a heat map, a table, where it came from, and the source of the operation beside it.

import { h } from "./dom.js";
import { details, tableOf } from "./figure.js";
import { heatMap, largest, legend } from "./heat_map.js";
import { count, duration, element } from "./numbers.js";
import { describe, nameOf, shapeText } from "./strip.js";
import { at, summary } from "./values.js";

const AXES = {
  B: "sequences", T: "tokens", S: "positions", D: "model width", H: "query heads", K: "key/value heads",
  G: "query heads a key/value head", C: "channels of a head", I: "pairs of channels", E: "heads × channels",
  F: "MLP width", V: "vocabulary", N: "candidates", L: "layers", R: "rotated channels", P: "positions",
  U: "key/value heads × channels", X: "experts", M: "blocks", A: "width", Z: "width",
};

export const BADGES = {
  recorded: "The numbers stand in the trace.",
  recomputed: "The numbers were computed again from what the trace holds.",
  "hash only": "The trace holds only a hash of the numbers.",
};

const MAP_ROWS = 256, MAP_COLUMNS = 512, WRAP = 64;
const TABLE_ROWS = 24, TABLE_COLUMNS = 12, TABLE_NUMBERS = 240;

/** The content of the dialog for the value at `path`. */
export function closer(page, path) {
  const [stage, step] = (path.split("/").find((part) => /^(prefill|decode) \d+$/.test(part)) ?? "none 0").split(" ");
  const operation = operationOf(page, stage, Number(step), path);
  const found = page.values.value(path);
  return [
    h("h2", { id: "closer-title" }, nameOf(path), " ", h("small", {}, h("bdi", {}, path))),
    found.waiting && h("p", { class: "waiting" }, "The numbers are on their way."),
    found.why && h("p", { class: "gap" }, h("span", { class: "badge" }, "hash only"), " ", found.why),
    found.ready && numbers(page, found.ready, path),
    operation && aboutOperation(page, operation),
  ];
}

function operationOf(page, stage, step, path) {
  const rows = page.values.step(stage, step).ready?.operations ?? [];
  return rows.find((each) => each.outputs.some((one) => one.path === path)) ?? null;
}

function numbers(page, value, path) {
  const { state, store } = page;
  const stats = summary(value.data);
  const plane = planeOf(value, state);
  const most = largest(plane.data);
  const cut = plane.rows > MAP_ROWS || plane.columns > MAP_COLUMNS;
  return [
    h("p", {}, h("span", { class: "badge" }, value.badge), " ", BADGES[value.badge] ?? "", value.provenance ? ` ${value.provenance}` : ""),
    h("p", {}, describe(value, nameOf(path)), ` Mean ${element(stats.mean)}; type ${value.dtype}.`),
    h("p", { class: "note" }, axesSentence(value), plane.note),
    (plane.rows > 1 || plane.columns > TABLE_NUMBERS) && h("div", { class: "pickers" }, from("row", plane.rows, plane.row, store), from("column", plane.columns, plane.column, store)),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "heat map" }, map(plane, most, nameOf(path))),
    legend(most, { signed: stats.negative > 0, text: element }),
    cut && h("p", { class: "note" }, `The picture shows at most ${MAP_ROWS} rows and ${MAP_COLUMNS} columns at a time.`),
    h("h3", {}, "As a table"),
    table(plane),
  ];
}

/** Where the picture and the table begin. */
function from(name, count_, value, store) {
  if (count_ <= 1) return null;
  const id = `from-${name}`;
  const set = (event) => store.go({ [name]: Math.max(0, Math.min(count_ - 1, Math.trunc(Number(event.target.value)) || 0)) });
  return h("div", { class: "from" }, h("label", { for: id }, `from ${name} `), h("input", { id, type: "number", min: 0, max: count_ - 1, value, onchange: set }), ` of ${count(count_)}`);
}

/** A value as rows and columns: its last two axes; of an axis in front the picked head, else the first entry. */
function planeOf(value, { head, row, column }) {
  let plane = value, note = "";
  while (plane.shape.length > 2) {
    const axis = plane.axes[0];
    const index = axis === "H" ? Math.min(head, plane.shape[0] - 1) : 0;
    note += ` Shown: ${AXES[axis] ?? axis} ${index} of ${plane.shape[0] - 1}.`;
    plane = at(plane, axis, index);
  }
  const [rows, columns] = plane.shape.length === 2 ? plane.shape : [1, plane.shape[0] ?? 1];
  return { data: plane.data, rows, columns, axes: plane.axes, note, row: Math.min(row, rows - 1), column: Math.min(column, columns - 1) };
}

/** One long row is wrapped; more rows stay rows. */
function map(plane, most, name) {
  const long = plane.rows === 1;
  const left = plane.columns - plane.column;
  const columns = long ? Math.min(WRAP, left) : Math.min(MAP_COLUMNS, left);
  const rows = long ? Math.min(MAP_ROWS, Math.ceil(left / columns)) : Math.min(MAP_ROWS, plane.rows - plane.row);
  const cell = Math.max(3, Math.min(16, Math.floor(700 / columns)));
  const value = (row, column) => {
    if (!long) return plane.data[(plane.row + row) * plane.columns + plane.column + column];
    const place = row * columns + column;
    return place < left ? plane.data[plane.column + place] : null;
  };
  return heatMap({ rows, columns, cell, most, at: value, label: `${name} as a heat map` });
}

function table(plane) {
  const across = plane.axes[plane.axes.length - 1] ?? "";
  if (plane.rows === 1) {
    const shown = plane.data.subarray(plane.column, plane.column + TABLE_NUMBERS);
    return tableOf({
      columns: [`${across} from`, ...Array.from({ length: 8 }, (_, i) => `+${i}`)],
      rows: Array.from({ length: Math.ceil(shown.length / 8) }, (_, r) => [count(plane.column + r * 8), ...Array.from(shown.subarray(r * 8, r * 8 + 8), element)]),
    });
  }
  const rows = Math.min(plane.rows - plane.row, TABLE_ROWS), columns = Math.min(plane.columns - plane.column, TABLE_COLUMNS);
  const number = (row, column) => element(plane.data[(plane.row + row) * plane.columns + plane.column + column]);
  return tableOf({
    columns: [`${plane.axes[0] ?? ""} \\ ${across}`, ...Array.from({ length: columns }, (_, i) => plane.column + i)],
    rows: Array.from({ length: rows }, (_, r) => [plane.row + r, ...Array.from({ length: columns }, (_, c) => number(r, c))]),
  });
}

function axesSentence({ axes, shape }) {
  if (!shape.length) return "One number.";
  return `Axes: ${shape.map((length, i) => `${axes[i] ?? "?"} = ${count(length)}${AXES[axes[i]] ? ` (${AXES[axes[i]]})` : ""}`).join(", ")}.`;
}

function aboutOperation({ story }, operation) {
  const card = story.ops[operation.op] ?? {};
  return h(
    "section",
    { class: "operation-card" },
    h("h3", {}, "Made by ", h("code", {}, operation.op)),
    card.meaning && h("p", {}, card.meaning),
    card.formula && h("p", { class: "formula" }, card.formula),
    h("p", { class: "note" }, `${count(operation.operations)} operations on ${count(operation.bytes)} bytes in ${duration(operation.took_ns)}; called at ${operation.site}. Results: ${operation.outputs.map(shapeText).join("; ")}.`),
    card.source && h("p", { class: "note" }, `Source: ${card.source}`),
    card.code && details("The code that ran", h("pre", { class: "code", tabindex: "0" }, card.code)),
  );
}
