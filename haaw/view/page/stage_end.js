// The end: one state with its evidence, and everything given back.

import { h } from "./dom.js";
import { fact, facts, figure } from "./figure.js";
import { bytes, count, duration, plural } from "./numbers.js";
import { quoted, wholeText } from "./token_text.js";

const REASONS = {
  eos: "The model chose the token that ends a text.",
  stop_token: "A token came at which the request was to stop.",
  stop_string: "A stop string appeared in the text; it is not part of the answer.",
  tool_call: "A tool call was closed.",
  length: "As many tokens came as were allowed, so the answer may stop in the middle.",
  context: "The model's context is full.",
  deadline: "The time was up.",
  cancelled: "Somebody ended the request.",
  failed: "Something went wrong.",
};

export function endStage({ story }) {
  const { finish, release } = story;
  const answer = story.tokens.length - story.prompt_tokens;
  const total = story.phases.reduce((sum, each) => sum + (each.took_ns ?? 0), 0);
  return [
    h("p", { class: "lead" }, h("code", {}, finish.reason), " ", REASONS[finish.reason] ?? ""),
    h("p", {}, finish.complete ? "The answer is whole: its end was meant." : "The answer is partial: its end was not the model's."),
    figure({
      key: "answer",
      picture: h("div", { class: "screen" }, wholeText(story.text)),
      sentence: `The answer has ${plural([...story.text].length, "character")} in ${plural(answer, "token")}${total ? ` and took ${duration(total)}` : ""}.`,
      table: { columns: ["Evidence", "Value"], rows: Object.entries(finish.evidence).map(([name, value]) => [name, typeof value === "string" ? quoted(value) : count(value)]) },
      title: "The evidence for this end",
    }),
    facts(
      release && fact(bytes(release.bytes), "of cache given back"),
      release && fact(bytes(release.useful_bytes), "of it useful"),
      release && fact(count(release.positions), "positions"),
    ),
    h("p", {}, release
      ? "The keys and values are gone, and the weights stay as they were. Nothing of this request is left in the model."
      : "This trace does not say that the cache was given back."),
  ];
}
