// A token, and a token among its neighbours, as cells of a table.

import { h } from "./dom.js";
import { tokenText } from "./pack.js";
import { visibleBlanks, wholeSlice } from "./format.js";

const AROUND = 40; // characters on each side; the cell cuts off what it has no room for
const TITLE = 300;

export function tokenCell(text) {
  return h("code", { class: "tok", title: text.length > 16 ? visibleBlanks(text.slice(0, TITLE)) : null }, text === "" ? "…" : visibleBlanks(text));
}

// The token stays in the middle and in sight, however narrow the cell; the text before it is cut off at its start.
export function contextCell(response, position) {
  const at = response.starts[position];
  const text = tokenText(response, position);
  const shown = (part) => visibleBlanks(part).replaceAll("·", " ");
  const before = wholeSlice(response.text, Math.max(0, at - AROUND), at);
  const after = wholeSlice(response.text, at + text.length, at + text.length + AROUND);
  return h("span", { class: "context", dir: "ltr" }, h("span", { class: "before" }, h("i", {}, shown(before))), h("b", {}, text === "" ? "…" : shown(text)), h("span", { class: "after" }, shown(after)));
}
