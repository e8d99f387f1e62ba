// The page: reads the story, renders every stage from (story, state), and lets the controls change the state.

import { closer } from "./closer.js";
import { Controls } from "./controls.js";
import { h, morph, paint } from "./dom.js";
import { gap } from "./figure.js";
import { fileOpener } from "./open_file.js";
import { AskingProvider } from "./provider_asking.js";
import { HttpProvider } from "./provider_http.js";
import { InlineProvider } from "./provider_inline.js";
import { Scrolling } from "./scrolling.js";
import { cacheStage } from "./stage_cache.js";
import { chooseStage } from "./stage_choose.js";
import { decodeStage } from "./stage_decode.js";
import { deliverStage } from "./stage_deliver.js";
import { endStage } from "./stage_end.js";
import { prefillStage } from "./stage_prefill.js";
import { promptStage } from "./stage_prompt.js";
import { startStage } from "./stage_start.js";
import { tokensStage } from "./stage_tokens.js";
import { weightsStage } from "./stage_weights.js";
import { BEGINNING, STAGES, Store, fromLink, settled, toLink } from "./state.js";
import { overview, timeline } from "./timeline.js";
import { shortened } from "./token_text.js";
import { Values } from "./values.js";

const RENDERERS = {
  start: startStage, weights: weightsStage, prompt: promptStage, tokens: tokensStage, prefill: prefillStage,
  cache: cacheStage, decode: decodeStage, choose: chooseStage, deliver: deliverStage, end: endStage,
};

class Page {
  constructor(story, provider) {
    this.story = story;
    this.store = new Store(story, fromLink(location.hash, BEGINNING));
    this.values = new Values(provider, () => this.later());
    this.sections = new Map();
    this.drawn = new Map();
    this.build();
    if (provider.slices) this.head.after(fileOpener(provider.slices, () => this.forget()));
    this.controls = new Controls(this.store, this.bar, this.help);
    this.scrolling = new Scrolling(this.store, this.sections);
    this.store.listen((how) => this.changed(how));
    addEventListener("hashchange", () => this.store.go(fromLink(location.hash, this.store.state), "link"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.renderAll());
    this.renderAll();
    requestAnimationFrame(() => performance.mark("first picture"));
    if (location.hash) this.scrolling.toStage("jump");
    setTimeout(() => this.warm(0), 50);
  }

  /** Renders the stages that nobody has come near to, one after another, so that the page has its full length. */
  warm(index) {
    if (index >= STAGES.length) {
      document.documentElement.dataset.warm = "true";
      return;
    }
    if (!this.drawn.has(STAGES[index].id)) this.renderStage(STAGES[index].id);
    setTimeout(() => this.warm(index + 1), 0);
  }

  build() {
    this.head = h("div", {});
    this.list = h("nav", { "aria-label": "Stages", class: "stages" }, h("ol", {}));
    this.bar = h("div", { class: "bar-at-bottom", role: "region", "aria-label": "Playback" }, h("div", {}));
    this.help = h("dialog", { class: "help", "aria-labelledby": "help-title" });
    this.look = h("dialog", { class: "closer", "aria-labelledby": "closer-title" }, h("div", {}), h("button", { type: "button", class: "quiet", onclick: () => this.look.close() }, "Close"));
    this.look.addEventListener("close", () => this.store.state.look !== null && this.store.go({ look: null }));
    for (const { id, title } of STAGES) {
      const section = h("section", { id, class: "stage", "aria-labelledby": `${id}-title` },
        h("h2", { id: `${id}-title` }, h("span", { class: "number", "aria-hidden": "true" }, STAGES.findIndex((each) => each.id === id) + 1), title), h("div", {}));
      this.sections.set(id, section);
    }
    document.body.append(
      h("header", { class: "top" }, this.head),
      h("div", { class: "columns" }, this.list, h("main", {}, [...this.sections.values()])),
      this.bar, this.help, this.look,
    );
    this.watchSections();
  }

  /** A stage is rendered when it comes near the window; values are asked for only then. */
  watchSections() {
    this.near = new Set();
    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) this.near.add(target.id);
        else this.near.delete(target.id);
        if (isIntersecting) this.renderStage(target.id);
      }
    }, { rootMargin: "60% 0px" });
    for (const section of this.sections.values()) watch.observe(section);
  }

  changed(how) {
    if (how !== "play" && how !== "scroll" && this.controls.playing) this.controls.stop();
    try {
      history.replaceState(null, "", toLink(this.store.shown));
    } catch {
      // Some browsers allow no such change to a file's address; the page works without.
    }
    this.renderAll();
  }

  /** A file was opened: what was not to be had may be there now. */
  forget() {
    this.values.forgetGaps();
    this.later();
  }

  /** After an answer has arrived: all that came in the meantime is rendered at once. */
  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.drawn.clear();
      this.renderAll();
    });
  }

  renderAll() {
    const shown = this.store.shown;
    document.documentElement.dataset.state = toLink(shown);
    this.renderHead();
    this.renderList();
    this.controls.render();
    for (const { id } of STAGES) if (this.near.has(id) || id === shown.stage) this.renderStage(id);
    this.renderLook(shown.look);
    document.documentElement.dataset.waiting = String(this.values.waiting);
  }

  renderHead() {
    const { story } = this;
    const state = this.store.shown;
    morph(this.head, h("div", {},
      h("p", { class: "eyebrow" }, "HAAW · one request, followed"),
      h("h1", {}, h("bdi", {}, shortened(titleOf(story), 90))),
      h("p", { class: "answer" }, h("bdi", {}, shortened(story.text, 240))),
      overview(story),
      timeline({ story, state }),
      story.budget?.length > 0 && h("p", { class: "gap" }, story.budget.join(" ")),
      Object.keys(story.missing).length > 0 && h("p", { class: "gap" }, `Not in this trace: ${Object.values(story.missing).join(" ")}`)));
    this.head = document.querySelector("header.top > div");
  }

  renderList() {
    const state = this.store.shown;
    const items = STAGES.map(({ id, short }, i) =>
      h("li", {}, h("a", { href: toLink(settled({ ...state, stage: id, look: null }, this.story)), "aria-current": id === state.stage ? "step" : null, onclick: (event) => this.follow(event, id) },
        h("span", { class: "number", "aria-hidden": "true" }, i + 1), short)));
    morph(this.list.firstElementChild, h("ol", {}, items));
  }

  follow(event, stage) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.store.go({ stage, look: null }, "list");
  }

  /** A stage as it is for the present state. An error in one leaves the others as they are. */
  renderStage(id) {
    const state = settled({ ...this.store.state, stage: id }, this.story);
    const key = toLink({ ...state, look: null });
    const section = this.sections.get(id);
    if (this.drawn.get(id) === key && !section.querySelector(".waiting")) return;
    let content;
    try {
      const why = this.story.missing[id];
      content = why ? gap(why) : RENDERERS[id]({ story: this.story, state, store: this.store, values: this.values });
    } catch (error) {
      content = gap(`This part cannot be shown: ${error.message}. The rest of the page still works.`);
      console.warn(error);
    }
    const height = this.values.mayBeLate ? section.getBoundingClientRect().height : 0;
    morph(section.lastElementChild, h("div", {}, content));
    // What is on its way leaves its place free, so that nothing below goes up and comes down again.
    if (section.querySelector(".waiting")) section.style.minHeight = `${height}px`;
    else section.removeAttribute("style");
    paint(section);
    this.drawn.set(id, key);
    document.documentElement.dataset.waiting = String(this.values.waiting);
  }

  renderLook(path) {
    if (path === null) {
      if (this.look.open) this.look.close();
      return;
    }
    const page = { story: this.story, state: this.store.shown, store: this.store, values: this.values };
    let content;
    try {
      content = closer(page, path);
    } catch (error) {
      content = gap(`This value cannot be shown: ${error.message}.`);
    }
    morph(this.look.firstElementChild, h("div", {}, content));
    if (!this.look.open) this.look.showModal();
    paint(this.look);
  }
}

/** What is inside a page; in a notebook, what is not there is asked for. */
function providerOf(bundle) {
  return bundle.asks ? new AskingProvider(bundle) : new InlineProvider(bundle);
}

/** What the person asked: the last message in a chat, else the prompt. */
function titleOf({ prompt }) {
  const asked = prompt.messages.filter((each) => each.role === "user");
  return (asked.length ? asked[asked.length - 1].content : prompt.text) || "A request";
}

async function begin() {
  const plain = document.getElementById("plain");
  try {
    const inside = document.getElementById("bundle");
    const provider = inside ? providerOf(JSON.parse(inside.textContent)) : new HttpProvider();
    const story = await provider.story();
    plain.remove();
    window.haaw = new Page(story, provider);
  } catch (error) {
    plain.textContent = `This page could not be built: ${error.message}`;
    document.body.prepend(plain);
    console.warn(error);
  }
}

begin();
