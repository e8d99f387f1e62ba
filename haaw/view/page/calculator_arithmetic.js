// How many bytes a KV cache takes. The same arithmetic as haaw/memory in Python, number for number; a test holds the
// two against each other. Knows nothing of the page.
//
// A setting is an object with the fields of `START`. 0 stands for "none" in window, capacity, latent_width and
// memory_bytes. Every count stays below 2^48 bytes in 32nds of a byte, which a double holds exactly.

export const KINDS = ["dynamic", "static", "sliding", "int8", "int4", "paged", "offloaded"];
export const START = {
  layers: 32,
  kv_heads: 8,
  head_dim: 128,
  bytes_per_element: 2,
  window: 0,
  pattern: "",
  latent_width: 0,
  rope_width: 0,
  sinks: 0,
  block_size: 16,
  context: 8192,
  sequences: 1,
  cache: "needed",
  capacity: 0,
  weights_bytes: 0,
  memory_bytes: 0,
};
export const LIMITS = {
  layers: [1, 10000],
  kv_heads: [1, 10000],
  head_dim: [1, 65536],
  bytes_per_element: [1 / 32, 16],
  window: [0, 2 ** 31],
  latent_width: [0, 1000000],
  rope_width: [0, 65536],
  sinks: [0, 2 ** 20],
  block_size: [1, 2 ** 20],
  context: [1, 2 ** 31 - 1],
  sequences: [1, 2 ** 20],
  capacity: [0, 2 ** 31 - 1],
  weights_bytes: [0, 2 ** 48],
  memory_bytes: [0, 2 ** 48],
};
export const LARGEST_BYTES = 2 ** 48;
const LARGEST_CONTEXT = 2 ** 31 - 1;
const EXACT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 20 });
const FIRST_CAPACITY = 64;
const GROUP_POSITIONS = 32;
const FIRST_GROUPS = 4;
const TABLE_ENTRY_BYTES = 8;
const SLIDING_WINDOW = 256;

// What is wrong with a setting: the field and a sentence, or null.
export function problemOf(setting) {
  for (const [field, [least, most]] of Object.entries(LIMITS)) {
    const value = setting[field];
    const whole = field === "bytes_per_element" ? Number.isInteger(value * 32) : Number.isInteger(value);
    if (typeof value !== "number" || !whole || value < least || value > most) {
      const kind = field === "bytes_per_element" ? "a multiple of 1/32" : "a whole number";
      return { field, sentence: `${field} is ${value}; ${kind} from ${number(least)} to ${number(most)} is needed` };
    }
  }
  if (setting.cache !== "needed" && !kindsOf(setting).includes(setting.cache)) {
    return { field: "cache", sentence: `the cache ${setting.cache} is not known, or not defined for latents` };
  }
  if (setting.rope_width > 0 && setting.latent_width === 0) {
    return { field: "rope_width", sentence: "rope_width needs a latent_width; give both or neither" };
  }
  if (setting.capacity > 0 && setting.capacity < setting.context) {
    return { field: "capacity", sentence: `the capacity ${setting.capacity} is smaller than the context` };
  }
  return patternProblem(setting) ?? totalProblem(setting);
}

function patternProblem(setting) {
  const { pattern, window } = setting;
  const wrong = (sentence) => ({ field: "pattern", sentence });
  if (typeof pattern !== "string" || !/^[fw-]{0,10000}$/.test(pattern)) {
    return wrong("the pattern is made of f (keeps all), w (has the window) and - (no cache)");
  }
  if (pattern.includes("w") && !window) return wrong("the pattern has layers with a window, but no window is given");
  if (window && pattern && !pattern.includes("w")) return wrong("the pattern has no layer that uses the window (w)");
  if (cachingLayers(setting) === 0) return wrong("the pattern leaves no layer with a cache");
  return null;
}

function totalProblem(setting) {
  const parts = [neededBytes(setting, setting.context), ...kindsOf(setting).map((kind) => inKind(setting, kind))];
  const most = Math.max(...parts.map((part) => part.value ?? part.allocated_bytes));
  const chosen = allocatedBytes(setting, setting.context, true) * setting.sequences + setting.weights_bytes;
  if (most <= LARGEST_BYTES && chosen <= LARGEST_BYTES) return null;
  return { field: "context", sentence: "these numbers come to more than 256 TiB; make one of them smaller" };
}

// Layers of each letter: f keeps every position, w only the window's, - has no cache.
export function layersWith(setting, letter) {
  const { layers, pattern, window } = setting;
  if (!pattern) return letter === (window ? "w" : "f") ? layers : 0;
  const count = (text) => text.split(letter).length - 1;
  const whole = Math.floor(layers / pattern.length);
  return whole * count(pattern) + count(pattern.slice(0, layers % pattern.length));
}

export function cachingLayers(setting) {
  return layersWith(setting, "f") + layersWith(setting, "w");
}

// Bytes of one position in one layer.
export function layerBytes(setting) {
  const { latent_width, rope_width, kv_heads, head_dim, bytes_per_element } = setting;
  return (latent_width ? latent_width + rope_width : 2 * kv_heads * head_dim) * bytes_per_element;
}

function tokenBytes(setting) {
  return cachingLayers(setting) * layerBytes(setting);
}

function figure(name, value, unit, formula, numbers) {
  return { name, value, unit, formula, numbers };
}

export function bytesPerToken(setting) {
  const layers = cachingLayers(setting);
  const element = number(setting.bytes_per_element);
  if (setting.latent_width) {
    return figure(
      "a token", tokenBytes(setting), "bytes",
      "layers · (latent_width + rope_width) · bytes_per_element",
      `${layers} · (${setting.latent_width} + ${setting.rope_width}) · ${element}`,
    );
  }
  return figure(
    "a token", tokenBytes(setting), "bytes",
    "2 · layers · kv_heads · head_dim · bytes_per_element",
    `2 · ${layers} · ${setting.kv_heads} · ${setting.head_dim} · ${element}`,
  );
}

export function neededBytes(setting, context) {
  const full = layersWith(setting, "f");
  const windowed = layersWith(setting, "w");
  const held = full * context + windowed * Math.min(context, setting.window);
  const value = Math.ceil(held * layerBytes(setting));
  if (!windowed) {
    return figure(
      "a sequence needs", value, "bytes", "context · bytes per token",
      `${number(context)} · ${bytesPerToken(setting).numbers}`,
    );
  }
  return figure(
    "a sequence needs", value, "bytes",
    "(full_layers · context + windowed_layers · min(context, window)) · bytes per layer and position",
    `(${full} · ${number(context)} + ${windowed} · min(${number(context)}, ${number(setting.window)})) · ` +
      number(layerBytes(setting)),
  );
}

export function kindsOf(setting) {
  return KINDS.filter((kind) => !(setting.latent_width && kind.startsWith("int")));
}

// The capacity that doubling reaches; 0 for none.
export function doubled(count, first = FIRST_CAPACITY) {
  if (count === 0) return 0;
  let capacity = first;
  while (capacity < count) capacity *= 2;
  return capacity;
}

// One sequence in one kind of cache, as its `memory()` reports it. Metadata are scales, which lie within the allocated
// bytes, or a block table, which lies beside them.
export function kindMemory(setting, kind, context, capacity = 0) {
  const token = tokenBytes(setting);
  const plain = (positions, formula, note) => ({
    useful_bytes: Math.ceil(context * token),
    allocated_bytes: Math.ceil(positions * token),
    metadata_bytes: 0,
    formula,
    numbers: `${number(positions)} · ${number(token)}`,
    note,
  });
  const keepsAll = layersWith(setting, "w")
    ? "keeps every position in every layer; the window saves nothing"
    : "";
  switch (kind) {
    case "dynamic":
      return part(kind, plain(
        doubled(context),
        `capacity · bytes per token, capacity doubled from ${FIRST_CAPACITY} until it holds the context`,
        keepsAll,
      ));
    case "static":
      return part(kind, plain(
        capacity || context, "capacity reserved at the start · bytes per token", keepsAll,
      ));
    case "sliding":
      return part(kind, sliding(setting, context, capacity));
    case "int8":
      return part(kind, quantised(setting, context, 8, keepsAll));
    case "int4":
      return part(kind, quantised(setting, context, 4, keepsAll));
    case "offloaded":
      return part(kind, offloaded(setting, context, keepsAll));
    default: {
      const blocks = Math.ceil(context / setting.block_size);
      const paged = plain(
        blocks * setting.block_size, "⌈context / block_size⌉ · block_size · bytes per token", keepsAll,
      );
      paged.metadata_bytes = TABLE_ENTRY_BYTES * blocks;
      paged.numbers = `⌈${number(context)} / ${setting.block_size}⌉ · ${setting.block_size} · ${number(token)}`;
      return part(kind, paged);
    }
  }
}

function part(kind, values) {
  const beside = kind === "paged" ? values.metadata_bytes : 0;
  const total = values.allocated_bytes + beside;
  return {
    kind,
    outside_bytes: 0,
    ...values,
    total_bytes: total,
    resident_bytes: total - (values.outside_bytes ?? 0),
    waste_bytes: total - values.useful_bytes - values.metadata_bytes,
    utilisation: values.allocated_bytes ? values.useful_bytes / values.allocated_bytes : 1,
  };
}

// Rings of window + sinks rows and a spare one, made at the start; the other layers grow by doubling.
function sliding(setting, context, capacity) {
  let [full, windowed, window, note] = [layersWith(setting, "f"), layersWith(setting, "w"), setting.window, ""];
  if (!window) {
    [full, windowed, window] = [0, cachingLayers(setting), SLIDING_WINDOW];
    note = `an approximation: the model has no window, and only the last ${window} positions are kept`;
  }
  if (capacity) window = Math.max(1, Math.min(window, capacity - setting.sinks));
  const rows = window + setting.sinks;
  const layer = layerBytes(setting);
  const grown = full ? doubled(context) : 0;
  return {
    useful_bytes: Math.ceil((full * context + windowed * Math.min(context, rows)) * layer),
    allocated_bytes: Math.ceil((full * grown + windowed * (rows + 1)) * layer),
    metadata_bytes: 0,
    formula:
      "(full_layers · doubled capacity + windowed_layers · (window + sinks + 1)) · bytes per layer and position",
    numbers:
      `(${full} · ${number(grown)} + ${windowed} · (${number(window)} + ${number(setting.sinks)} + 1)) · ` +
      number(layer),
    note,
  };
}

// Groups of 32 positions in codes with a lowest value and a step a tile, 32 to 63 positions as floats.
function quantised(setting, context, bits, note) {
  const { kv_heads: heads, head_dim: channels, bytes_per_element: element } = setting;
  const group = GROUP_POSITIONS;
  const layers = cachingLayers(setting);
  const groups = Math.floor(Math.max(0, context - group) / group);
  const room = doubled(groups, FIRST_GROUPS);
  let tile = Math.min(channels, group);
  while (channels % tile) tile -= 1;
  const codeBytes = (2 * heads * channels * group * bits) / 8;
  const rangeBytes = 2 * heads * (channels + group * (channels / tile)) * element;
  const ringBytes = context ? 2 * group * layerBytes(setting) : 0;
  const held = groups * codeBytes + (context - groups * group) * layerBytes(setting);
  return {
    useful_bytes: Math.ceil(layers * held),
    allocated_bytes: Math.ceil(layers * (ringBytes + room * (codeBytes + rangeBytes))),
    metadata_bytes: Math.ceil(layers * groups * rangeBytes),
    formula:
      "layers · (ring of 64 positions + groups allocated · (codes + scales of a group)), grown token by token",
    numbers: `${layers} · (${number(ringBytes)} + ${number(room)} · (${number(codeBytes)} + ${number(rangeBytes)}))`,
    note,
  };
}

// A store of all layers outside, and working buffers for two of them, all of one doubled capacity.
function offloaded(setting, context, keepsAll) {
  const layers = cachingLayers(setting);
  const capacity = doubled(context);
  const working = Math.min(2, layers);
  const layer = layerBytes(setting);
  const resident = Math.ceil(working * capacity * layer);
  const total = Math.ceil((layers + working) * capacity * layer);
  const note =
    `${working} layers are in memory, ${number(resident)} bytes; the rest is on the disk, or on the host beside a GPU`;
  return {
    useful_bytes: Math.ceil(context * tokenBytes(setting)),
    allocated_bytes: total,
    metadata_bytes: 0,
    outside_bytes: total - resident,
    formula:
      "(layers outside + layers in memory) · doubled capacity · bytes per layer and position, grown token by token",
    numbers: `(${layers} + ${working}) · ${number(capacity)} · ${number(layer)}`,
    note: [note, keepsAll].filter(Boolean).join("; "),
  };
}

// One sequence of the setting in a kind; a static cache keeps to the setting's capacity.
export function inKind(setting, kind, context = setting.context) {
  return kindMemory(setting, kind, context, context > setting.capacity ? 0 : setting.capacity);
}

// Bytes for one sequence in the setting's kind, without what lies outside memory. `reserve` false: a static cache reserves no more than the context.
export function allocatedBytes(setting, context, reserve) {
  if (setting.cache === "needed") return neededBytes(setting, context).value;
  const made = reserve ? inKind(setting, setting.cache, context) : kindMemory(setting, setting.cache, context);
  return made.resident_bytes;
}

// Every figure in the order in which it is shown.
export function figuresOf(setting) {
  const one = allocatedBytes(setting, setting.context, true);
  const all = one * setting.sequences;
  const figures = [
    bytesPerToken(setting),
    neededBytes(setting, setting.context),
    figure(
      "all sequences take", all, "bytes", "sequences · bytes of a sequence in the kind of cache",
      `${number(setting.sequences)} · ${number(one)}`,
    ),
    figure(
      "cache and weights", all + setting.weights_bytes, "bytes", "bytes of all sequences + weights",
      `${number(all)} + ${number(setting.weights_bytes)}`,
    ),
  ];
  if (setting.memory_bytes) figures.push(largestContext(setting), mostSequences(setting, one));
  return figures;
}

function largestContext(setting) {
  const room = setting.memory_bytes - setting.weights_bytes;
  const fits = (context) => {
    const one = allocatedBytes(setting, context, false);
    return one <= LARGEST_BYTES && setting.sequences * one <= room;
  };
  let [low, high] = [0, LARGEST_CONTEXT];
  while (low < high) {
    const middle = Math.floor((low + high + 1) / 2);
    if (fits(middle)) low = middle;
    else high = middle - 1;
  }
  return figure(
    "largest context", low, "positions",
    "the most positions with sequences · bytes of a sequence ≤ memory - weights",
    `${number(setting.sequences)} · bytes(${number(low)}) ≤ ` +
      `${number(setting.memory_bytes)} - ${number(setting.weights_bytes)}`,
  );
}

function mostSequences(setting, one) {
  return figure(
    "most sequences",
    Math.floor(Math.max(0, setting.memory_bytes - setting.weights_bytes) / one),
    "sequences",
    "⌊(memory - weights) / bytes of a sequence⌋",
    `⌊(${number(setting.memory_bytes)} - ${number(setting.weights_bytes)}) / ${number(one)}⌋`,
  );
}

// A number with thousands separators; a broken one exactly, as its decimals end.
export function number(value) {
  return EXACT.format(value);
}

// A size for people, in powers of 1,024: "1.00 GiB".
export function size(bytes) {
  if (Math.abs(bytes) < 1024) return `${number(bytes)} bytes`;
  const units = ["PiB", "TiB", "GiB", "MiB", "KiB"];
  let value = bytes / 1024;
  while (Math.abs(value) >= 999.5 && units.length > 1) {
    value /= 1024;
    units.pop();
  }
  const digits = Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
  return `${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${units.at(-1)}`;
}

// For a trace: the figure beside the bytes that were really allocated.
export function recordedSentence(recorded) {
  const made = inKind({ ...START, ...recorded.setting }, recorded.kind, recorded.context);
  const equal = made.allocated_bytes === recorded.allocated_bytes;
  return (
    `The trace allocated ${number(recorded.allocated_bytes)} bytes for ${number(recorded.context)} positions ` +
    `(${recorded.kind}); this arithmetic gives ${number(made.allocated_bytes)}: ${equal ? "equal" : "NOT equal"}.` +
    (recorded.note ? ` ${recorded.note}` : "")
  );
}
