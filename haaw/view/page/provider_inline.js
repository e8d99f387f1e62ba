// What an exported page brings along: JSON in the page itself, and for the values that it has no room for the places
// in the trace file, which the reader may open.

import { FileSlices } from "./file_slices.js";
import { floatsFrom } from "./values.js";

export class InlineProvider {
  /** `bundle` is { story, templates, steps, values, file }; see haaw/view/export.py. */
  constructor(bundle) {
    this.bundle = bundle;
    this.slices = bundle.file ? new FileSlices(bundle.file) : null;
  }

  story() {
    return this.bundle.story;
  }

  step(stage, step) {
    const known = this.bundle.steps[`${stage} ${step}`];
    if (!known) throw new Error("The operations of this step are not in this file.");
    const { prefix, rows, choice, why_no_choice, held } = known;
    return { operations: rows.map((row) => this.operation(prefix, row)), choice, why_no_choice, held };
  }

  calculator() {
    return this.bundle.calculator;
  }

  operation(prefix, [number, took_ns, operations, bytes]) {
    const [op, layer, head, part, site, outputs] = this.bundle.templates[number];
    const made = outputs.map(([name, shape, axes, dtype]) => ({ path: prefix + name, shape, axes, dtype }));
    return { op, layer, head, part, site, outputs: made, took_ns, operations, bytes };
  }

  value(path) {
    const known = this.bundle.values[path];
    if (known) return { ...known, path, data: floatsFrom(known.data) };
    if (this.slices?.has(path)) return this.slices.value(path);
    throw new Error("The numbers of this value are not in this file. Where the model is at hand, haaw view computes them again; a larger --room puts more of them into an export.");
  }
}
