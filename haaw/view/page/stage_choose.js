// Choosing: from scores to one token, filter by filter.

import { h, svg } from "./dom.js";
import { fact, facts, figure, gap, picker } from "./figure.js";
import { count, digits, element, percent, plural } from "./numbers.js";
import { bar } from "./stage_start.js";
import { lastStep } from "./state.js";
import { quoted, tokenText } from "./token_text.js";

const WORDS = {
  repetition_penalty: "repetition penalty",
  count_penalty: "presence and frequency penalty",
  logit_bias: "bias",
  temper: "temperature",
  candidates: "candidates",
  keep_top_k: "top-k",
  keep_top_p: "top-p",
  keep_min_p: "min-p",
  draw: "draw",
  greedy: "take the greatest",
};

export function chooseStage({ story, state, store, values }) {
  const own = story.steps.find((each) => each.token !== null && (each.stage === "decode" ? each.step : 0) === state.step);
  const found = own ? values.step(own.stage, own.step) : { why: "No token was chosen in this step." };
  return [
    h("p", {}, "The model does not say a word; it gives every token of its vocabulary a score. A plan turns the scores into one choice: some steps change them, some drop candidates, and at the end one is taken."),
    h("div", { class: "pickers" }, picker({ name: "step", label: "step", value: state.step, most: lastStep(story), go: (changes) => store.go(changes) })),
    found.waiting ? h("p", { class: "waiting" }, "The scores are on their way.")
      : found.ready?.choice ? shown(found.ready.choice, story, store)
      : gap(`This choice cannot be shown. ${found.ready?.why_no_choice ?? found.why ?? ""}`),
  ];
}

function shown(choice, story, store) {
  const chosen = choice.candidates.find((each) => each.id === choice.chosen_id);
  return [
    h("p", { class: "lead" }, "Chosen: ", quoted(chosen.text), `, with ${percent(chosen.probability)} the model's number ${count(choice.rank)} of ${count(choice.vocabulary)}.`),
    facts(
      fact(digits(choice.entropy), "bits of doubt (entropy)"),
      fact(survivors(choice), "candidates at the end"),
      choice.uniform !== null && fact(choice.uniform.toFixed(4), "the random number"),
    ),
    figure({
      key: "plan",
      picture: h("ol", { class: "plan" }, choice.plan.map((each) => planRow(each, choice, store))),
      sentence: planSentence(choice),
      table: { columns: ["Step of the plan", "Setting", "Candidates before", "After"], rows: choice.plan.map((each) => [
        WORDS[each.op] ?? each.op, each.setting ?? "none", count(each.before), count(each.after)]) },
    }),
    figure({
      key: "candidates",
      picture: h("ol", { class: "candidates", "aria-label": "candidates" }, choice.candidates.map((each) => candidateRow(each, choice))),
      sentence: `The outline is the model's own probability, the filling what the plan left of it. ${runnersUp(choice)}`,
      table: { columns: ["Token", "Id", "Score", "Model's probability", "After the plan", "Dropped by"], rows: choice.candidates.map((each) => [
        tokenText(each), each.id, element(each.score), percent(each.probability), percent(each.left), each.lost_at === null ? "" : WORDS[choice.plan[each.lost_at].op]]) },
    }),
    choice.uniform !== null && drawFigure(choice, chosen),
  ];
}

function survivors(choice) {
  return count(choice.plan.length > 1 ? choice.plan[choice.plan.length - 1].before : choice.vocabulary);
}

function planRow(each, choice, store) {
  const share = (value) => Math.log(value + 1) / Math.log(choice.vocabulary + 1); // a count that falls from thousands to one
  return h("li", { class: each.after < each.before ? "drops" : "" },
    h("button", { type: "button", onclick: () => store.go({ look: each.path }) }, h("span", { class: "unseen" }, "Look closer at "),
      h("b", {}, WORDS[each.op] ?? each.op), h("small", { class: "tabular" }, each.setting === null || each.setting === undefined ? "" : ` ${each.setting}`)),
    bar(share(each.before), share(each.after)),
    h("span", { class: "tabular" }, each.after === each.before ? count(each.after) : `${count(each.before)} → ${count(each.after)}`));
}

function candidateRow(each, choice) {
  const most = Math.max(...choice.candidates.map((one) => Math.max(one.probability, one.left)));
  const chosen = each.id === choice.chosen_id;
  return h("li", { class: chosen ? "chosen" : each.lost_at !== null ? "lost" : "" },
    tokenText(each),
    bar(each.probability / most, each.left / most, "outlined"),
    h("span", { class: "tabular" }, percent(each.probability)),
    h("small", {}, chosen ? `chosen, ${percent(each.left)} after the plan` : each.lost_at !== null ? `dropped by ${WORDS[choice.plan[each.lost_at].op]}` : `${percent(each.left)} after the plan`));
}

/** The line from 0 to 1, cut by what is left of each candidate in the order of ids, and where the number fell. */
function drawFigure(choice, chosen) {
  const x = (share) => (1000 * share).toFixed(2);
  return figure({
    key: "draw",
    picture: svg("svg", { class: "draw", viewBox: "0 0 1000 40", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", x: 0, y: 12, width: 1000, height: 16 }),
      svg("rect", { class: "fill", x: x(choice.below), y: 12, width: x(Math.max(choice.upto - choice.below, 0.002)), height: 16 }),
      svg("line", { class: "now-line", x1: x(choice.uniform), x2: x(choice.uniform), y1: 2, y2: 38 })),
    sentence: [`The survivors share a line from 0 to 1. `, quoted(chosen.text), ` has the part from ${choice.below.toFixed(4)} to ${choice.upto.toFixed(4)}, and the random number ${choice.uniform.toFixed(4)} fell into it.`],
  });
}

function planSentence(choice) {
  const drops = choice.plan.filter((each) => each.after < each.before && each.op !== "draw" && each.op !== "greedy");
  if (!drops.length) return `No filter dropped a candidate: ${plural(choice.vocabulary, "token")} stood to be chosen.`;
  return `${plural(choice.vocabulary, "token")} to begin with; ${drops.map((each) => `${WORDS[each.op]} left ${count(each.after)}`).join(", ")}. The bars count on a logarithmic scale.`;
}

function runnersUp(choice) {
  const others = choice.candidates.filter((each) => each.id !== choice.chosen_id).slice(0, 2);
  return others.length < 2 ? "" : `The next most likely had ${percent(others[0].probability)} and ${percent(others[1].probability)}.`;
}
