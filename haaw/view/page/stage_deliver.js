// Delivering: what may be shown, when. A fragment is not a token, and a token is not a word.

import { h } from "./dom.js";
import { fact, facts, figure, gap, picker } from "./figure.js";
import { count, duration, plural } from "./numbers.js";
import { lastStep } from "./state.js";
import { clipped, quoted, tokenRow, visible } from "./token_text.js";

const NEIGHBOURS = 6;

export function deliverStage(page) {
  const { story, state, store } = page;
  const found = story.deliveries.findIndex((each) => each.step === state.step);
  const all = story.deliveries;
  const now = all[found] ?? null;
  return [
    h("p", {}, "The token is a number again; its bytes become text. Text is handed over as soon as nothing that may follow can change it: bytes of an unfinished character wait, and so does text that could be the beginning of a stop string."),
    h("div", { class: "pickers" }, picker({ name: "step", label: "step", value: state.step, most: lastStep(story), go: (changes) => store.go(changes) })),
    now ? delivered(page, found, now) : gap("Nothing was handed over in this step."),
  ];
}

function delivered({ story, store }, index, now) {
  const before = story.text.slice(0, now.shown_before);
  const shown = now.shown_before + now.text.length;
  return [
    figure({
      key: "screen",
      picture: h("div", { class: "screen" }, h("bdi", { class: "whole" },
        h("span", { class: "asked" }, clipped(story.prompt.form === "raw" ? story.prompt.text : "", 300)),
        before, h("mark", {}, now.text), now.held_text && h("span", { class: "held" }, now.held_text))),
      sentence: sentence(now),
    }),
    facts(fact(count(shown), "characters on screen"), fact(duration(now.at_ns - story.intervals[0]?.[1]), "since prefill began"), fact(count(now.held_bytes.length / 2), "bytes held back"), fact(count([...now.held_text].length), "characters held back")),
    threeKinds(story, index, store),
  ];
}

function sentence(now) {
  const parts = [now.text ? ["This step hands over ", quoted(now.text), ` (${plural([...now.text].length, "character")}).`] : "This step hands over nothing."];
  if (now.held_bytes) parts.push(` ${plural(now.held_bytes.length / 2, "byte")} (${now.held_bytes.match(/../g).join(" ")}) of an unfinished character wait.`);
  if (now.held_text) parts.push(" ", quoted(now.held_text), " waits: it could be the beginning of a stop string.");
  return parts;
}

/** The same stretch of the answer as tokens, as fragments and as words. */
function threeKinds(story, index, store) {
  const from = Math.max(0, index - NEIGHBOURS), to = Math.min(story.deliveries.length, index + NEIGHBOURS + 1);
  const near = story.deliveries.slice(from, to);
  const tokens = story.tokens.slice(story.prompt_tokens + from, story.prompt_tokens + to);
  const start = near[0].shown_before, end = near[near.length - 1].shown_before + near[near.length - 1].text.length;
  const words = story.text.slice(start, end).match(/\S+/gu) ?? [];
  return figure({
    key: "three-kinds",
    picture: h("div", { class: "kinds" },
      h("h3", {}, "Tokens"),
      tokenRow({ tokens, first: from, picked: index, label: "tokens of the answer", go: (changes) => changes.token !== null && store.go({ step: changes.token, token: null }) }),
      h("h3", {}, "Fragments"),
      h("ol", { class: "tokens", "aria-label": "fragments" }, near.map((each, i) => h("li", {}, h("span", { class: `chip plain${from + i === index ? " picked" : ""}` }, h("bdi", {}, clipped(visible(each.text)) || "∅"))))),
      h("h3", {}, "Words"),
      h("ol", { class: "tokens", "aria-label": "words" }, words.map((each) => h("li", {}, h("span", { class: "chip plain" }, h("bdi", {}, clipped(each))))))),
    sentence: `Around this step ${plural(tokens.length, "token")} became ${plural(near.filter((each) => each.text).length, "fragment")} with text and ${plural(words.length, "word")}. ∅: nothing could be shown yet.`,
    table: { columns: ["Step", "Fragment", "Bytes held", "Text held"], rows: near.map((each) => [each.step, h("bdi", {}, clipped(visible(each.text))), each.held_bytes, h("bdi", {}, clipped(visible(each.held_text)))]) },
  });
}

