// What every picture has: a sentence made from its numbers, and the same numbers as a table.

import { h } from "./dom.js";

/** `table`: { columns: [names], rows: [[cells]] }; at most MOST_ROWS rows are written out. */
export function figure({ key, sentence, picture, table, title = "The numbers as a table" }) {
  return h(
    "figure",
    { "data-key": key },
    h("div", { class: "picture" }, picture),
    h("figcaption", {}, sentence),
    table && details(title, tableOf(table)),
  );
}

const MOST_ROWS = 400;

export function tableOf({ columns, rows }) {
  const shown = rows.slice(0, MOST_ROWS);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": "table" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each)))),
      h(
        "tbody",
        {},
        shown.map((row) =>
          h("tr", {}, row.map((cell, i) => (i === 0 ? h("th", { scope: "row" }, cell) : h("td", {}, cell)))),
        ),
      ),
    ),
    rows.length > shown.length && h("p", { class: "note" }, `${rows.length - shown.length} more rows are not written out.`),
  );
}

export function details(title, ...content) {
  return h("details", {}, h("summary", {}, title), content);
}

/** A sentence in place of a picture that cannot be shown. */
export function gap(why) {
  return h("p", { class: "gap" }, why);
}

/** A number with its name, large. */
export function fact(value, name) {
  return h("div", { class: "fact" }, h("dt", {}, name), h("dd", { class: "tabular" }, value));
}

export function facts(...list) {
  return h("dl", { class: "facts" }, list.filter(Boolean));
}

/** A choice of a number from 0 (or `least`) to `most`: a slider between two buttons. */
export function picker({ name, label, value, least = 0, most, go }) {
  if (most <= least) return null;
  const set = (next) => go({ [name]: Math.max(least, Math.min(most, next)) });
  const id = `pick-${name}-${label.replace(/\W+/g, "-")}`;
  return h(
    "div",
    { class: "picker", "data-key": id },
    h("label", { for: id }, `${label} `, h("output", { class: "tabular" }, `${value} of ${most}`)),
    h("button", { type: "button", "aria-label": `${label}: one less`, onclick: () => set(value - 1), disabled: value <= least }, "−"),
    h("input", { id, type: "range", min: least, max: most, step: 1, value, oninput: (event) => set(Number(event.target.value)) }),
    h("button", { type: "button", "aria-label": `${label}: one more`, onclick: () => set(value + 1), disabled: value >= most }, "+"),
  );
}
