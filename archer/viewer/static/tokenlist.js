// A table of tokens that the server found: in a step's extremes, in a rectangle of a plot, in a search.

import { button, h } from "./dom.js";
import { count, number, spoken, visibleBlanks } from "./format.js";
import { DataTable } from "./table.js";

const AROUND = 36;

// Characters, never halves of one; the token itself is never cut off.
export function contextOf(before, text, after) {
  const shown = (part) => visibleBlanks(part).replaceAll("·", " ");
  return h(
    "span",
    { class: "around", dir: "ltr" },
    h("span", {}, shown(Array.from(before).slice(-AROUND).join(""))),
    h("b", {}, shown(text) || "…"),
    h("span", {}, shown(Array.from(after).slice(0, AROUND).join(""))),
  );
}

// `place`: {step(token) -> step}; a click on a row brings the text on the screen at its token
export class TokenList {
  constructor(caption, store, stepOf, options = {}) {
    Object.assign(this, { store, stepOf });
    this.table = new DataTable(caption, [], { page: 20, pick: (token) => this.open(token), ...options });
    this.node = this.table.node;
  }

  open(token) {
    this.store.go({ step: this.stepOf(token), group: token.group, response: token.row, token: token.position });
  }

  show(tokens, metrics, withStep = false) {
    const column = (key, label, get, format) => ({ key, label, value: get, cell: (token) => format(get(token)) });
    this.table.setColumns([
      ...(withStep ? [column("step", "Step", (token) => token.step, String)] : []),
      column("response", "Response", (token) => token.row, String),
      column("position", "Position", (token) => token.position, count),
      { key: "context", label: "Text", text: true, value: (token) => token.text, cell: (token) => contextOf(token.before, token.text, token.after), sortable: false },
      ...metrics.map((name) => column(name, spoken(name), (token) => token.values[name] ?? null, (value) => number(value, 4))),
      { key: "verdict", label: "Verdict", text: true, value: (token) => token.verdict, cell: (token) => token.verdict ?? "–" },
    ]);
    this.table.show(tokens);
  }
}

export function linkButton(label, act, title) {
  return button(label, act, { class: "quiet", title });
}
