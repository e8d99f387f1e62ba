// Numbers as colours: orange below zero, blue above. A negative cell also carries a dash (or a hatch where cells are
// small), so that the sign never hangs on colour alone. Minus infinity, which is what a mask writes, is crossed out.

import { h } from "./dom.js";

/** The page's colours as [r, g, b], read from the style sheet so that dark and light have their own. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  return { zero: rgb("--heat-zero"), above: rgb("--heat-above"), below: rgb("--heat-below"), ink: rgb("--heat-ink") };
}

function mixed(from, to, share) {
  return `rgb(${from.map((each, i) => Math.round(each + (to[i] - each) * share)).join(" ")})`;
}

/**
 * A canvas of rows × columns. `at(row, column)` is a number; `most` is the size that gets the full colour.
 * `mark` outlines one row; `width` is the most CSS pixels to fill.
 */
export function heatMap({ rows, columns, at, most, cell, mark = null, label }) {
  const canvas = h("canvas", { role: "img", "aria-label": label });
  canvas.draw = (target) => {
    const ratio = window.devicePixelRatio || 1;
    target.width = Math.max(1, Math.round(columns * cell * ratio));
    target.height = Math.max(1, Math.round(rows * cell * ratio));
    target.style.setProperty("width", `${columns * cell}px`);
    target.style.setProperty("height", `${rows * cell}px`);
    const context = target.getContext("2d", { willReadFrequently: true }); // many small ones: none needs the graphics card
    context.scale(ratio, ratio);
    drawCells(context, { rows, columns, at, most, cell });
    if (mark !== null) outline(context, mark, columns, cell);
  };
  return canvas;
}

function drawCells(context, { rows, columns, at, most, cell }) {
  const colours = palette();
  const gap = cell >= 4 ? 1 : 0;
  const hatch = cell < 6 ? hatching(context, colours.ink) : null;
  const scale = most > 0 ? most : 1;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      const x = column * cell, y = row * cell, size = cell - gap;
      if (value === null) continue;
      if (value === -Infinity || Number.isNaN(value)) {
        cross(context, x, y, size, colours);
        continue;
      }
      const strength = Math.min(1, Math.abs(value) / scale) ** 0.7; // small values would hardly show otherwise
      context.fillStyle = mixed(colours.zero, value < 0 ? colours.below : colours.above, strength);
      context.fillRect(x, y, size, size);
      if (value < 0) negative(context, x, y, size, colours, hatch);
    }
  }
}

function negative(context, x, y, size, colours, hatch) {
  if (hatch) {
    context.fillStyle = hatch;
    context.fillRect(x, y, size, size);
    return;
  }
  context.fillStyle = `rgb(${colours.ink.join(" ")} / 0.75)`;
  context.fillRect(x + size * 0.25, y + size / 2 - 0.5, size * 0.5, 1);
}

function hatching(context, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 3;
  const inner = tile.getContext("2d");
  inner.fillStyle = `rgb(${ink.join(" ")} / 0.55)`;
  for (let i = 0; i < 3; i++) inner.fillRect(i, 2 - i, 1, 1);
  return context.createPattern(tile, "repeat");
}

function cross(context, x, y, size, colours) {
  context.strokeStyle = `rgb(${colours.ink.join(" ")} / 0.25)`;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x + size * 0.3, y + size * 0.7);
  context.lineTo(x + size * 0.7, y + size * 0.3);
  context.stroke();
}

function outline(context, row, columns, cell) {
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  context.lineWidth = 2;
  context.strokeRect(1, row * cell + 0.5, columns * cell - 3, cell - 1);
}

/** The greatest size among finite numbers. */
export function largest(data) {
  let most = 0;
  for (const each of data) if (Number.isFinite(each) && Math.abs(each) > most) most = Math.abs(each);
  return most;
}

/** What the colours mean, with the numbers at both ends. */
export function legend(most, { signed = true, text }) {
  return h(
    "p",
    { class: "legend" },
    signed && h("span", { class: "swatch below" }, "−"),
    signed && h("span", { class: "tabular" }, `−${text(most)}`),
    h("span", { class: "swatch zero" }),
    h("span", { class: "tabular" }, "0"),
    h("span", { class: "swatch above" }),
    h("span", { class: "tabular" }, text(most)),
  );
}
