// Ways to move through the story: buttons, a slider, keys, play. All of them only change the one state.

import { h, morph } from "./dom.js";
import { duration } from "./numbers.js";
import { STAGES, lastStep } from "./state.js";

const SHOWN_FOR_S = { decode: 1.2, choose: 1.2, deliver: 1.2 };
const ELSE_S = 4;

export class Controls {
  constructor(store, bar, help) {
    this.store = store;
    this.bar = bar;
    this.help = help;
    this.timer = null;
    this.singleKeys = true;
    document.addEventListener("keydown", (event) => this.key(event));
    fillHelp(help, this);
  }

  get playing() {
    return this.timer !== null;
  }

  play() {
    this.stop();
    if (this.store.moment >= this.store.moments.length - 1) this.store.goToMoment(0, "play");
    const next = () => {
      if (this.store.moment >= this.store.moments.length - 1) return this.stop();
      this.store.goToMoment(this.store.moment + 1, "play");
      this.timer = setTimeout(next, this.seconds() * 1000);
    };
    this.timer = setTimeout(next, this.seconds() * 1000);
    this.render();
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
    this.render();
  }

  /** How long the present moment stays on the screen while playing. */
  seconds() {
    return SHOWN_FOR_S[this.store.moments[this.store.moment].stage] ?? ELSE_S;
  }

  render() {
    const { store } = this;
    const index = store.moment, last = store.moments.length - 1;
    const button = (label, sign, go, disabled) => h("button", { type: "button", "aria-label": label, title: label, onclick: go, disabled }, h("span", { "aria-hidden": "true" }, sign));
    morph(this.bar.firstElementChild, h(
      "div",
      { class: "transport" },
      button("Previous", "‹", () => this.by(-1), index === 0),
      button(this.playing ? "Pause" : "Play", this.playing ? "❚❚" : "▶", () => (this.playing ? this.stop() : this.play()), false),
      button("Next", "›", () => this.by(1), index === last),
      h("input", { type: "range", min: 0, max: last, step: 1, value: index, "aria-label": "Moment of the story", "aria-valuetext": this.where(), oninput: (event) => store.goToMoment(Number(event.target.value), "slider") }),
      h("div", { class: "said" }, h("span", { class: "where" }, this.where()), h("span", { class: "speed tabular" }, this.speed())),
      button("Keys and help", "?", () => this.showHelp(), false),
    ));
  }

  where() {
    const { stage, step } = this.store.shown;
    const title = STAGES.find((each) => each.id === stage).title;
    const last = lastStep(this.store.story);
    return ["cache", "decode", "choose", "deliver"].includes(stage) && last ? `${title}, step ${step} of ${last}` : title;
  }

  /** What a second on the screen stands for; never a claim about tokens a second. */
  speed() {
    const { took_ns: took } = this.store.moments[this.store.moment];
    if (took === null) return this.playing ? "this moment has no time of its own" : "";
    if (!this.playing) return `took ${duration(took)}`;
    return `1 s of this = ${duration(took / this.seconds())} of the run`;
  }

  by(steps) {
    this.store.goToMoment(this.store.moment + steps, "button");
  }

  showHelp() {
    if (!this.help.open) this.help.showModal();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.nodeName) && event.key !== "?") return;
    const action = this.action(event);
    if (!action) return;
    event.preventDefault();
    action();
  }

  action({ key, shiftKey, target }) {
    const { store } = this;
    const { step, layer, head } = store.shown;
    if (key === "ArrowRight") return shiftKey ? () => store.go({ step: step + 1 }) : () => this.by(1);
    if (key === "ArrowLeft") return shiftKey ? () => store.go({ step: Math.max(0, step - 1) }) : () => this.by(-1);
    if (shiftKey && key === "ArrowUp") return () => store.go({ layer: layer + 1 > store.story.model.layers - 1 ? layer : layer + 1 });
    if (shiftKey && key === "ArrowDown") return () => store.go({ layer: Math.max(0, layer - 1) });
    if (key === "Home") return () => store.goToMoment(0, "key");
    if (key === "End") return () => store.goToMoment(store.moments.length - 1, "key");
    if (!this.singleKeys) return null;
    if (key === "?") return () => this.showHelp();
    if (/^[0-9]$/.test(key)) return () => store.go({ stage: STAGES[(Number(key) + 9) % 10].id, look: null }, "key");
    if (key === "h" || key === "H") return () => store.go({ head: key === "H" ? Math.max(0, head - 1) : Math.min(head + 1, store.story.model.query_heads - 1) });
    if (key === " " && target === document.body) return () => (this.playing ? this.stop() : this.play());
    return null;
  }
}

const KEYS = [
  ["← →", "the moment before, the moment after"],
  ["Shift ← →", "one step back or on, in the same stage"],
  ["Shift ↓ ↑", "one layer down or up"],
  ["h, Shift h", "the next head, the one before"],
  ["Home, End", "the beginning, the end"],
  ["1 … 9, 0", "the first to the tenth stage"],
  ["Space", "play and pause"],
  ["?", "this list"],
];

function fillHelp(help, controls) {
  const off = h("input", { type: "checkbox", id: "single-keys", checked: true, onchange: (event) => (controls.singleKeys = event.target.checked) });
  help.append(
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("p", {}, off, " ", h("label", { for: "single-keys" }, "Keys that are a single letter, digit or ? work")),
    h("p", { class: "note" }, "Scrolling tells the whole story as well. A link keeps where you are: copy it from the address bar."),
    h("form", { method: "dialog" }, h("button", { class: "quiet" }, "Close")),
  );
}
