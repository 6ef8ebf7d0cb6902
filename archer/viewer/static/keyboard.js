// The whole viewer by keyboard, and the page that says how.

import { button, h } from "./dom.js";

const KEYS = [
  ["n  p", "next, previous step"],
  ["N  P", "next, previous group"],
  ["j  k", "next, previous response"],
  ["← → ↑ ↓", "from token to token, from line to line"],
  ["/", "search the text"],
  ["Enter  Shift+Enter", "next, previous match"],
  ["l", "newest step"],
  ["u", "one level up"],
  ["s", "search all steps of the run"],
  ["c", "compare with another step or run"],
  ["e", "export the token table as CSV"],
  ["m", "notes about this place"],
  ["i", "save what is shown as a PNG (an image)"],
  ["t", "light or dark"],
  ["Esc", "close, or clear search and range"],
  ["?", "this list"],
];

export class Help {
  constructor() {
    this.node = h(
      "dialog",
      { class: "help", "aria-label": "Keys" },
      h("h2", {}, "Keys"),
      h("dl", {}, KEYS.map(([keys, meaning]) => [h("dt", {}, keys.split("  ").map((key) => h("kbd", {}, key))), h("dd", {}, meaning)])),
      button("Close", () => this.node.close()),
    );
    document.body.append(this.node);
  }

  open() {
    if (!this.node.open) this.node.showModal();
  }
}

// `actions` by key name; typing in a field is left alone.
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { target } = event;
    const typing = target instanceof HTMLElement && (target.matches("input:not([type=range]), select, textarea") || target.isContentEditable);
    if (typing && event.key !== "Escape") return;
    if (target instanceof HTMLElement && target.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
    if (document.querySelector("dialog[open]")) return;
    const action = actions[event.key];
    if (action && action(event) !== false) event.preventDefault();
  });
}
