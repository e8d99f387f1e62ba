// Elements from plain descriptions. Text goes in as text, never as markup: there is no innerHTML anywhere.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: h("p", { class: "note" }, "words ", h("b", {}, "bold")). */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else if (name === "style") for (const [property, is] of Object.entries(value)) element.style.setProperty(property, is);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** What an element carries besides attributes; `draw` paints a canvas. */
const HANDLERS = ["onclick", "oninput", "onchange", "onkeydown", "onpointermove", "onpointerleave", "draw"];

/**
 * Makes `old` look like `fresh`, and keeps what is the same: focus, scroll positions and opened details stay.
 * Returns the node that now stands in the place.
 */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  morphAttributes(old, fresh);
  const wanted = [...fresh.childNodes];
  for (let i = 0; i < wanted.length; i++) {
    if (i < old.childNodes.length) morph(old.childNodes[i], wanted[i]);
    else old.append(wanted[i]);
  }
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
  if (old.nodeName === "SELECT" || old.nodeName === "INPUT") setField(old, fresh);
  return old;
}

function keyOf(node) {
  return node.getAttribute?.("data-key") ?? null;
}

function morphAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !STAYS.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name === "style") old.style.cssText = fresh.style.cssText; // a style attribute would be against the CSP
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) if (old[name] || fresh[name]) old[name] = fresh[name] ?? null;
}

/** Whether details are open is the reader's choice, and no part of the picture. */
const STAYS = ["open"];

function setField(old, fresh) {
  if (old.type === "checkbox") old.checked = fresh.checked;
  else if (old.value !== fresh.value) old.value = fresh.value;
}

/** Paints every canvas below `root`; to be called when it is in the page, since colours come from its style. */
export function paint(root) {
  for (const canvas of root.querySelectorAll("canvas")) canvas.draw?.(canvas);
}
