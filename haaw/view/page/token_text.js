// Tokens as a reader sees them. Their text comes from strangers: it is set as text, isolated from its
// surroundings (right-to-left marks cannot turn the page around), and clipped where it is very long.

import { h } from "./dom.js";
import { count } from "./numbers.js";

const LONGEST = 48;

/** Spaces and line breaks made visible. */
export function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

/** The first characters of a text, and how many there are where it is longer. */
export function clipped(text, longest = LONGEST) {
  const letters = text.length > longest * 4 ? [...text.slice(0, longest * 4)] : [...text];
  if (text.length <= longest || letters.length <= longest) return text;
  return `${letters.slice(0, longest).join("")}… (${count(text.length)} characters)`;
}

/** The first characters of a text, for a headline. */
export function shortened(text, longest) {
  const letters = [...text.slice(0, longest * 4)];
  return letters.length <= longest ? text : `${letters.slice(0, longest).join("").trimEnd()}…`;
}

/** The text of a token, isolated. */
export function tokenText(token) {
  return h("bdi", { class: token.whole === false ? "token bytes" : "token" }, clipped(visible(token.text)) || "∅");
}

/** A word for a token within a sentence: quoted, isolated and short. */
export function quoted(text) {
  return h("bdi", { class: "quoted" }, `“${clipped(visible(text), 24)}”`);
}

/** A long text of a stranger: all of it, with its own line breaks; beyond `longest` it opens on demand. */
export function wholeText(text, longest = 2000) {
  if (text.length <= longest) return h("bdi", { class: "whole" }, text);
  return h(
    "div",
    {},
    h("bdi", { class: "whole" }, `${text.slice(0, longest)}…`),
    h(
      "details",
      { class: "all" },
      h("summary", {}, `All ${count(text.length)} characters`),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "the whole text" }, h("bdi", { class: "whole" }, text)),
    ),
  );
}

/** A row of tokens as buttons; `picked` is the index that is pressed. */
export function tokenRow({ tokens, first = 0, picked, go, note = null, label }) {
  return h(
    "ol",
    { class: "tokens", "aria-label": label },
    tokens.map((token, i) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            class: `chip${first + i === picked ? " picked" : ""}`,
            "aria-pressed": first + i === picked ? "true" : "false",
            onclick: () => go({ token: first + i === picked ? null : first + i }),
          },
          tokenText(token),
          h("small", { class: "tabular" }, note ? note(token, first + i) : token.id),
        ),
      ),
    ),
  );
}
