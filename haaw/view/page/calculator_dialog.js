// The memory calculator on the page that follows a request: it opens with the shape of the trace's own model. Its
// elements live in a shadow root, so that its names and its style are its own.

import { beginCalculator } from "./calculator.js";
import { recordedSentence } from "./calculator_arithmetic.js";
import { h } from "./dom.js";

/** What the arithmetic says of this request, and the button that opens the calculator. */
export function calculatorOpener(page) {
  const known = page.story.calculator;
  if (!known) return null;
  return h("div", { class: "card calculator-opener" },
    h("p", {}, h("b", {}, "And for other sizes? "), "The same arithmetic answers for any context, any number of sequences and any kind of cache."),
    h("p", { class: "recorded-line" }, known.recorded ? recordedSentence(known.recorded) : known.why),
    h("p", {}, h("button", { type: "button", class: "quiet", onclick: () => open(page) }, "Open the calculator")));
}

let dialog = null;

async function open(page) {
  dialog ??= build();
  if (!dialog.open) dialog.showModal();
  const [host, said] = dialog.querySelectorAll(".calculator-host, .said-of-it");
  if (host.shadowRoot) return;
  try {
    begin(host, await page.values.provider.calculator(), page.story.calculator);
    said.remove();
  } catch (error) {
    said.textContent = `The calculator cannot be opened: ${error.message}`;
  }
}

function build() {
  const made = h("dialog", { class: "calculator", "aria-labelledby": "calculator-title" },
    h("h2", { id: "calculator-title" }, "KV cache calculator"),
    h("div", { class: "calculator-host" }),
    h("p", { class: "said-of-it", role: "status" }, "The calculator is on its way."),
    h("form", { method: "dialog" }, h("button", { class: "quiet" }, "Close")));
  document.body.append(made);
  return made;
}

/** `parts` is { html, css, data } as haaw/view/calculator.py gives it; the HTML is the project's own file. */
function begin(host, parts, own) {
  const style = new CSSStyleSheet();
  style.replaceSync(parts.css);
  const { body } = new DOMParser().parseFromString(parts.html, "text/html");
  const shadow = host.attachShadow({ mode: "open" });
  shadow.adoptedStyleSheets = [style];
  shadow.append(h("div", { class: "embedded" }, [...body.childNodes]));
  beginCalculator(shadow, { ...parts.data, ...own }, { keepsLink: false });
}
