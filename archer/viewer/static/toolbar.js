// What applies to all tokens on the page: search, value range, colour scale and its gamma.

import { button, choose, h } from "./dom.js";
import { count, number } from "./format.js";

const SCALES = [["step", "scale: whole step"], ["group", "scale: this group"], ["response", "scale: this response"]];
// Below this width there is room for one pane only (see views.css).
const NARROW = matchMedia("(max-width: 1000px)");

export class Toolbar {
  // `jump(direction)` goes to the next or previous match
  constructor(store, jump) {
    this.store = store;
    const field = (name, props) => h("input", { type: "text", spellcheck: "false", autocomplete: "off", ...props, oninput: (event) => store.go({ [name]: event.target.value }) });
    this.search = field("q", { id: "search", type: "search", placeholder: "Search the text  /", "aria-label": "Search the text" });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") jump(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.search.blur();
    });
    this.regex = this.toggle("regex", ".*", "Regular expression");
    this.case = this.toggle("case", "Aa", "Match case");
    this.matches = h("span", { class: "matches", role: "status" });
    this.previous = button("↑", () => jump(-1), { class: "quiet icon", "aria-label": "Previous match", title: "Previous match" });
    this.next = button("↓", () => jump(1), { class: "quiet icon", "aria-label": "Next match", title: "Next match" });
    this.by = h("span");
    this.lo = field("lo", { id: "lo", class: "bound", inputmode: "decimal", placeholder: "from", "aria-label": "Lowest value" });
    this.hi = field("hi", { id: "hi", class: "bound", inputmode: "decimal", placeholder: "to", "aria-label": "Highest value" });
    this.clear = button("Clear", () => store.go({ q: "", lo: "", hi: "", by: "" }), { class: "quiet", title: "Clear search and range (Esc)" });
    this.scale = h("span");
    this.panes = h("span", { class: "paneselect" });
    this.gamma = h("input", { type: "range", id: "gamma", min: "-1.6", max: "1.6", step: "0.05", "aria-label": "Gamma of the colours", title: "Gamma: left lifts small values, right shows only large ones" });
    this.gamma.addEventListener("input", () => store.go({ gamma: Number((2 ** Number(this.gamma.value)).toFixed(3)) }));
    this.gammaText = h("output", { for: "gamma" });
    this.node = h(
      "div",
      { class: "toolbar", role: "search" },
      h("div", { class: "tool" }, this.search, this.regex, this.case, this.previous, this.next, this.matches),
      h("div", { class: "tool" }, this.by, this.lo, h("span", { class: "muted" }, "–"), this.hi, this.clear),
      h("div", { class: "tool end" }, this.panes, this.scale, h("label", { class: "gamma" }, "γ", this.gamma, this.gammaText)),
    );
  }

  toggle(name, label, title) {
    return button(label, () => this.store.go({ [name]: this.store.state[name] ? 0 : 1 }), { class: "toggle", title, "aria-label": title });
  }

  show({ state, head }) {
    for (const [node, name] of [[this.search, "q"], [this.lo, "lo"], [this.hi, "hi"]]) if (node.value !== state[name]) node.value = state[name];
    this.regex.setAttribute("aria-pressed", state.regex ? "true" : "false");
    this.case.setAttribute("aria-pressed", state.case ? "true" : "false");
    const metrics = head.metrics.map((metric) => [metric.name, `${metric.name.replaceAll("_", " ")} range`]);
    choose(this.by, "Metric of the range", metrics, state.by || state.right, (by) => this.store.go({ by }));
    choose(this.scale, "Colour scale", SCALES.slice(0, state.response === null ? 2 : 3), state.scale, (scale) => this.store.go({ scale }));
    const panes = [["left", `show ${state.left.replaceAll("_", " ")}`], ["right", `show ${state.right.replaceAll("_", " ")}`]];
    const pane = state.pane === "both" && NARROW.matches ? "left" : state.pane;
    choose(this.panes, "Panes", NARROW.matches ? panes : [["both", "both panes"], ...panes], pane, (value) => this.store.go({ pane: value }));
    this.gamma.value = String(Math.log2(state.gamma));
    this.gammaText.textContent = number(state.gamma, 2);
    const unreadable = [state.lo, state.hi].some((text) => text !== "" && !Number.isFinite(Number(text)));
    this.node.classList.toggle("unreadable", unreadable);
    this.clear.hidden = !(state.q || state.lo || state.hi);
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
