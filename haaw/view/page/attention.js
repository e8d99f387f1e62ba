// Attention patterns: which earlier positions a head looks at, over the real tokens.

import { h } from "./dom.js";
import { heatMap, largest } from "./heat_map.js";
import { percent } from "./numbers.js";
import { quoted, tokenText, visible } from "./token_text.js";
import { at } from "./values.js";

/** The weights of one step and layer: { ready: [H × T × S values in parts of T] } or { waiting } or { why }. */
export function weightsOf(page, stage, step, layer) {
  const found = page.values.step(stage, step);
  if (!found.ready) return found;
  const own = found.ready.operations.filter((each) => each.op === "softmax" && each.layer === layer && each.outputs.length);
  if (!own.length) return { why: "This trace holds no attention weights for this layer." };
  const answers = own.map((each) => page.values.value(each.outputs[0].path));
  const lacking = answers.find((each) => !each.ready);
  if (lacking) return lacking;
  const ran = page.story.steps.find((each) => each.stage === stage && each.step === step);
  const ready = joined(own, answers.map((each) => each.ready), ran, found.ready.held?.[layer] ?? null);
  return { ready, path: own[0].outputs[0].path, badge: answers[0].ready.badge };
}

/**
 * Blocks of queries, or heads one by one, as one accessor: weight(head, row, position), and whether the row could look
 * there at all. `held`: the position of each row of a ring; null where row s of the cache holds position s.
 */
function joined(operations, values, ran, held) {
  const separate = operations.some((each) => each.head !== null);
  const heads = separate ? Math.max(...operations.map((each) => each.head)) + 1 : values[0].shape[0];
  const parts = separate ? operations.map((each, i) => ({ head: each.head, value: values[i] })) : values.map((value) => ({ head: null, value }));
  const byHead = Array.from({ length: heads }, (_, head) =>
    placed(parts.filter((each) => each.head === null || each.head === head).map(({ head: own, value }) => at(value, "H", own === null ? head : 0)), ran, held));
  const rows = byHead[0].reduce((sum, each) => sum + each.shape[0], 0);
  const positions = ran.first + ran.count;
  const find = (head, row, position) => {
    let left = row;
    for (const block of byHead[head]) {
      const [height, width] = block.shape;
      const column = block.columns.get(position);
      if (left < height) return column === undefined ? null : block.data[left * width + column];
      left -= height;
    }
    return null;
  };
  return { heads, rows, positions, weight: (head, row, position) => find(head, row, position) ?? 0, holds: (row, position) => find(0, row, position) !== null };
}

/** Each block with the column of every position that it sees: those that come last before its own last token. */
function placed(blocks, ran, held) {
  let last = ran.first - 1;
  return blocks.map((block) => {
    const width = block.shape[1];
    last += block.shape[0];
    const until = last;
    const seen = held === null ? Array.from({ length: width }, (_, i) => until + 1 - width + i)
      : ran.count === 1 ? held : held.filter((position) => position <= until).slice(-width);
    return { ...block, columns: new Map(seen.map((position, column) => [position, column])) };
  });
}

/** Small maps of all heads side by side; each is a button that picks the head. */
export function headMaps({ attention, picked, first, go }) {
  const { heads, rows, positions, weight } = attention;
  const cell = Math.max(1, Math.min(8, Math.floor(132 / Math.max(rows, positions))));
  return h("ol", { class: "heads", "aria-label": "attention heads" }, Array.from({ length: heads }, (_, head) =>
    h("li", {}, h("button", { type: "button", class: head === picked ? "head picked" : "head", "aria-pressed": head === picked ? "true" : "false", onclick: () => go({ head }) },
      heatMap({ rows, columns: positions, cell, most: 1, label: `head ${head}`,
        at: (row, position) => (position > first + row ? -Infinity : weight(head, row, position)) }),
      h("small", {}, `head ${head}`)))));
}

/** The tokens that a row may look at, each with its weight; the stronger, the more colour behind it. */
export function lookedAt({ attention, head, row, tokens, isNew }) {
  const weights = Array.from({ length: tokens.length }, (_, position) => attention.weight(head, row, position));
  const most = largest(weights) || 1;
  return h("ol", { class: "looked-at", "aria-label": "weights over the tokens" }, tokens.map((token, position) =>
    h("li", { class: position === isNew ? "new" : "", style: { "--share": (weights[position] / most).toFixed(3) } },
      tokenText(token), h("small", { class: "tabular" }, percent(weights[position])))));
}

/** Positions by falling weight, as { position, weight }. */
function strongest(attention, head, row, count) {
  const all = Array.from({ length: attention.positions }, (_, position) => ({ position, weight: attention.weight(head, row, position) }));
  return all.sort((a, b) => b.weight - a.weight || a.position - b.position).slice(0, count);
}

/** "Head 1 of layer 3 looks most at “her” (41.2 %) and …" */
export function attentionSentence({ attention, head, layer, row, position, story }) {
  const top = strongest(attention, head, row, 3).filter((each) => each.weight > 0);
  const said = top.map((each, i) => [i ? ", " : "", quoted(story.tokens[each.position]?.text ?? "?"), ` (${percent(each.weight)})`]);
  return [`In layer ${layer}, head ${head}, the token at position ${position} `, quoted(story.tokens[position]?.text ?? "?"), ` looks most at `, said, "."];
}

/** A plain label for an axis: the first letters of a token. */
export function axisLabel(token) {
  const letters = [...visible((token?.text ?? "?").slice(0, 40))];
  return letters.length > 10 ? `${letters.slice(0, 9).join("")}…` : letters.join("");
}
