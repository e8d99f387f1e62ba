// Preparing the prompt: who said what, and what a template writes around it.

import { h } from "./dom.js";
import { figure } from "./figure.js";
import { plural } from "./numbers.js";
import { clipped, wholeText } from "./token_text.js";

export function promptStage({ story }) {
  const { prompt } = story;
  const chat = prompt.form === "chat";
  return [
    h("p", {}, chat
      ? "A model reads one text, not a conversation. A template turns the messages into that text: it writes a mark in front of each one that says whose words follow, and one at the end that asks for the answer."
      : "This prompt is taken as it is: no roles, no template. The model goes on where the text ends."),
    chat && h("ol", { class: "messages", "aria-label": "messages" }, prompt.messages.map((each) =>
      h("li", { class: `message ${each.role === "user" ? "user" : each.role === "system" ? "system" : "other"}` },
        h("b", {}, h("bdi", {}, each.role)), wholeText(each.content)))),
    figure({
      key: "prompt",
      picture: h("div", { class: "prompt-text" }, prompt.parts.map((part) =>
        h("span", { class: part.role === null ? "part markup" : "part", "data-role": part.role ?? "template" }, wholeText(part.text)))),
      sentence: sentence(prompt),
      table: { columns: ["Whose", "Characters", "Text"], rows: prompt.parts.map((part) => [
        part.role ?? "template", [...part.text].length, h("bdi", {}, clipped(part.text, 80))]) },
    }),
  ];
}

function sentence(prompt) {
  const length = (parts) => parts.reduce((sum, each) => sum + [...each.text].length, 0);
  const own = length(prompt.parts.filter((each) => each.role !== null));
  const written = length(prompt.parts.filter((each) => each.role === null));
  if (prompt.form !== "chat") return `The text has ${plural(own, "character")}.`;
  return `The text has ${plural(own + written, "character")}: ${own} from ${plural(prompt.messages.length, "message")}, and ${written} (shaded) that the template wrote around them.`;
}
