// The two pictures of the calculator: tiles of a cache, and a bar of a memory. Decoration for sighted readers: the page
// says the same in a sentence. Nothing here tells things apart by colour alone; what is not used is hatched.

const TILES_IN_A_ROW = 32;

function drawn(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Tiles of one sequence: `total` of them, the first `useful` filled; parts of a tile are drawn as parts.
export function strip(useful, total, index) {
  const [side, gap] = [14, 2];
  const rows = Math.ceil(Math.ceil(total) / TILES_IN_A_ROW);
  const svg = drawn("svg", {
    viewBox: `0 0 ${TILES_IN_A_ROW * (side + gap)} ${rows * (side + gap)}`, "aria-hidden": "true",
  });
  svg.append(hatching(`hatch-${index}`));
  for (let tile = 0; tile < Math.ceil(total); tile += 1) {
    const x = (tile % TILES_IN_A_ROW) * (side + gap) + 0.5;
    const y = Math.floor(tile / TILES_IN_A_ROW) * (side + gap) + 0.5;
    const width = Math.min(1, total - tile) * side;
    const filled = Math.max(0, Math.min(1, useful - tile)) * side;
    if (filled < width) {
      svg.append(drawn("rect", { x, y, width, height: side, class: "tile-unused" }));
      svg.append(drawn("rect", { x, y, width, height: side, fill: `url(#hatch-${index})` }));
    }
    if (filled > 0) svg.append(drawn("rect", { x, y, width: filled, height: side, class: "tile-useful" }));
  }
  return svg;
}

function hatching(id) {
  const pattern = drawn("pattern", {
    id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  });
  pattern.append(drawn("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" }));
  return pattern;
}

// Weights, useful and unused parts of the cache, and what stays free, with a line where the memory ends.
export function memoryBar(weights, useful, cache, memory) {
  const [width, height] = [1024, 26];
  const used = weights + cache;
  const scale = width / Math.max(used, memory);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height + 8}`, "aria-hidden": "true" });
  svg.append(hatching("hatch-memory"));
  let x = 0;
  for (const [bytes, style] of [
    [weights, "bar-weights"],
    [useful, "bar-useful"],
    [cache - useful, "tile-unused"],
    [Math.max(0, memory - used), "bar-free"],
  ]) {
    const place = { x, y: 4, width: bytes * scale, height };
    svg.append(drawn("rect", { ...place, class: style }));
    if (style === "tile-unused") svg.append(drawn("rect", { ...place, fill: "url(#hatch-memory)" }));
    x += bytes * scale;
  }
  const end = memory * scale - 1;
  svg.append(drawn("line", { x1: end, y1: 0, x2: end, y2: height + 8, class: "limit" }));
  return svg;
}
