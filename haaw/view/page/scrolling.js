// Scrolling sets the stage, and the stage scrolls the page; each must not answer the other.
//
// After a control has moved the page, `aim` holds its stage: pictures that are drawn on the way change the length of
// the page, and what crosses the line then is nobody's wish. The reader's own scrolling lets go of it: by wheel, finger
// or key at once, and by whatever else (the scroll bar, a search in the page) when the page is seen to stand elsewhere.

const LINE = 0.455; // of the window's height: the stage that lies there is the one that is read
const FAR = 3; // windows; a longer way is jumped, since a ride past everything helps nobody
const RIDE_MS = 1200; // a browser that says no "scrollend" has arrived by then

export class Scrolling {
  constructor(store, sections) {
    this.store = store;
    this.sections = sections;
    this.aim = null;
    this.height = null; // of the aim below the beginning of the page, when it was last seen in its place
    this.riding = 0; // until when a smooth scroll may be under way
    const observer = new IntersectionObserver((entries) => this.crossed(entries), { rootMargin: "-45% 0px -54% 0px" });
    const sizes = new ResizeObserver(() => this.align());
    for (const section of sections.values()) {
      observer.observe(section);
      sizes.observe(section);
    }
    for (const kind of ["wheel", "touchmove"]) addEventListener(kind, () => this.release(), { passive: true });
    addEventListener("keydown", (event) => /^(PageUp|PageDown|ArrowUp|ArrowDown| )$/.test(event.key) && !event.shiftKey && this.release());
    addEventListener("scroll", () => this.scrolled(), { passive: true });
    addEventListener("scrollend", () => this.arrived());
    store.listen((how) => how !== "scroll" && this.toStage(how));
  }

  crossed(entries) {
    const entered = entries.find((each) => each.isIntersecting);
    if (entered && this.aim === null) this.reached(entered.target.id);
  }

  reached(stage) {
    if (stage !== this.store.state.stage) this.store.go({ stage }, "scroll");
  }

  /** Brings the stage of the state into view, unless it already crosses the line. */
  toStage(how) {
    const section = this.sections.get(this.store.state.stage);
    const { top, bottom } = section.getBoundingClientRect();
    const line = innerHeight * LINE;
    if (how !== "jump" && top <= line && bottom > line) {
      if (this.aim !== null) this.aimAt(this.store.state.stage);
      return;
    }
    this.aimAt(this.store.state.stage);
    const still = Math.abs(top) > innerHeight * FAR || how === "jump" || how === "slider" || matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.riding = still ? 0 : performance.now() + RIDE_MS;
    section.scrollIntoView({ block: "start", behavior: still ? "instant" : "smooth" });
  }

  aimAt(stage) {
    this.aim = stage;
    this.height = heightOf(this.sections.get(stage));
  }

  /** A scroll that neither a control nor a picture caused is the reader's. */
  scrolled() {
    if (this.aim === null || performance.now() < this.riding) return;
    if (this.isMoved()) this.align();
    else if (this.isElsewhere()) this.release();
  }

  arrived() {
    if (this.riding === 0) return;
    this.riding = 0;
    this.align();
  }

  /** Corrects the place, where pictures that were drawn meanwhile have moved it; some browsers have done so by now. */
  align() {
    if (this.aim === null || performance.now() < this.riding) return;
    if (this.isElsewhere()) this.sections.get(this.aim).scrollIntoView({ block: "start", behavior: "instant" });
    this.height = heightOf(this.sections.get(this.aim));
  }

  /** Whether the aim lies at another height of the page than when it was last in its place. */
  isMoved() {
    return Math.abs(heightOf(this.sections.get(this.aim)) - this.height) > 2;
  }

  /** Whether the page could be scrolled nearer to the aim than it stands. */
  isElsewhere() {
    const padding = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0;
    const off = this.sections.get(this.aim).getBoundingClientRect().top - padding;
    const room = document.documentElement.scrollHeight - innerHeight - scrollY;
    return Math.abs(off) > 2 && (off < 0 || room > 2);
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

function heightOf(section) {
  return section.getBoundingClientRect().top + scrollY;
}
