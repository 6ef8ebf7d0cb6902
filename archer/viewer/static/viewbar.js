// How the group's text and strips are shown: two responses or two metrics, what lies beside, rendered or not, pooling.

import { spoken } from "./format.js";
import { hasThird, paneMetrics } from "./tokens.js";
import { button, choose, chooseSegment, h } from "./dom.js";

const NUMBERS = { 2: "Two", 3: "Three" };
const POOLS = [["mean", "Means"], ["extremes", "Extremes"]];
const MARKS = { accepted: "✓", rejected: "✕", unjudged: "?" };

export class ViewBar {
  constructor(store) {
    this.store = store;
    this.texts = h("span");
    this.beside = h("span");
    this.line = h("span");
    this.pool = h("span", { title: "What a pixel or bar over several tokens shows" });
    this.rendered = button("Rendered", () => store.go({ rendered: store.state.rendered ? 0 : 1 }), { class: "quiet", id: "rendered", title: "The response's Markdown and LaTeX beside its tokens" });
    this.paid = button("Paid", () => store.go({ third: store.state.third === "" ? "paid" : "" }), { class: "quiet", id: "third", title: "The third pane: what every token was paid" });
    this.whole = button("Show all positions", () => store.go({ zoom: "" }), { class: "quiet", id: "unzoom" });
    this.node = h("div", { class: "viewbar" }, this.texts, this.beside, this.line, this.rendered, this.paid, h("span", { class: "spring" }), this.whole, this.pool);
  }

  // `shown`: the responses on the page, none while they are on their way
  show({ state, head, library }, shown) {
    const [response, beside] = shown;
    const metrics = paneMetrics(state, head);
    const texts = [["pair", "Two responses"], ["single", `${NUMBERS[metrics.length]} metrics`]];
    const single = head.rowsOf(state.group).length < 2;
    this.texts.hidden = !response || single;
    chooseSegment(this.texts, "Text", texts, beside ? "pair" : "single", (mode) => this.store.go({ response: response.row, token: state.token, beside: mode === "pair" ? "nearest" : "" }));
    this.beside.hidden = !beside;
    if (beside) {
      const rows = head.rowsOf(state.group).filter((row) => row !== response.row);
      const options = rows.map((row) => [row, `beside response ${row} ${MARKS[head.verdict(row)] ?? ""}`]);
      choose(this.beside, "Response beside", options, beside.row, (row) => this.store.go({ response: response.row, beside: row }));
    }
    this.line.hidden = !beside || metrics.length < 3;
    if (!this.line.hidden) {
      const options = [["third", metrics[2]], ["left", metrics[0]]].map(([name, metric]) => [name, `line below: ${spoken(metric)}`]);
      choose(this.line, "Line below the tokens", options, state.line === "left" ? "left" : "third", (line) => this.store.go({ line }));
    }
    this.paid.hidden = !hasThird(head);
    this.paid.setAttribute("aria-pressed", metrics.length > 2 ? "true" : "false");
    this.rendered.hidden = library.static;
    this.rendered.setAttribute("aria-pressed", state.rendered ? "true" : "false");
    this.whole.hidden = !state.zoom;
    chooseSegment(this.pool, "Pixels over several tokens", POOLS, state.pool === "extremes" ? "extremes" : "mean", (pool) => this.store.go({ pool }));
  }
}
