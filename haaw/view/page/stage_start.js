// Power on: the machine, the process and what had to be there before the request.

import { h, svg } from "./dom.js";
import { figure, fact, facts } from "./figure.js";
import { duration } from "./numbers.js";

export function startStage({ story }) {
  const up = story.startup.find((each) => each.up_ns);
  const rows = story.startup.filter((each) => each.took_ns > 0);
  return [
    h("p", {}, "Before a model answers, a computer is on, a program starts, reads its libraries and opens a file of numbers. None of this looks at the prompt, and all of it is waited for."),
    rows.length > 0 && figure({
      key: "startup",
      picture: startBars(rows),
      sentence: sentence(rows, up),
      table: { columns: ["What", "Began", "Time"], rows: story.startup.map((each) => [
        `${"· ".repeat(each.depth)}${each.what}`, `${each.start_ns < 0 ? "−" : ""}${duration(Math.abs(each.start_ns))}`, duration(each.took_ns)]) },
    }),
    story.machine.length > 0 && facts(...story.machine.map(([name, value]) => fact(value, name))),
  ];
}

function startBars(rows) {
  const most = Math.max(...rows.map((each) => each.took_ns), 1);
  return h(
    "div",
    { class: "bars" },
    rows.map((each) =>
      h(
        "div",
        { class: "bar-row" },
        h("span", { class: each.depth ? "bar-name inner" : "bar-name" }, each.what),
        bar(each.took_ns / most),
        h("span", { class: "tabular" }, duration(each.took_ns)),
      ),
    ),
  );
}

/** A horizontal bar: `share` of the width, and of that `inner` in the accent colour. */
export function bar(share, inner = null, name = "") {
  const width = (part) => Math.max(0, Math.min(1000, 1000 * part)).toFixed(2);
  return svg(
    "svg",
    { class: `bar ${name}`, viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", x: 0, y: 0, width: 1000, height: 12 }),
    svg("rect", { class: "fill", x: 0, y: 0, width: width(share), height: 12 }),
    inner !== null && svg("rect", { class: "inner", x: 0, y: 0, width: width(inner), height: 12 }),
  );
}

function sentence(rows, up) {
  const outer = rows.filter((each) => each.depth === 0);
  const sum = outer.reduce((total, each) => total + each.took_ns, 0);
  const longest = rows.reduce((most, each) => (each.took_ns > most.took_ns ? each : most));
  return `${up ? `The machine had been up for ${duration(up.up_ns)}. ` : ""}Getting ready took ${duration(sum)} in all, most of it for “${longest.what}” (${duration(longest.took_ns)}). Indented: a part of what stands above it.`;
}
