// Prefill: all positions of the prompt at once, and the mask that keeps each from seeing what comes later.

import { attentionSentence, axisLabel, headMaps, lookedAt, weightsOf } from "./attention.js";
import { h } from "./dom.js";
import { fact, facts, figure, gap, picker } from "./figure.js";
import { heatMap, legend } from "./heat_map.js";
import { count, duration, many, percent, plural } from "./numbers.js";

export function prefillStage(page) {
  const { story, state, store } = page;
  const chunks = story.steps.filter((each) => each.stage === "prefill");
  const chunk = chunks[Math.min(state.step, chunks.length - 1)];
  const go = (changes) => store.go(changes);
  return [
    h("p", {}, "The whole prompt is known, so all of its positions go through the layers together. Large products of matrices keep the processor busy: each weight that is read serves every position."),
    facts(
      fact(chunk.count, "positions at once"),
      fact(duration(chunk.took_ns), chunks.length > 1 ? `for chunk ${chunk.step}` : "for all of them"),
      fact(duration(chunk.took_ns / chunk.count), "a position"),
      fact(many(story.phases.find((each) => each.phase === "prefill").operations), "operations in prefill"),
    ),
    h("div", { class: "pickers" },
      picker({ name: "step", label: "chunk", value: chunk.step, most: chunks.length - 1, go }),
      picker({ name: "layer", label: "layer", value: state.layer, most: story.model.layers - 1, go }),
      picker({ name: "head", label: "head", value: state.head, most: story.model.query_heads - 1, go }),
      picker({ name: "token", label: "position", value: rowPosition(state, chunk), least: chunk.first, most: chunk.first + chunk.count - 1, go })),
    patterns(page, chunk),
  ];
}

function patterns(page, chunk) {
  const { story, state, store } = page;
  const found = weightsOf(page, "prefill", chunk.step, state.layer);
  if (found.waiting) return h("p", { class: "waiting" }, "The attention weights are on their way.");
  if (!found.ready) return gap(found.why);
  const attention = found.ready;
  const tokens = story.tokens.slice(0, chunk.first + chunk.count);
  const position = rowPosition(state, chunk);
  const row = position - chunk.first;
  const common = { attention, head: state.head, layer: state.layer, row, position, story };
  return [
    figure({
      key: "prefill-heads",
      picture: [headMaps({ attention, picked: state.head, first: chunk.first, go: (changes) => store.go(changes) }), legend(1, { signed: false, text: percent })],
      sentence: `All ${attention.heads} heads of layer ${state.layer}, side by side: a row is a position that looks, a column one that is looked at. The crossed half is the causal mask: of ${count(attention.rows * attention.positions)} pairs, ${count(hidden(chunk, attention))} lie in the future and are not seen.`,
    }),
    figure({
      key: "prefill-map",
      picture: h("div", { class: "beside" }, bigMap(page, attention, chunk, row, tokens), lookedAt({ ...common, tokens: tokens.slice(0, position + 1), isNew: position })),
      sentence: [attentionSentence(common), ` It may see ${plural(position + 1, "position")}, itself included.`],
      table: {
        columns: ["Position", "Token", "Weight"],
        rows: tokens.slice(0, position + 1).map((token, i) => [i, h("bdi", {}, axisLabel(token)), percent(attention.weight(state.head, row, i))]),
      },
    }),
    h("p", {}, h("button", { type: "button", class: "quiet", onclick: () => store.go({ look: found.path }) }, "Look closer at these weights"), " ", h("span", { class: "badge" }, found.badge)),
  ];
}

/** The position whose row is marked: the picked token where it belongs to this chunk, else the last one. */
function rowPosition(state, chunk) {
  const last = chunk.first + chunk.count - 1;
  return state.token === null ? last : Math.max(chunk.first, Math.min(state.token, last));
}

function hidden(chunk, attention) {
  let pairs = 0;
  for (let row = 0; row < attention.rows; row++) pairs += Math.max(0, attention.positions - (chunk.first + row + 1));
  return pairs;
}

function bigMap({ state, store }, attention, chunk, row, tokens) {
  const cell = Math.max(2, Math.min(26, Math.floor(420 / Math.max(attention.rows, attention.positions))));
  const pick = (index) => store.go({ token: index });
  return h(
    "div",
    { class: "big-map" },
    attention.rows <= 40 && h("ol", { class: "row-labels", style: { "--cell": `${cell}px` } }, tokens.slice(chunk.first).map((token, i) =>
      h("li", {}, h("button", { type: "button", "aria-pressed": i === row ? "true" : "false", onclick: () => pick(chunk.first + i) },
        h("span", { class: "unseen" }, `row of position ${chunk.first + i}: `), h("bdi", {}, axisLabel(token)))))),
    heatMap({
      rows: attention.rows,
      columns: attention.positions,
      cell,
      most: 1,
      mark: row,
      label: `attention weights of head ${state.head}`,
      at: (r, position) => (position > chunk.first + r ? -Infinity : attention.weight(state.head, r, position)),
    }),
  );
}
