// Where the reader stands in the story. Everything on the page follows from this and from the story alone.

/** The stages, in the order in which a request goes through them. */
export const STAGES = [
  { id: "start", title: "Power on", short: "Start" },
  { id: "weights", title: "Weights", short: "Weights" },
  { id: "prompt", title: "Preparing the prompt", short: "Prompt" },
  { id: "tokens", title: "Tokens", short: "Tokens" },
  { id: "prefill", title: "Prefill", short: "Prefill" },
  { id: "cache", title: "The cache", short: "Cache" },
  { id: "decode", title: "A decode step", short: "Decode" },
  { id: "choose", title: "Choosing", short: "Choose" },
  { id: "deliver", title: "Delivering", short: "Deliver" },
  { id: "end", title: "The end", short: "End" },
];

const NAMES = STAGES.map((each) => each.id);

/**
 * The state at the beginning. `token` null: none picked. `look`: the path of a value that is open, whose numbers are
 * shown from `row` and `column` on.
 */
export const BEGINNING = { stage: "start", step: 0, layer: 0, head: 0, token: null, look: null, row: 0, column: 0 };

/** What a link means that leaves these out. */
const UNSAID = { token: null, row: 0, column: 0 };

/** The state that a link names; whatever it does not name comes from `state`. */
export function fromLink(hash, state) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const next = { ...state };
  if (NAMES.includes(given.get("stage"))) next.stage = given.get("stage");
  for (const name of ["step", "layer", "head", "token", "row", "column"]) {
    if (/^\d{1,9}$/.test(given.get(name) ?? "")) next[name] = Number(given.get(name));
    else if (given.has("stage") && name in UNSAID) next[name] = UNSAID[name];
  }
  if (given.has("stage")) next.look = given.get("look");
  return next;
}

/** The link to a state. */
export function toLink(state) {
  const { stage, step, layer, head, token, look, row, column } = state;
  const parts = [`stage=${stage}`, `step=${step}`, `layer=${layer}`, `head=${head}`];
  if (token !== null) parts.push(`token=${token}`);
  if (look !== null) parts.push(`look=${encodeURIComponent(look)}`);
  if (look !== null && (row || column)) parts.push(`row=${row}`, `column=${column}`);
  return `#${parts.join("&")}`;
}

/** The state as it can be shown: numbers within what the story has. A decode step is at least 1. */
export function settled(state, story) {
  const model = story.model ?? {};
  const last = lastStep(story);
  const chunks = story.steps.filter((each) => each.stage === "prefill").length;
  const range = { prefill: [0, chunks - 1], decode: [Math.min(1, last), last] }[state.stage] ?? [0, last];
  return {
    ...state,
    step: clamp(state.step, ...range),
    layer: clamp(state.layer, 0, (model.layers ?? 1) - 1),
    head: clamp(state.head, 0, (model.query_heads ?? 1) - 1),
    token: state.token === null ? null : clamp(state.token, 0, story.tokens.length - 1),
  };
}

/** The number of the last decode step; 0 where there is none. */
export function lastStep(story) {
  return story.steps.reduce((most, each) => (each.stage === "decode" ? Math.max(most, each.step) : most), 0);
}

export function clamp(value, least, most) {
  return Math.max(least, Math.min(value, Math.max(least, most)));
}

/**
 * The moments of the story in the order in which they happened. `took_ns` is how long a moment took in the run,
 * null where the trace does not time it.
 */
export function moments(story) {
  const list = [];
  const startup = (story.startup ?? []).filter((each) => each.depth === 0);
  list.push({ stage: "start", step: 0, took_ns: startup.length ? total(startup) : null });
  list.push({ stage: "weights", step: 0, took_ns: null });
  list.push({ stage: "prompt", step: 0, took_ns: null });
  list.push({ stage: "tokens", step: 0, took_ns: phaseTime(story, "prepare") });
  for (const each of story.steps) {
    if (each.stage === "prefill") list.push({ stage: "prefill", step: each.step, took_ns: spent(story, each, "prefill") });
  }
  list.push({ stage: "cache", step: 0, took_ns: null });
  for (const each of story.steps) {
    if (each.stage === "decode") list.push({ stage: "decode", step: each.step, took_ns: spent(story, each, "decode") });
    if (each.token === null) continue;
    const step = each.stage === "decode" ? each.step : 0;
    list.push({ stage: "choose", step, took_ns: each.choose_ns ?? null });
    list.push({ stage: "deliver", step, took_ns: spent(story, each, "deliver") });
  }
  list.push({ stage: "end", step: lastStep(story), took_ns: null });
  return list;
}

function total(rows) {
  return rows.reduce((sum, each) => sum + each.took_ns, 0);
}

function phaseTime(story, phase) {
  return story.phases.find((each) => each.phase === phase)?.took_ns ?? null;
}

function spent(story, step, phase) {
  const index = story.steps.indexOf(step);
  const own = story.intervals.filter((each) => each[0] === phase && each[3] === index);
  return own.length ? own.reduce((sum, each) => sum + each[2], 0) : null;
}

/** The index of the moment that a state shows. */
export function momentOf(state, story, list) {
  const shown = settled(state, story);
  const exact = list.findIndex((each) => each.stage === shown.stage && each.step === shown.step);
  return exact >= 0 ? exact : list.findIndex((each) => each.stage === shown.stage);
}

/** Holds the one state, and tells whoever listens of each change. `how` says where a change came from. */
export class Store {
  constructor(story, state) {
    this.story = story;
    this.moments = moments(story);
    this.state = state;
    this.listeners = [];
  }

  /** The state as it is shown. */
  get shown() {
    return settled(this.state, this.story);
  }

  /** The index of the moment that is shown. */
  get moment() {
    return Math.max(0, momentOf(this.state, this.story, this.moments));
  }

  go(changes, how = "control") {
    const before = toLink(this.state);
    const anew = "look" in changes && changes.look !== this.state.look ? { row: 0, column: 0 } : {};
    this.state = { ...this.state, ...anew, ...changes };
    if (toLink(this.state) !== before || how !== "scroll") for (const tell of this.listeners) tell(how);
  }

  goToMoment(index, how = "control") {
    const { stage, step } = this.moments[clamp(index, 0, this.moments.length - 1)];
    this.go({ stage, step, look: null }, how);
  }

  listen(tell) {
    this.listeners.push(tell);
  }
}
