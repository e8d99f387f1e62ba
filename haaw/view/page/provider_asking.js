// In a notebook: what the page does not bring along is asked of the cell that it stands in, which asks Python.

import { InlineProvider } from "./provider_inline.js";
import { floatsFrom } from "./values.js";

const PATIENCE_MS = 60_000;

export class AskingProvider {
  /** `bundle` is as for InlineProvider; its steps and values may be missing. See haaw/view/notebook_view.py. */
  constructor(bundle) {
    this.inside = new InlineProvider(bundle);
    this.bundle = bundle;
    this.waiting = new Map();
    this.asked = 0;
    addEventListener("message", (event) => event.source === parent && this.hear(event.data));
  }

  story() {
    return this.bundle.story;
  }

  calculator() {
    return this.bundle.calculator;
  }

  step(stage, step) {
    if (this.bundle.steps[`${stage} ${step}`]) return this.inside.step(stage, step);
    return this.ask({ what: "step", stage, step });
  }

  value(path, head) {
    if (this.bundle.values[path]) return this.inside.value(path, head);
    return this.ask({ what: "value", path, head }).then((known) => ({ ...known, path, data: floatsFrom(known.data) }));
  }

  ask(question) {
    const number = (this.asked += 1);
    parent.postMessage({ haaw: "ask", number, ...question }, "*"); // the frame has no origin of its own to name
    return new Promise((answer, refuse) => {
      const late = setTimeout(() => this.hear({ haaw: "said", number, said: { error: SILENT } }), PATIENCE_MS);
      this.waiting.set(number, { answer, refuse, late });
    });
  }

  hear(message) {
    const waiting = message?.haaw === "said" && this.waiting.get(message.number);
    if (!waiting) return;
    this.waiting.delete(message.number);
    clearTimeout(waiting.late);
    if (message.said.error) waiting.refuse(new Error(message.said.error));
    else waiting.answer(message.said);
  }
}

const SILENT = "The notebook's kernel does not answer. Run the cell again.";
