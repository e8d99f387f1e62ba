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

const MOST_ROWS = 256, MOST_COLUMNS = 512, TABLE_ROWS = 24, TABLE_COLUMNS = 12;

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
  const { state } = page;
  const stats = summary(value.data);
  const plane = planeOf(value, state.head);
  const most = largest(plane.data);
  return [
    h("p", {}, h("span", { class: "badge" }, value.badge), " ", BADGES[value.badge] ?? "", value.provenance ? ` ${value.provenance}` : ""),
    h("p", {}, describe(value, nameOf(path)), ` Mean ${element(stats.mean)}; type ${value.dtype}.`),
    h("p", { class: "note" }, axesSentence(value), plane.note),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "heat map" }, map(plane, most, nameOf(path))),
    legend(most, { signed: stats.negative > 0, text: element }),
    h("h3", {}, "As a table"),
    table(plane),
  ];
}

/** A value as rows and columns: its last two axes; of an axis in front the picked head, else the first. */
function planeOf(value, head) {
  let plane = value, note = "";
  while (plane.shape.length > 2) {
    const axis = plane.axes[0];
    const index = axis === "H" ? Math.min(head, plane.shape[0] - 1) : 0;
    note += ` Shown: ${AXES[axis] ?? axis} ${index} of ${plane.shape[0] - 1}.`;
    plane = at(plane, axis, index);
  }
  const [rows, columns] = plane.shape.length === 2 ? plane.shape : [1, plane.shape[0] ?? 1];
  if (rows > MOST_ROWS || columns > MOST_COLUMNS) note += ` The picture shows the first ${Math.min(rows, MOST_ROWS)} × ${Math.min(columns, MOST_COLUMNS)}.`;
  return { data: plane.data, rows, columns, axes: plane.axes, note };
}

/** One long row is wrapped; more rows stay rows. */
function map(plane, most, name) {
  const wrap = plane.rows === 1 ? 64 : Math.min(plane.columns, MOST_COLUMNS);
  const rows = plane.rows === 1 ? Math.min(MOST_ROWS, Math.ceil(plane.columns / wrap)) : Math.min(plane.rows, MOST_ROWS);
  const columns = plane.rows === 1 ? Math.min(wrap, plane.columns) : wrap;
  const cell = Math.max(3, Math.min(16, Math.floor(700 / columns)));
  const stride = plane.rows === 1 ? wrap : plane.columns;
  return heatMap({
    rows, columns, cell, most, label: `${name} as a heat map`,
    at: (row, column) => (plane.rows === 1 && row * stride + column >= plane.columns ? null : plane.data[row * stride + column]),
  });
}

function table(plane) {
  const rows = Math.min(plane.rows, TABLE_ROWS);
  const rowAxis = plane.axes.length > 1 ? plane.axes[0] : "";
  const columnAxis = plane.axes[plane.axes.length - 1] ?? "";
  if (plane.rows === 1) {
    const length = Math.min(plane.columns, 240);
    return tableOf({
      columns: [`${columnAxis} from`, ...Array.from({ length: 8 }, (_, i) => `+${i}`)],
      rows: Array.from({ length: Math.ceil(length / 8) }, (_, r) => [count(r * 8), ...Array.from(plane.data.subarray(r * 8, Math.min(length, r * 8 + 8)), element)]),
    });
  }
  const columns = Math.min(plane.columns, TABLE_COLUMNS);
  return tableOf({
    columns: [`${rowAxis} \\ ${columnAxis}`, ...Array.from({ length: columns }, (_, i) => i)],
    rows: Array.from({ length: rows }, (_, r) => [r, ...Array.from({ length: columns }, (_, c) => element(plane.data[r * plane.columns + c]))]),
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
