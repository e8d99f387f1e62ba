// Tokens: the pieces that the model knows. A token is neither a character nor a word.

import { h } from "./dom.js";
import { details, figure } from "./figure.js";
import { count, plural } from "./numbers.js";
import { quoted, tokenRow, tokenText, visible, wholeText } from "./token_text.js";

export function tokensStage({ story, state, store }) {
  const prompt = story.tokens.slice(0, story.prompt_tokens);
  const picked = state.token !== null && state.token < prompt.length ? state.token : null;
  return [
    h("p", {}, "The text is cut into pieces from a fixed list, the vocabulary. From here on the model sees only their numbers. A space usually belongs to the piece behind it (␣)."),
    figure({
      key: "tokens",
      picture: tokenRow({ tokens: prompt, picked, go: (changes) => store.go(changes), label: "tokens of the prompt" }),
      sentence: sentence(story, prompt),
      table: { columns: ["Position", "Token", "Id", "Bytes", "Characters of the prompt"], rows: prompt.map((each, i) => [
        i, tokenText(each), each.id, spaced(each.bytes), each.start === null || each.start === each.end ? "none" : `${each.start} to ${each.end - 1}`]) },
    }),
    h("div", { "aria-live": "polite" }, picked === null
      ? h("p", { class: "note" }, "Pick a token to see what it is made of.")
      : about(prompt[picked], picked, story)),
  ];
}

function about(token, position, story) {
  const same = story.tokens.filter((each) => each.id === token.id).length;
  return h(
    "div",
    { class: "card" },
    h("p", {}, quoted(token.text), ` has the id ${token.id} and stands at position ${position}. It is ${plural(token.bytes.length / 2, "byte")} long`,
      token.whole ? "" : ", which are no whole characters,", ` and occurs ${plural(same, "time")} in prompt and answer.`),
    token.text.length > 48 && details("All of its text", wholeText(visible(token.text), 400)),
    h("p", { class: "tabular bytes-list" }, spaced(token.bytes)),
  );
}

function spaced(hex) {
  const pairs = hex.slice(0, 400).match(/../g) ?? [];
  return pairs.join(" ") + (hex.length > 400 ? ` … (${count(hex.length / 2)} bytes)` : "");
}

function sentence(story, prompt) {
  const text = story.prompt.text;
  const words = text.split(/\s+/).filter(Boolean).length;
  const odd = prompt.filter((each) => !each.whole).length;
  const special = prompt.filter((each) => each.start !== null && each.start === each.end).length;
  return `${plural([...text].length, "character")} and ${plural(words, "word")} became ${plural(prompt.length, "token")}` +
    `${special ? `, ${special} of which stand for no character of the prompt` : ""}` +
    `${odd ? `; ${plural(odd, "token")} hold only a part of a character` : ""}.`;
}
