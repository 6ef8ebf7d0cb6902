// The tokens of a step at a glance: its extremes, entropy against influence with a brush, reward against length.

import { chooseSegment, cssColour, fill, h } from "./dom.js";
import { count, number } from "./format.js";
import { Scatter } from "./scatter.js";
import { TokenList } from "./tokenlist.js";

const LISTED = 100;
const VERDICTS = { accepted: "--accepted", rejected: "--rejected", unjudged: "--muted", "no verdict": "--muted" };

export class StepPlots {
  constructor(store, source) {
    Object.assign(this, { store, source });
    this.tabs = h("div");
    this.note = h("p", { class: "empty", role: "status" });
    this.body = h("div");
    this.list = new TokenList("Tokens of the step", store, () => this.head.step, { empty: "No token." });
    this.listed = h("h3");
    this.tokens = new Scatter(320, { pick: (index) => this.openToken(index), brush: (window) => this.brush(window) });
    this.responses = new Scatter(320, { pick: (index) => this.openResponse(index) });
    this.node = h("section", { class: "stepplots", "aria-label": "Tokens and responses of the step" }, h("div", { class: "sectionhead" }, h("h2", {}, "At a glance"), this.tabs), this.note, this.body);
    this.ticket = 0;
  }

  show(head, state) {
    const scored = head.metric("influence") !== null && head.metric("influence").spread.all.count > 0;
    const metric = scored ? "influence" : "entropy";
    const tabs = [
      ["", "none"],
      ["lowest", scored ? "Most negative tokens" : "Lowest entropy"],
      ["highest", scored ? "Most positive tokens" : "Highest entropy"],
      ...(scored ? [["scatter", "Entropy × influence"]] : []),
      ["lengths", "Reward × length"],
    ];
    const chosen = tabs.some(([name]) => name === state.look) ? state.look : "";
    chooseSegment(this.tabs, "At a glance", tabs, chosen, (look) => this.store.go({ look }));
    const key = `${head.run}/${head.step}/${head.version}/${chosen}`;
    if (key === this.key && document.documentElement.dataset.theme === this.theme) return;
    Object.assign(this, { head, key, theme: document.documentElement.dataset.theme });
    this.ticket += 1;
    this.note.textContent = "";
    this.node.hidden = head.size === 0;
    fill(this.body);
    if (chosen === "lowest" || chosen === "highest") this.showExtremes(metric, chosen === "lowest" ? "ascending" : "descending");
    else if (chosen === "scatter") this.showTokens();
    else if (chosen === "lengths") this.showResponses();
  }

  async showExtremes(metric, order) {
    const answer = await this.ask(() => this.source.tokens(this.head, { metric, order, limit: LISTED }));
    if (!answer) return;
    this.note.textContent = `${count(answer.tokens.length)} of ${count(answer.total)} tokens with ${metric}. A row opens its response at the token.`;
    this.list.show(answer.tokens, this.head.metrics.map(({ name }) => name));
    fill(this.body, this.list.node);
  }

  async showTokens() {
    const plot = await this.ask(() => this.source.points(this.head, "entropy", "influence"));
    if (!plot) return;
    const { header, arrays } = plot;
    this.points = arrays;
    const sampled = header.shown < header.total ? `A sample: ${count(header.shown)} of ${count(header.total)} tokens, all extremes of both axes among them; a rectangle is counted over all.` : `All ${count(header.total)} tokens with both values.`;
    this.said = `${sampled} ${count(header.without)} valid tokens lack one of them. Drag a rectangle to list its tokens, click a point to open it.`;
    this.note.textContent = this.said;
    fill(this.body, this.tokens.node, this.listed, this.list.node);
    this.listed.textContent = "";
    this.list.node.hidden = true;
    const beyond = this.tokens.show({
      x: arrays.x,
      y: arrays.y,
      ...this.verdictsOf(arrays.row),
      labels: ["entropy (nats)", "influence"],
      say: (index) => `response ${arrays.row[index]} (${this.head.verdict(arrays.row[index]) ?? "no verdict"}), token ${arrays.position[index]}: entropy ${number(arrays.x[index])}, influence ${number(arrays.y[index])}`,
    });
    if (beyond) this.note.textContent = `${this.said} ${count(beyond)} far points are drawn at the edge.`;
  }

  // The colour of each point, and what the colours mean.
  verdictsOf(rows) {
    const known = Object.keys(VERDICTS);
    return { colours: Object.values(VERDICTS).map(cssColour), names: known, kinds: Uint8Array.from(rows, (row) => known.indexOf(this.head.verdict(row) ?? "no verdict")) };
  }

  openToken(index) {
    const row = this.points.row[index];
    this.store.go({ group: this.head.fact(row, "group"), response: row, token: this.points.position[index] });
  }

  async brush(window) {
    if (!window) {
      this.listed.textContent = "";
      this.list.node.hidden = true;
      return;
    }
    const answer = await this.ask(() => this.source.tokens(this.head, { metric: "influence", order: "size", limit: LISTED, x: "entropy", y: "influence", window }));
    if (!answer) return;
    const range = ([low, high]) => (low === -Infinity ? `up to ${number(high)}` : high === Infinity ? `from ${number(low)}` : `${number(low)} to ${number(high)}`);
    this.listed.textContent = `${count(answer.total)} tokens with entropy ${range(window.x)} and influence ${range(window.y)}${answer.total > answer.tokens.length ? `; the ${answer.tokens.length} of largest |influence|` : ""}`;
    this.list.node.hidden = false;
    this.list.show(answer.tokens, this.head.metrics.map(({ name }) => name));
  }

  showResponses() {
    const { head } = this;
    const rows = head.numbers.filter((row) => head.fact(row, "reward") !== null);
    this.rows = rows;
    const left = head.size - rows.length;
    const cut = rows.filter((row) => head.fact(row, "truncated")).length;
    this.note.textContent = `${count(rows.length)} responses${left ? `, ${count(left)} without a reward left out` : ""}. ${head.rows.truncated ? `${count(cut)} truncated ones are framed.` : "This trace does not say which were truncated."} A click opens a response.`;
    fill(this.body, this.responses.node);
    this.responses.show({
      x: Float64Array.from(rows, (row) => head.fact(row, "length")),
      y: Float64Array.from(rows, (row) => head.fact(row, "reward")),
      ...this.verdictsOf(rows),
      rings: Uint8Array.from(rows, (row) => (head.fact(row, "truncated") ? 1 : 0)),
      labels: ["length (tokens)", "reward"],
      say: (index) => `response ${rows[index]}, group ${head.fact(rows[index], "group")}: reward ${number(head.fact(rows[index], "reward"))}, ${count(head.fact(rows[index], "length"))} tokens${head.fact(rows[index], "truncated") ? ", truncated" : ""}`,
    });
  }

  openResponse(index) {
    const row = this.rows[index];
    this.store.go({ group: this.head.fact(row, "group"), response: row, token: null });
  }

  // The answer to a question that still matters; what went wrong is said in its place.
  async ask(question) {
    const { ticket } = this;
    try {
      const answer = await question();
      return ticket === this.ticket ? answer : null;
    } catch (error) {
      if (ticket === this.ticket) this.note.textContent = error.message;
      return null;
    }
  }
}
