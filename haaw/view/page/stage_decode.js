// A decode step: one token goes in, one row is added to each layer's cache, scores for the next token come out.

import { attentionSentence, axisLabel, lookedAt, weightsOf } from "./attention.js";
import { h } from "./dom.js";
import { fact, facts, figure, gap, picker } from "./figure.js";
import { heatMap } from "./heat_map.js";
import { bytes, count, duration, percent, plural } from "./numbers.js";
import { sizeAt } from "./stage_cache.js";
import { bar } from "./stage_start.js";
import { lastStep } from "./state.js";
import { operationRow } from "./strip.js";
import { quoted } from "./token_text.js";

export function decodeStage(page) {
  const { story, state, store } = page;
  const step = story.steps.find((each) => each.stage === "decode" && each.step === state.step);
  const go = (changes) => store.go(changes);
  const position = step.first + step.count - 1;
  const anew = story.cache.kind === "none";
  const fed = story.tokens[position];
  const next = step.token === null ? null : story.tokens[step.token];
  return [
    h("p", {}, "From now on each token waits for the one before it. A step takes the token that was chosen last through every layer. All weights are read again for this single token, which is why decode is bound by memory and not by arithmetic."),
    anew && h("p", {}, `This request had no cache, so the step takes all ${plural(step.count, "position")} through the layers once more, only to choose one token.`),
    h("p", { class: "lead" }, `Step ${state.step} feeds `, quoted(fed?.text ?? "?"), ` at position ${position}`, next ? [" and ends with ", quoted(next.text), "."] : "."),
    h("div", { class: "pickers" },
      picker({ name: "step", label: "step", value: state.step, least: 1, most: lastStep(story), go }),
      picker({ name: "layer", label: "layer", value: state.layer, most: story.model.layers - 1, go }),
      picker({ name: "head", label: "head", value: state.head, most: story.model.query_heads - 1, go })),
    readAndNew(story, state, step),
    heads(page, step),
    operations(page, step),
  ];
}

function readAndNew(story, state, step) {
  const weights = (story.model.weights ?? []).reduce((sum, each) => sum + each.bytes, 0);
  const row = (story.cache.bytes_per_position ?? 0) * step.count;
  const held = step.first ? sizeAt(story, state.step - 1) : null;
  const cache = held ? held.useful_bytes : 0;
  const most = Math.max(weights, cache, 1);
  const rows = [["weights, read", weights], ["cache, read", cache], ["cache, new", row]];
  return figure({
    key: "read-and-new",
    picture: h("div", { class: "bars" }, rows.map(([name, size]) =>
      h("div", { class: `bar-row${name.endsWith("new") ? " new" : ""}` }, h("span", { class: "bar-name" }, name), bar(Math.max(size / most, 0.002)), h("span", { class: "tabular" }, bytes(size))))),
    sentence: `To make one token, the step reads ${bytes(weights)} of weights and ${bytes(cache)} of keys and values of ${plural(held?.held ? Math.max(...held.held) : step.first, "earlier position")}, and writes ${count(row)} bytes: ${step.count === 1 ? "one new row" : `${step.count} rows`} a layer${story.cache.kind === "quantised" ? ", as floats" : ""}.`,
  });
}

function heads(page, step) {
  const { story, state, store } = page;
  const found = weightsOf(page, "decode", state.step, state.layer);
  if (found.waiting) return h("p", { class: "waiting" }, "The attention weights are on their way.");
  if (!found.ready) return gap(found.why);
  const attention = found.ready;
  const row = step.count - 1; // 0 but where every step computes all positions anew
  const position = step.first + row;
  const tokens = story.tokens.slice(0, position + 1);
  const common = { attention, head: state.head, layer: state.layer, row, position, story };
  return figure({
    key: "decode-heads",
    picture: h("div", { class: "beside" },
      h("ol", { class: "head-lines", "aria-label": "attention heads" }, Array.from({ length: attention.heads }, (_, head) =>
        h("li", {}, h("button", { type: "button", class: head === state.head ? "head picked" : "head", "aria-pressed": head === state.head ? "true" : "false", onclick: () => store.go({ head }) },
          h("small", {}, `head ${head}`),
          heatMap({ rows: Math.ceil(attention.positions / WRAP), columns: Math.min(attention.positions, WRAP), cell: 10, most: 1, label: `weights of head ${head}`,
            at: (r, c) => (r * WRAP + c < attention.positions ? attention.weight(head, row, r * WRAP + c) : null) }))))),
      lookedAt({ ...common, tokens, isNew: position })),
    sentence: attentionSentence(common),
    table: { columns: ["Position", "Token", ...Array.from({ length: attention.heads }, (_, head) => `Head ${head}`)], rows: tokens.map((token, i) => [
      i, h("bdi", {}, axisLabel(token)), ...Array.from({ length: attention.heads }, (_, head) => attention.holds(row, i) ? percent(attention.weight(head, row, i)) : "not held")]) },
  });
}

const WRAP = 64;

/** The operations of this step, in the order in which they ran: before the layers, this layer, behind them. */
function operations(page, step) {
  const { state } = page;
  const found = page.values.step("decode", state.step);
  if (found.waiting) return h("p", { class: "waiting" }, "The operations are on their way.");
  if (!found.ready) return gap(found.why);
  const rows = found.ready.operations;
  const groups = [
    ["Embedding", "the token's row of the table, and the angles of its position", rows.filter((each) => each.part === "embedding")],
    [`Layer ${state.layer}: attention`, "what other positions have to say", rows.filter((each) => each.layer === state.layer && each.part === "attention")],
    [`Layer ${state.layer}: MLP`, "what this position makes of it", rows.filter((each) => each.layer === state.layer && each.part === "mlp")],
    ["Output", "a score for every token of the vocabulary", rows.filter((each) => each.part === "output")],
  ];
  return [
    layerTimes(page, rows),
    groups.filter((each) => each[2].length).map(([title, about, own]) =>
      h("section", { class: "operations" }, h("h3", {}, title, h("small", {}, ` ${about}`)), h("ol", {}, own.map((each) => operationRow(each, page))))),
  ];
}

function layerTimes({ story, state, store }, rows) {
  const layers = story.model.layers;
  const times = Array.from({ length: layers }, (_, layer) => rows.filter((each) => each.layer === layer).reduce((sum, each) => sum + each.took_ns, 0));
  const most = Math.max(...times, 1);
  const rest = rows.filter((each) => each.layer === null && each.part !== "choose").reduce((sum, each) => sum + each.took_ns, 0);
  return figure({
    key: "layer-times",
    picture: h("ol", { class: "layers", "aria-label": "layers" }, times.map((each, layer) =>
      h("li", {}, h("button", { type: "button", "aria-pressed": layer === state.layer ? "true" : "false", class: layer === state.layer ? "picked" : "", onclick: () => store.go({ layer }) },
        h("small", { class: "tabular" }, layer), bar(each / most), h("small", { class: "tabular" }, duration(each)))))),
    sentence: `The operations of the ${plural(layers, "layer")} took ${duration(times.reduce((a, b) => a + b, 0))}; embedding and output together ${duration(rest)}.`,
  });
}
