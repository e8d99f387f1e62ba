// Scrolling sets the stage, and the stage scrolls the page; each must not answer the other.
//
// After a control has moved the page, `aim` holds its stage: pictures that are drawn on the way change the length of
// the page, and what crosses the line then is nobody's wish. The reader's own scrolling lets go of it.

const LINE = 0.455; // of the window's height: the stage that lies there is the one that is read
const FAR = 3; // windows; a longer way is jumped, since a ride past everything helps nobody
const SETTLES_MS = 1200;

export class Scrolling {
  constructor(store, sections) {
    this.store = store;
    this.sections = sections;
    this.aim = null;
    this.until = 0;
    const observer = new IntersectionObserver((entries) => this.crossed(entries), { rootMargin: "-45% 0px -54% 0px" });
    for (const section of sections.values()) observer.observe(section);
    for (const kind of ["wheel", "touchmove"]) addEventListener(kind, () => this.release(), { passive: true });
    addEventListener("keydown", (event) => /^(PageUp|PageDown|ArrowUp|ArrowDown| )$/.test(event.key) && !event.shiftKey && this.release());
    addEventListener("scroll", () => this.scrolled(), { passive: true });
    addEventListener("scrollend", () => this.align());
    store.listen((how) => how !== "scroll" && this.toStage(how));
  }

  crossed(entries) {
    const entered = entries.find((each) => each.isIntersecting);
    if (entered && this.aim === null) this.reached(entered.target.id);
  }

  reached(stage) {
    if (stage !== this.store.state.stage) this.store.go({ stage }, "scroll");
  }

  /** A scroll long after a control's is the reader's, by the scroll bar for one. */
  scrolled() {
    if (this.aim === null || performance.now() < this.until) return;
    this.release();
  }

  /** Brings the stage of the state into view, unless it already crosses the line. */
  toStage(how) {
    const section = this.sections.get(this.store.state.stage);
    const { top, bottom } = section.getBoundingClientRect();
    const line = innerHeight * LINE;
    if (how !== "jump" && top <= line && bottom > line) {
      if (this.aim !== null) this.aim = this.store.state.stage;
      return;
    }
    this.aim = this.store.state.stage;
    this.until = performance.now() + SETTLES_MS;
    const still = Math.abs(top) > innerHeight * FAR || how === "jump" || how === "slider" || matchMedia("(prefers-reduced-motion: reduce)").matches;
    section.scrollIntoView({ block: "start", behavior: still ? "instant" : "smooth" });
    if (still) requestAnimationFrame(() => requestAnimationFrame(() => this.align()));
  }

  /** Corrects the place, where pictures that were drawn meanwhile have moved it. */
  align() {
    if (this.aim === null) return;
    const section = this.sections.get(this.aim);
    const room = document.documentElement.scrollHeight - innerHeight - scrollY;
    const { top } = section.getBoundingClientRect();
    if (Math.abs(top) > 2 && (top < 0 || room > 2)) section.scrollIntoView({ block: "start", behavior: "instant" });
  }

  /** The reader scrolls: what lies at the line counts again. */
  release() {
    if (this.aim === null) return;
    this.aim = null;
    requestAnimationFrame(() => this.locate());
  }

  locate() {
    if (this.aim !== null) return;
    const line = innerHeight * LINE;
    for (const [stage, section] of this.sections) {
      const { top, bottom } = section.getBoundingClientRect();
      if (top <= line && bottom > line) this.reached(stage);
    }
  }
}
