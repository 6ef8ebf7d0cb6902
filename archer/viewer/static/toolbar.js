// What applies to all tokens on the page: search, value range, and how values become colours.

import { button, choose, h } from "./dom.js";
import { count, number, readNumber, spoken } from "./format.js";
import { filterOf, thirdMetric } from "./tokens.js";
import { GRAINS } from "./grain.js";

const SCALES = [["step", "scale: whole step"], ["group", "scale: this group"], ["response", "scale: this response"]];
// Below this width there is room for one pane only (see views.css).
const NARROW = matchMedia("(max-width: 1000px)");

export function paneShown(state, head) {
  return state.pane === "third" && thirdMetric(state, head) === null ? "both" : state.pane;
}

export class Toolbar {
  // `jump(direction)` goes to the next or previous match; `colours` lists what is on offer beyond search and range
  constructor(store, { jump = null, colours = [] } = {}) {
    Object.assign(this, { store, colours });
    const field = (name, props) => h("input", { type: "text", spellcheck: "false", autocomplete: "off", ...props, oninput: (event) => store.go({ [name]: event.target.value }) });
    this.search = field("q", { id: "search", type: "search", placeholder: "Search the text  /", "aria-label": "Search the text" });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") jump?.(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.search.blur();
    });
    this.regex = this.toggle("regex", ".*", "Regular expression");
    this.case = this.toggle("case", "Aa", "Match case");
    this.matches = h("span", { class: "matches", role: "status" });
    this.previous = button("↑", () => jump(-1), { class: "quiet icon", "aria-label": "Previous match", title: "Previous match (Shift+Enter)" });
    this.next = button("↓", () => jump(1), { class: "quiet icon", "aria-label": "Next match", title: "Next match (Enter)" });
    this.by = h("span");
    this.lo = field("lo", { id: "lo", class: "bound", inputmode: "decimal", placeholder: "from", "aria-label": "Lowest value" });
    this.hi = field("hi", { id: "hi", class: "bound", inputmode: "decimal", placeholder: "to", "aria-label": "Highest value" });
    this.clear = button("Clear", () => store.go({ q: "", lo: "", hi: "", by: "" }), { class: "quiet", title: "Clear search and range (Esc)" });
    this.slots = { panes: h("span", { class: "paneselect" }), grain: h("span"), scale: h("span") };
    this.gamma = h("input", { type: "range", id: "gamma", min: "-1.6", max: "1.6", step: "0.05", "aria-label": "Gamma of the colours", title: "Gamma: left lifts small values, right shows only large ones" });
    this.gamma.addEventListener("input", () => store.go({ gamma: Number((2 ** Number(this.gamma.value)).toFixed(3)) }));
    this.gammaText = h("output", { for: "gamma" });
    this.node = h(
      "div",
      { class: "toolbar", role: "search" },
      h("div", { class: "tool" }, this.search, this.regex, this.case, jump && [this.previous, this.next], this.matches),
      h("div", { class: "tool" }, this.by, this.lo, h("span", { class: "muted" }, "–"), this.hi, this.clear),
      colours.length > 0 &&
        h(
          "div",
          { class: "tool end" },
          Object.entries(this.slots).map(([name, slot]) => colours.includes(name) && slot),
          colours.includes("gamma") && h("label", { class: "gamma" }, "γ", this.gamma, this.gammaText),
        ),
    );
  }

  toggle(name, label, title) {
    return button(label, () => this.store.go({ [name]: this.store.state[name] ? 0 : 1 }), { class: "toggle", title, "aria-label": title });
  }

  show({ state, head }) {
    for (const [node, name] of [[this.search, "q"], [this.lo, "lo"], [this.hi, "hi"]]) if (node.value !== state[name]) node.value = state[name];
    this.regex.setAttribute("aria-pressed", state.regex ? "true" : "false");
    this.case.setAttribute("aria-pressed", state.case ? "true" : "false");
    const metrics = head.metrics.map((metric) => [metric.name, `${spoken(metric.name)} range`]);
    choose(this.by, "Metric of the range", metrics, filterOf(state, head).metric, (by) => this.store.go({ by }));
    const unreadable = [state.lo, state.hi].some((text) => text !== "" && readNumber(text) === null);
    this.node.classList.toggle("unreadable", unreadable);
    this.clear.hidden = !(state.q || state.lo || state.hi);
    if (this.colours.length) this.showColours(state, head);
  }

  showColours(state, head) {
    // Means of units are known for the group on the page, not for the whole step.
    const scales = SCALES.slice(state.grain === "token" ? 0 : 1, state.response === null ? 2 : 3);
    choose(this.slots.scale, "Colour scale", scales, scales.some(([name]) => name === state.scale) ? state.scale : scales[0][0], (scale) => this.store.go({ scale }));
    choose(this.slots.grain, "Unit of colour", GRAINS, state.grain, (grain) => this.store.go({ grain }));
    const third = thirdMetric(state, head);
    const metrics = [["left", state.left], ["right", state.right], ...(third ? [["third", third]] : [])];
    const panes = metrics.map(([name, metric]) => [name, `show ${spoken(metric)}`]);
    const all = paneShown(state, head);
    const pane = all === "both" && NARROW.matches ? "left" : all;
    choose(this.slots.panes, "Panes", NARROW.matches ? panes : [["both", third ? "all panes" : "both panes"], ...panes], pane, (value) => this.store.go({ pane: value }));
    this.gamma.value = String(Math.log2(state.gamma));
    this.gammaText.textContent = number(state.gamma, 2);
  }

  showSearching() {
    this.matches.textContent = "searching …";
  }

  showMatches(search, total, place) {
    this.search.setAttribute("aria-invalid", search?.error ? "true" : "false");
    this.previous.disabled = !total;
    this.next.disabled = !total;
    if (!search) this.matches.textContent = "";
    else if (search.error) this.matches.textContent = search.error;
    else this.matches.textContent = total ? `${place === null ? "" : `${place + 1} of `}${count(total)} ${total === 1 ? "match" : "matches"}` : "no match";
  }
}
