// The calculator page: fields and sliders become a setting, the setting becomes figures, tiles and a link.
// One state, `setting`, drives everything; the arithmetic is in calculator_arithmetic.js. Text is never markup.

import { KINDS, LIMITS, START, figuresOf, inKind, kindsOf, layersWith, neededBytes, number, problemOf, recordedSentence, size } from "./calculator_arithmetic.js";
import { memoryBar, strip } from "./calculator_drawing.js";

const GIB = 2 ** 30;
const IN_GIB = ["memory_bytes", "weights_bytes"];
const SLIDERS = { context: 16, sequences: 16 }; // steps of a slider for each doubling
const OF_THE_MODEL = ["layers", "kv_heads", "head_dim", "bytes_per_element", "window", "pattern", "latent_width", "weights_bytes"];
const MOST_TILES = 64;
const MOST_STRIPS = 6;
const KIND_NAMES = {
  needed: "what must be held",
  dynamic: "dynamic (grows by doubling)",
  static: "static (reserved at the start)",
  sliding: "sliding window",
  int8: "quantised to 8 bits",
  int4: "quantised to 4 bits",
  paged: "paged (blocks)",
  offloaded: "offloaded (two layers in memory)",
};

let root = null; // a document, or a shadow root: where the elements of the calculator are
let data = {};
let presets = [];
let linked = true; // whether the address keeps the setting
let setting = { ...START };
let notes = [];

const find = (id) => root.getElementById(id);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// ---- from fields, sliders, presets and links to the setting

function readField(field) {
  const input = find(field);
  if (field === "pattern" || field === "cache") return input.value.trim();
  if (input.value.trim() === "") return Number.NaN;
  return IN_GIB.includes(field) ? Math.round(Number(input.value) * GIB) : Number(input.value);
}

function change(field, value) {
  setting = { ...setting, [field]: value };
  show({ edited: field });
}

function applyPreset(name) {
  const preset = presets.find((each) => each.name === name);
  if (!preset) return;
  const { memory_bytes, sequences, cache, block_size, sinks } = setting;
  setting = { ...START, memory_bytes, sequences, cache, block_size, sinks, ...preset.setting };
  if (cache !== "needed" && !kindsOf(setting).includes(cache)) setting.cache = "needed";
  notes = [];
  show({});
}

// The setting that a link holds; what the page does not know is named and left out.
export function settingFromHash(hash) {
  const read = { ...START };
  const left = [];
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const known = Object.hasOwn(START, key);
    const value = key === "pattern" || key === "cache" ? text : Number(text);
    if (!known || Number.isNaN(value) || text.trim() === "" && key !== "pattern") left.push(key.slice(0, 40));
    else read[key] = value;
  }
  return { read, left };
}

export function hashOf(wanted) {
  const changed = Object.entries(wanted).filter(([key, value]) => key === "layers" || value !== START[key]);
  return `#${new URLSearchParams(changed.map(([key, value]) => [key, String(value)]))}`;
}

function applyHash() {
  if (location.hash.length < 2 || document.getElementById(location.hash.slice(1))) return false;
  const { read, left } = settingFromHash(location.hash);
  setting = read;
  notes = left.length ? [`The link has ${left.join(", ")}, which this page cannot use; it was left out.`] : [];
  show({ keepHash: true });
  return true;
}

// ---- from the setting to the page

function show({ edited, keepHash = false }) {
  showFields(edited);
  const problem = problemOf(setting);
  for (const field of Object.keys(START)) {
    const input = find(field);
    if (problem?.field === field) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  find("problem").hidden = !problem;
  find("problem").textContent = problem ? `Nothing is calculated: ${readable(problem.sentence)}.` : "";
  find("remark").hidden = notes.length === 0;
  find("remark").textContent = notes.join(" ");
  find("figures").hidden = Boolean(problem);
  if (problem) return;
  const figures = figuresOf(setting);
  showHeadline(figures);
  showFormulas(figures);
  showTiles();
  showMemory(figures);
  showKinds();
  showAssumptions();
  const hash = hashOf(setting);
  find("link").setAttribute("href", hash);
  if (linked && !keepHash) keepLater(hash);
}

// Browsers refuse an address that changes with every move of a slider.
let pending = 0;
function keepLater(hash) {
  clearTimeout(pending);
  pending = setTimeout(() => history.replaceState(null, "", hash), 150);
}

const readable = (sentence) => sentence.replaceAll("_", " ");

function showFields(edited) {
  for (const [field, value] of Object.entries(setting)) {
    const input = find(field);
    if (field === edited) continue; // what is being typed stays as it is typed
    input.value = IN_GIB.includes(field) ? String(Number((value / GIB).toFixed(3))) : String(value);
  }
  for (const [field, steps] of Object.entries(SLIDERS)) {
    const slider = find(`${field}-slider`);
    if (edited !== `${field}-slider` && setting[field] >= 1) {
      slider.value = String(Math.round(Math.log2(setting[field]) * steps));
    }
    slider.setAttribute("aria-valuetext", number(setting[field]));
  }
  for (const option of find("cache").options) {
    option.disabled = option.value !== "needed" && !kindsOf(setting).includes(option.value);
  }
  const same = presets.find((preset) =>
    Object.entries(preset.setting).every(([key, value]) => key === "context" || setting[key] === value),
  );
  find("preset").value = same?.name ?? "";
  find("preset-source").textContent = same ? `Source: ${same.source}` : "Numbers of your own.";
}

const counted = (value, units) => `${number(value)} ${value === 1 ? units.slice(0, -1) : units}`;
const valueText = (figure) => (figure.unit === "bytes" ? size(figure.value) : counted(figure.value, figure.unit));

function showHeadline(figures) {
  const cards = figures.map((figure) => {
    const card = element("div");
    card.append(element("dt", figure.name), element("dd", valueText(figure), { class: "large" }));
    if (figure.unit === "bytes") card.append(element("dd", `${number(figure.value)} bytes`, { class: "exact" }));
    card.dataset.figure = figure.name;
    return card;
  });
  find("headline").replaceChildren(...cards);
  const all = figures.find((figure) => figure.name === "all sequences take");
  find("spoken").textContent = `${number(setting.sequences)} of ${number(setting.context)} tokens: ${size(all.value)}`;
}

function showFormulas(figures) {
  const rows = figures.flatMap((figure) => [
    element("dt", figure.name),
    element("dd", readable(figure.formula)),
    element("dd", `${figure.numbers} = ${counted(figure.value, figure.unit)}`, { class: "numbers" }),
  ]);
  find("formulas").replaceChildren(...rows);
}

// What one sequence holds and what it allocates in memory, in the kind that is chosen.
function chosenPart() {
  if (setting.cache !== "needed") {
    const made = inKind(setting, setting.cache);
    if (made.outside_bytes) { // each layer in memory is as full as it is outside
      const total = made.resident_bytes;
      return { useful: (total * made.useful_bytes) / made.outside_bytes, total };
    }
    return { useful: made.useful_bytes + made.metadata_bytes, total: made.total_bytes };
  }
  const needed = neededBytes(setting, setting.context).value;
  return { useful: needed, total: needed };
}

function showTiles() {
  const { useful, total } = chosenPart();
  let unit = 1;
  while (total / unit > MOST_TILES) unit *= 2;
  const strips = Math.min(setting.sequences, MOST_STRIPS);
  const more = setting.sequences - strips;
  const sentence =
    `One tile is ${size(unit)}. ` +
    (setting.sequences === 1 ? "The sequence" : `Each of ${number(setting.sequences)} sequences`) +
    ` has ${counted(Math.ceil(total / unit), "tiles")}, ${percent(useful / total)} of them useful` +
    (total > useful ? `, ${size(total - useful)} allocated and not used.` : ".") +
    (more > 0 ? ` The first ${strips} are drawn; ${number(more)} more look the same.` : "");
  find("tiles-sentence").textContent = sentence;
  const made = [];
  for (let index = 0; index < strips; index += 1) made.push(strip(useful / unit, total / unit, index));
  find("tiles").replaceChildren(...made);
}

const percent = (share) => (share === 1 ? "100 %" : `${(100 * share).toFixed(1)} %`);

function showMemory(figures) {
  const place = find("memory");
  for (const each of root.querySelectorAll(".of-memory")) each.hidden = !setting.memory_bytes;
  if (!setting.memory_bytes) {
    place.replaceChildren();
    return;
  }
  const { useful, total } = chosenPart();
  const cache = total * setting.sequences;
  const used = setting.weights_bytes + cache;
  const over = used - setting.memory_bytes;
  const svg = memoryBar(setting.weights_bytes, useful * setting.sequences, cache, setting.memory_bytes);
  const rest = over > 0 ? `${size(over)} too much: it does not fit.` : `${size(-over)} stay free.`;
  const sentence = element(
    "p",
    `Of ${size(setting.memory_bytes)}: weights ${size(setting.weights_bytes)}, cache ${size(cache)}; ${rest}`,
    over > 0 ? { class: "problem" } : {},
  );
  place.replaceChildren(svg, sentence);
}

function showKinds() {
  const rows = kindsOf(setting).map((kind) => {
    const made = inKind(setting, kind);
    const row = element("tr", undefined, kind === setting.cache ? { "aria-current": "true" } : {});
    row.dataset.kind = kind;
    row.append(element("th", kind, { scope: "row" }));
    for (const bytes of [made.useful_bytes, made.allocated_bytes, made.metadata_bytes]) {
      const cell = element("td", size(bytes), { title: `${number(bytes)} bytes` });
      cell.dataset.bytes = String(bytes);
      row.append(cell);
    }
    row.append(element("td", percent(made.utilisation)), element("td", made.numbers));
    return row;
  });
  find("kinds").replaceChildren(...rows);
}

function showAssumptions() {
  const told = [`Totals are of: ${KIND_NAMES[setting.cache]}.`];
  if (data.setting && OF_THE_MODEL.every((field) => setting[field] === data.setting[field])) {
    told.push(...(data.assumptions ?? []).map((each) => `${each}.`));
  }
  const windowed = layersWith(setting, "w");
  if (windowed) {
    told.push(
      `${windowed} layers need the last ${number(setting.window)} positions, ${layersWith(setting, "f")} need all.`,
    );
  }
  if (layersWith(setting, "-")) told.push(`${layersWith(setting, "-")} layers have no cache of their own.`);
  if (setting.latent_width) told.push("Latents are stored as their authors store them: no keys and values of heads.");
  told.push("The quantised cache: groups of 32 positions, the latest 32 to 63 as floats, grown token by token.");
  told.push("1 GiB is 1,073,741,824 bytes. Activations and working buffers are not counted.");
  for (const kind of kindsOf(setting)) {
    const { note } = inKind(setting, kind);
    if (note) told.push(`${kind}: ${note}.`);
  }
  if (data.recorded) told.push(recordedSentence(data.recorded));
  find("assumptions").replaceChildren(...told.map((each) => element("li", each)));
}

// ---- beginning

/** Begins on the elements of calculator.html below `where`; `given` is { presets, setting, assumptions, recorded }. */
export function beginCalculator(where, given, { keepsLink = true } = {}) {
  [root, data, presets, linked] = [where, given, given.presets ?? [], keepsLink];
  find("preset").append(element("option", "your own numbers", { value: "" }));
  for (const preset of presets) find("preset").append(element("option", preset.title, { value: preset.name }));
  for (const kind of ["needed", ...KINDS]) find("cache").append(element("option", KIND_NAMES[kind], { value: kind }));
  for (const [field, [, most]] of Object.entries(LIMITS)) {
    if (!IN_GIB.includes(field)) find(field).setAttribute("max", String(most));
  }
  find("setting").addEventListener("submit", (event) => event.preventDefault());
  find("setting").addEventListener("input", (event) => {
    const { id, value } = event.target;
    notes = [];
    if (id === "preset") applyPreset(value);
    else if (id.endsWith("-slider")) {
      const field = id.replace("-slider", "");
      setting = { ...setting, [field]: Math.round(2 ** (Number(value) / SLIDERS[field])) };
      show({ edited: id });
    } else if (Object.hasOwn(START, id)) change(id, readField(id));
  });
  setting = { ...START, ...(data.setting ?? {}) };
  find("link").parentElement.hidden = !linked;
  if (linked) addEventListener("hashchange", applyHash);
  if (!linked || !applyHash()) show({ keepHash: true });
}
