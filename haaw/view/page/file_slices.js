// A trace file that the reader has opened: values are read from it in slices, and the file itself never is.

const READERS = {
  float32: (buffer) => new Float32Array(buffer),
  float64: (buffer) => Float32Array.from(new Float64Array(buffer)),
  int64: (buffer) => Float32Array.from(new BigInt64Array(buffer), Number),
  int32: (buffer) => Float32Array.from(new Int32Array(buffer)),
  uint8: (buffer) => Float32Array.from(new Uint8Array(buffer)),
  int8: (buffer) => Float32Array.from(new Int8Array(buffer)),
  bool: (buffer) => Float32Array.from(new Uint8Array(buffer)),
  float16: (buffer) => Float32Array.from(new Uint16Array(buffer), half),
};
const BYTES = { float32: 4, float64: 8, int64: 8, int32: 4, uint8: 1, int8: 1, bool: 1, float16: 2 };

/** The number whose 16 bits are those of a half-precision float. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

export class FileSlices {
  /** `known`: name, bytes, first and sum of the trace file, and index: path -> [offset, dtype, shape, axes]. */
  constructor(known) {
    this.known = known;
    this.file = null;
  }

  has(path) {
    return Object.hasOwn(this.known.index, path);
  }

  /** Takes the file, if it is the one that the page was made from; else throws a sentence. */
  async open(file) {
    const { name, bytes, first, sum } = this.known;
    if (file.size !== bytes) throw new Error(`This is not ${name}: it has ${file.size} bytes and not ${bytes}.`);
    let total = 0x811c9dc5;
    for (const each of new Uint8Array(await file.slice(0, first).arrayBuffer())) total = Math.imul(total ^ each, 0x01000193) >>> 0;
    if (total !== sum) throw new Error(`This is not ${name}: it begins with other bytes.`);
    this.file = file;
  }

  async value(path) {
    if (!this.file) throw new Error(`The numbers of this value are in ${this.known.name}. Open that file at the top of this page to see them.`);
    const [offset, dtype, shape, axes] = this.known.index[path];
    if (!READERS[dtype]) throw new Error(`This page cannot read numbers of the type ${dtype}.`);
    const length = shape.reduce((a, b) => a * b, 1) * BYTES[dtype];
    let buffer;
    try {
      buffer = await this.file.slice(offset, offset + length).arrayBuffer();
    } catch {
      throw new Error(`${this.known.name} cannot be read any more; open it again.`);
    }
    return { path, shape, axes, dtype, data: READERS[dtype](buffer), badge: "recorded", provenance: `Read from ${this.known.name}.` };
  }
}
