// Opening the trace file that an exported page leaves numbers in: by a button, or by dropping it anywhere.

import { h } from "./dom.js";
import { bytes } from "./numbers.js";

/** The line with the button; `opened` is called when a file was taken. */
export function fileOpener(slices, opened) {
  const { name, bytes: size } = slices.known;
  const said = h("span", { role: "status" }, `Not all numbers have room in this page; the others are in ${name} (${bytes(size)}). It is read from your disk and goes nowhere.`);
  const take = async (file) => {
    if (!file) return;
    try {
      await slices.open(file);
      said.textContent = `${name} is open: numbers are read from it as you look at them.`;
      opened();
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const input = h("input", { type: "file", id: "trace-file", accept: ".haaw", onchange: (event) => take(event.target.files[0]) });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  return h("div", { class: "opener" }, h("label", { for: "trace-file" }, "Open the trace file"), input, said);
}
