// Scrolling sets the stage, and the stage scrolls the page; each must not answer the other.
//
// After a control has moved the page, `aim` holds its stage: pictures that are drawn on the way change the length of
// the page, and what crosses the line then is nobody's wish. The reader's own scrolling lets go of it: by wheel, finger
// or key at once, and by whatever else (the scroll bar, a search in the page) once the page goes where neither the aim
// nor a picture would have brought it.

const LINE = 0.455; // of the window's height: the stage that lies there is the one that is read
const FAR = 3; // windows; a longer way is jumped, since a ride past everything helps nobody
const RIDE_MS = 1200; // a smooth scroll takes no longer; not every browser says when it has ended

export class Scrolling {
  constructor(store, sections) {
    this.store = store;
    this.sections = sections;
    this.aim = null;
    this.seen = null; // where the aim and the page stood when they were last looked at
    this.ride = null; // the timer of a smooth scroll that is under way
    const observer = new IntersectionObserver(() => this.locate(), { rootMargin: "-45% 0px -54% 0px" });
    const sizes = new ResizeObserver(() => this.align());
    sizes.observe(document.body);
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

  reached(stage) {
    if (stage !== this.store.state.stage) this.store.go({ stage }, "scroll");
  }

  /** Brings the stage of the state into view, unless it already crosses the line. */
  toStage(how) {
    const { stage } = this.store.state;
    const section = this.sections.get(stage);
    const { top, bottom } = section.getBoundingClientRect();
    const line = innerHeight * LINE;
    if (how !== "jump" && top <= line && bottom > line) {
      if (this.aim !== null && this.aim !== stage) this.aimAt(stage); // else a ride may be under way
      return;
    }
    this.aimAt(stage);
    const still = Math.abs(top) > innerHeight * FAR || how === "jump" || how === "slider" || matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!still) this.ride = setTimeout(() => this.arrived(), RIDE_MS);
    section.scrollIntoView({ block: "start", behavior: still ? "instant" : "smooth" });
    this.seen = this.look();
  }

  aimAt(stage) {
    this.endRide();
    this.aim = stage;
    this.seen = this.look();
  }

  endRide() {
    clearTimeout(this.ride);
    this.ride = null;
  }

  arrived() {
    if (this.ride === null) return;
    this.endRide();
    this.align();
  }

  /** Where the page stands, where in the page the aim should stop it, and how much nearer to that it could come. */
  look() {
    const padding = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0;
    const off = this.sections.get(this.aim).getBoundingClientRect().top - padding;
    const room = Math.max(0, document.documentElement.scrollHeight - innerHeight - scrollY);
    return { page: scrollY, aim: off + scrollY, left: off > 0 ? Math.min(off, room) : -off };
  }

  /** A scroll that neither the aim nor a picture explains is the reader's. */
  scrolled() {
    if (this.aim === null) return;
    const before = this.seen, now = this.look();
    this.seen = now;
    if (isNear(now.left)) return;
    const moved = now.aim - before.aim, went = now.page - before.page;
    const byPicture = !isNear(moved) && (isNear(went) || isNear(went - moved)); // which `align` will hear of
    // A ride comes nearer with each of its steps, unless a picture moves the aim.
    const byRide = this.ride !== null && (!isNear(moved) || isNear(went) || now.left < before.left);
    if (!byPicture && !byRide) this.release();
  }

  /** Corrects the place, where pictures that were drawn meanwhile have moved it; some browsers have done so by now. */
  align() {
    if (this.aim === null || this.ride !== null) return;
    if (!isNear(this.look().left)) this.sections.get(this.aim).scrollIntoView({ block: "start", behavior: "instant" });
    this.seen = this.look();
  }

  /** The reader scrolls: what lies at the line counts again. */
  release() {
    if (this.aim === null) return;
    this.endRide();
    this.aim = null;
    requestAnimationFrame(() => this.locate());
  }

  /** The stage at the line, else the one before it; above the first one it is the first. */
  locate() {
    if (this.aim !== null) return;
    const begun = [...this.sections].filter(([, section]) => section.getBoundingClientRect().top <= innerHeight * LINE);
    this.reached(begun.length ? begun[begun.length - 1][0] : this.sections.keys().next().value);
  }
}

/** Positions are rounded to points of the screen, which a zoomed-out page has fewer of. */
function isNear(pixels) {
  return Math.abs(pixels) <= Math.max(2, 2 / devicePixelRatio);
}
