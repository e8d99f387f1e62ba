// Arrays and operations, fetched when they are looked at, and kept for as long as there is room.
//
// A provider has two methods; each returns its answer, or a promise of it, or throws a sentence:
//   step(stage, step)  -> { operations: [{ op, layer, head, part, took_ns, outputs: [{ path, shape, axes, dtype }], … }],
//                           choice, why_no_choice, held (the position of each row of each layer's ring, if it has any) }
//   value(path, head)  -> { path, shape, axes, dtype, data: Float32Array, badge, provenance }

const ROOM_BYTES = 48 * 2 ** 20;

export class Values {
  constructor(provider, arrived) {
    this.provider = provider;
    this.arrived = arrived;
    this.known = new Map();
    this.waiting = 0;
    this.mayBeLate = false; // whether the provider has ever promised an answer
    this.used = 0;
  }

  /** { ready: step } or { waiting: true } or { why: "sentence" }. */
  step(stage, step) {
    return this.get(`step ${stage} ${step}`, () => this.provider.step(stage, step), () => 0);
  }

  /** { ready: value } or { waiting: true } or { why: "sentence" }. */
  value(path, head = null) {
    const key = `value ${head} ${path}`;
    return this.get(key, () => this.provider.value(path, head), (value) => value.data.byteLength);
  }

  get(key, ask, sizeOf) {
    const known = this.known.get(key);
    if (known) {
      this.known.delete(key);
      this.known.set(key, known); // the one used last goes last
      return known.answer;
    }
    try {
      const given = ask();
      if (!(given instanceof Promise)) return this.keep(key, { ready: given }, sizeOf(given));
      this.waiting += 1;
      this.mayBeLate = true;
      given.then(
        (answer) => this.keep(key, { ready: answer }, sizeOf(answer)),
        (error) => this.keep(key, { why: sentence(error) }, 0),
      ).finally(() => {
        this.waiting -= 1;
        this.arrived();
      });
      return this.keep(key, { waiting: true }, 0);
    } catch (error) {
      return this.keep(key, { why: sentence(error) }, 0);
    }
  }

  keep(key, answer, size) {
    this.used += size - (this.known.get(key)?.size ?? 0);
    this.known.delete(key);
    this.known.set(key, { answer, size });
    for (const [old, { size: freed }] of this.known) {
      if (this.used <= ROOM_BYTES || old === key) break;
      this.known.delete(old);
      this.used -= freed;
    }
    return answer;
  }

  /** Forgets the answers that were no values, so that they are asked for again (a file was opened). */
  forgetGaps() {
    for (const [key, { answer }] of this.known) if (answer.why) this.known.delete(key);
  }
}

function sentence(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Part of a value at one index of one axis: at(value, "H", 2). The value itself where it has no such axis. */
export function at(value, axis, index) {
  const place = value.axes.indexOf(axis);
  if (place < 0 || value.shape[place] === 1) return place < 0 ? value : without(value, place);
  const inner = value.shape.slice(place + 1).reduce((a, b) => a * b, 1);
  const outer = value.shape.slice(0, place).reduce((a, b) => a * b, 1);
  const length = value.shape[place];
  const data = new Float32Array(outer * inner);
  for (let o = 0; o < outer; o++) {
    data.set(value.data.subarray((o * length + index) * inner, (o * length + index + 1) * inner), o * inner);
  }
  return without({ ...value, data }, place);
}

function without(value, place) {
  const drop = (list) => [...list.slice(0, place), ...list.slice(place + 1)];
  return { ...value, shape: drop(value.shape), axes: drop([...value.axes]).join("") };
}

/** Least, greatest, mean and how many are negative or no finite number. */
export function summary(data) {
  let least = Infinity, most = -Infinity, sum = 0, negative = 0, odd = 0;
  for (const each of data) {
    if (!Number.isFinite(each)) {
      odd += 1;
      continue;
    }
    if (each < least) least = each;
    if (each > most) most = each;
    if (each < 0) negative += 1;
    sum += each;
  }
  const finite = data.length - odd;
  return { least, most, mean: finite ? sum / finite : NaN, negative, odd, finite };
}

/** Numbers from base64 of little-endian float32. */
export function floatsFrom(base64) {
  const text = atob(base64);
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) raw[i] = text.charCodeAt(i);
  return new Float32Array(raw.buffer);
}
