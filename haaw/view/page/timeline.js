// The real times by phase, each phase in a lane of its own: waiting, prefill, decode and delivery are never merged.

import { h, svg } from "./dom.js";
import { details, facts, fact, tableOf } from "./figure.js";
import { bytes, digits, duration, many, percent, plural } from "./numbers.js";

export const PHASES = {
  prepare: "Prepare",
  queue: "Queue",
  prefill: "Prefill",
  decode: "Decode",
  deliver: "Deliver",
};

export function timeline(page) {
  const { story, state } = page;
  const total = story.phases.reduce((sum, each) => sum + (each.took_ns ?? 0), 0);
  const current = indexOfStep(story, state);
  return h(
    "figure",
    { class: "timeline", "data-key": "timeline" },
    h("div", { class: "lanes" }, story.phases.map((phase) => lane(phase, story, total, current))),
    h("figcaption", {}, sentence(story, total)),
    details(
      "The numbers as a table",
      tableOf({
        columns: ["Phase", "Time", "Share", "Operations", "Bytes moved", "Operations a byte"],
        rows: story.phases.map((each) => [
          PHASES[each.phase],
          duration(each.took_ns),
          each.took_ns === null || !total ? "" : percent(each.took_ns / total),
          each.operations ? each.operations.toLocaleString("en") : "none",
          each.bytes ? each.bytes.toLocaleString("en") : "none",
          ratio(each),
        ]),
      }),
    ),
  );
}

function lane(phase, story, total, current) {
  const share = phase.took_ns === null || !total ? 0 : phase.took_ns / total;
  return h(
    "div",
    { class: `lane ${phase.phase}` },
    h("span", { class: "phase" }, PHASES[phase.phase]),
    bars(phase, story, total, current),
    h("span", { class: "time tabular" }, duration(phase.took_ns)),
    h("span", { class: "work tabular" }, phase.operations ? `${many(phase.operations)} operations, ${bytes(phase.bytes)}, ${ratio(phase)} a byte` : percent(share)),
  );
}

/** The stretches of one phase on the clock of the whole request. */
function bars(phase, story, total, current) {
  const { start, length } = window_(story, total);
  const own = story.intervals.filter((each) => each[0] === phase.phase);
  const rects = own.map(([, from, took, step]) => rect(from - start, took, length, step === current ? "now" : ""));
  if (!own.length && phase.took_ns) {
    const at = phase.phase === "queue" ? (story.phases[0].took_ns ?? 0) : 0;
    rects.push(rect(at, phase.took_ns, length, ""));
  }
  return svg("svg", { viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true" }, rects);
}

function rect(from, took, length, name) {
  const x = (1000 * from) / length;
  return svg("rect", { x: x.toFixed(2), y: 0, width: Math.max(1.5, (1000 * took) / length).toFixed(2), height: 12, class: name });
}

/** The stretch of the clock that the lanes show: what comes before the first step has its own place in front. */
function window_(story, total) {
  if (!story.intervals.length) return { start: 0, length: total || 1 };
  const first = Math.min(...story.intervals.map((each) => each[1]));
  const last = Math.max(...story.intervals.map((each) => each[1] + each[2]));
  const before = (story.phases[0].took_ns ?? 0) + (story.phases[1].took_ns ?? 0);
  return { start: first - before, length: last - first + before || 1 };
}

export function indexOfStep(story, state) {
  if (!["prefill", "cache", "decode", "choose", "deliver"].includes(state.stage)) return -1;
  if (state.stage === "prefill") return story.steps.findIndex((each) => each.stage === "prefill" && each.step === state.step);
  if (state.step > 0) return story.steps.findIndex((each) => each.stage === "decode" && each.step === state.step);
  return story.steps.findIndex((each) => each.stage === "prefill" && each.token !== null);
}

function ratio({ operations, bytes: moved }) {
  return operations && moved ? digits(operations / moved) : "none";
}

function sentence(story, total) {
  const by = Object.fromEntries(story.phases.map((each) => [each.phase, each]));
  if (!total) return "This trace does not hold the times of the phases.";
  const answer = story.tokens.length - story.prompt_tokens;
  const own = story.recorder_ns ? ` Recording took ${duration(story.recorder_ns)} of all this, most of it in queue and deliver.` : "";
  return (
    `The request took ${duration(total)}: ${duration(by.prefill.took_ns)} for ${plural(story.prompt_tokens, "token")} of the prompt at once, ` +
    `${duration(by.decode.took_ns)} for ${plural(answer, "token")} one after another. ` +
    `A byte that was moved served ${ratio(by.prefill)} operations in prefill and ${ratio(by.decode)} in decode.${own}`
  );
}

/** The numbers at the head of the page. */
export function overview(story) {
  const answer = story.tokens.length - story.prompt_tokens;
  const total = story.phases.reduce((sum, each) => sum + (each.took_ns ?? 0), 0);
  const decode = story.phases.find((each) => each.phase === "decode");
  return facts(
    story.model.name && fact(story.model.name, "model"),
    fact(story.prompt_tokens, "prompt tokens"),
    fact(answer, "new tokens"),
    total > 0 && fact(duration(total), "from request to end"),
    decode?.took_ns && answer > 1 && fact(duration(decode.took_ns / answer), "decode a token"),
  );
}
