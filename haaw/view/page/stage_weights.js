// The weights: where a model's numbers lie, layer by layer.

import { h } from "./dom.js";
import { fact, facts, figure } from "./figure.js";
import { bytes, count, many, percent } from "./numbers.js";
import { bar } from "./stage_start.js";

export function weightsStage({ story }) {
  const { model } = story;
  const groups = grouped(model.weights ?? []);
  const total = groups.reduce((sum, each) => sum + each.bytes, 0);
  const values = (model.weights ?? []).reduce((sum, each) => sum + each.shape.reduce((a, b) => a * b, 1), 0);
  const most = Math.max(...groups.map((each) => each.bytes), 1);
  return [
    h("p", {}, "A model is a list of arrays of numbers. They were learned once and never change while it answers: every token, of every prompt, goes through the same ones."),
    facts(
      fact(many(values), "numbers"),
      fact(bytes(total), "in memory"),
      fact(model.layers, "layers"),
      fact(`${model.query_heads} on ${model.kv_heads}`, "query on key/value heads"),
      fact(count(model.vocabulary_size), "tokens in the vocabulary"),
    ),
    figure({
      key: "weights",
      picture: h("div", { class: "bars" }, groups.map((each) =>
        h("div", { class: "bar-row" },
          h("span", { class: "bar-name" }, each.name),
          bar(each.bytes / most, each.attention ? each.attention / most : null),
          h("span", { class: "tabular" }, bytes(each.bytes))))),
      sentence: sentence(groups, total, model),
      table: {
        columns: ["Array", "Shape", "Type", "Bytes"],
        rows: (model.weights ?? []).map((each) => [each.name, each.shape.join(" × "), each.dtype, count(each.bytes)]),
      },
      title: `All ${count((model.weights ?? []).length)} arrays as a table`,
    }),
  ];
}

/** Arrays by layer, and those outside of the layers on their own. */
function grouped(weights) {
  const groups = new Map();
  for (const each of weights) {
    const layer = /^layers\.(\d+)\.(\w+)/.exec(each.name);
    const name = layer ? `layer ${layer[1]}` : each.name;
    const group = groups.get(name) ?? { name, bytes: 0, attention: 0 };
    group.bytes += each.bytes;
    if (layer && layer[2] === "attention") group.attention += each.bytes;
    groups.set(name, group);
  }
  return [...groups.values()];
}

function sentence(groups, total, model) {
  const layers = groups.filter((each) => each.name.startsWith("layer "));
  const inLayers = layers.reduce((sum, each) => sum + each.bytes, 0);
  const attention = layers.reduce((sum, each) => sum + each.attention, 0);
  if (!inLayers) return `All arrays together hold ${bytes(total)}.`;
  return (
    `${percent(inLayers / total)} of ${bytes(total)} lies in the ${model.layers} layers; within a layer ` +
    `${percent(attention / inLayers)} belongs to attention (in colour) and the rest to the MLP.`
  );
}
