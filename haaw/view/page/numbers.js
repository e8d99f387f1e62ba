// Numbers as people read them. One place, so that a number looks the same wherever it stands.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 -> "1,234,567". */
export function count(value) {
  return GROUPED.format(value);
}

/** Three significant digits and a unit that fits: 0.0000023 s -> "2.30 µs". */
export function duration(ns) {
  if (ns === null || ns === undefined || !Number.isFinite(ns)) return "not timed";
  const s = ns / 1e9;
  if (s >= 86400 * 2) return `${digits(s / 86400)} days`;
  if (s >= 7200) return `${digits(s / 3600)} h`;
  if (s >= 120) return `${digits(s / 60)} min`;
  if (s >= 1) return `${digits(s)} s`;
  if (ns >= 1e6) return `${digits(ns / 1e6)} ms`;
  if (ns >= 1e3) return `${digits(ns / 1e3)} µs`;
  return `${digits(ns)} ns`;
}

/** 131072 -> "128 KiB"; below 10,000 bytes the exact count. */
export function bytes(value) {
  if (value < 10000) return `${count(value)} bytes`;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return `${count(value)} bytes`;
}

/** 24861312 -> "24.9 million". */
export function many(value) {
  for (const [unit, size] of [["trillion", 1e12], ["billion", 1e9], ["million", 1e6]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return count(value);
}

/** A share from 0 to 1: "34.1 %", and "< 0.01 %" where it would round to nothing. */
export function percent(share) {
  if (share > 0 && share < 0.0001) return "< 0.01 %";
  const value = share * 100;
  return `${value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} %`;
}

/** Three significant digits without a power of ten. */
export function digits(value) {
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** A value of an array: four significant digits, a true minus, and words for what is no number. */
export function element(value) {
  if (Number.isNaN(value)) return "NaN";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = Number.isInteger(value) && size < 1e6 ? String(size) : size >= 1e5 || size < 1e-3 ? exponent(size) : size.toPrecision(4);
  return (value < 0 ? "−" : "") + text;
}

function exponent(size) {
  const [mantissa, power] = size.toExponential(3).split("e");
  return `${mantissa} × 10${raised(Number(power))}`;
}

function raised(power) {
  return [...String(power)].map((each) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[each] ?? "⁻").join("");
}

/** "1 token", "2 tokens". */
export function plural(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}
