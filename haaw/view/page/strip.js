// A value in one line: its numbers as a strip of colours, with a button that opens it.

import { h } from "./dom.js";
import { heatMap, largest } from "./heat_map.js";
import { count, duration, element, plural } from "./numbers.js";
import { summary } from "./values.js";

const ACROSS = 64;
const MOST_CELLS = 1024;

/** The row of one operation: its name, its result as a strip, its shape and its time. */
export function operationRow(operation, page) {
  const output = operation.outputs[0];
  return h(
    "li",
    { class: "operation" },
    h("div", { class: "name" }, h("b", {}, output ? nameOf(output.path) : operation.op), h("small", {}, operation.op)),
    output ? h("div", { class: "strips" }, operation.outputs.map((each) => strip(each, page))) : h("p", { class: "note" }, "writes into the cache"),
    h("div", { class: "shape tabular" }, output ? shapeText(output) : "", h("small", {}, cut(output), duration(operation.took_ns))),
  );
}

/** What the strip leaves out. */
function cut(output) {
  const length = output ? output.shape.reduce((a, b) => a * b, 1) : 0;
  return length > MOST_CELLS ? `first ${count(MOST_CELLS)} shown, ` : "";
}

/** The last part of a path: "decode 5/layer 3/attention.weights#2" -> "weights". */
export function nameOf(path) {
  return path.split("/").pop().split(".").pop().replace(/#\d+$/, "");
}

/** "4 H × 14 S": lengths with the letters of their axes. */
export function shapeText({ shape, axes }) {
  return shape.map((length, i) => `${axes[i] ? `${axes[i]} ` : ""}${length}`).join(" × ") || "one number";
}

export function strip(output, page) {
  const found = page.values.value(output.path);
  const open = () => page.store.go({ look: output.path });
  if (found.waiting) return h("div", { class: "strip waiting" }, "…");
  if (!found.ready) {
    return h("button", { type: "button", class: "strip gap", onclick: open, title: found.why }, "hash only");
  }
  const { data } = found.ready;
  const cells = Math.min(data.length, MOST_CELLS);
  const columns = across(output.shape, cells);
  const said = describe(found.ready, nameOf(output.path));
  return h(
    "button",
    { type: "button", class: "strip", onclick: open, "aria-label": `Look closer: ${said}`, title: said },
    heatMap({
      rows: Math.ceil(cells / columns),
      columns,
      at: (row, column) => (row * columns + column < cells ? data[row * columns + column] : null),
      most: largest(data),
      cell: 8,
      label: said,
    }),
  );
}

/** A row of the strip is a row of the array where that is neither short nor long, else ACROSS numbers. */
function across(shape, cells) {
  const last = shape[shape.length - 1] ?? 1;
  return shape.length > 2 && last >= 4 && last <= ACROSS ? last : Math.min(cells, ACROSS);
}

/** A sentence on a value: how many numbers, their range, how many are negative. */
export function describe(value, name) {
  const { least, most, negative, odd, finite } = summary(value.data);
  if (!finite) return `${name}: ${plural(value.data.length, "number")}, none of them finite.`;
  const hidden = odd ? ` ${plural(odd, "entry").replace("entrys", "entries")} are masked or no numbers.` : "";
  return `${name}: ${plural(value.data.length, "number")} from ${element(least)} to ${element(most)}, ${negative} of them negative.${hidden}`;
}
