// Search over all steps of a run: how often, with what entropy and influence over training, and where.

import { button, chooseSegment, cssColour, fill, h } from "./dom.js";
import { count, number, plural, visibleBlanks } from "./format.js";
import { StepChart } from "./chart.js";
import { TokenList } from "./tokenlist.js";

const MODES = [["word", "word"], ["text", "text"], ["token", "token"], ["regex", "regex"]];
const MEANING = {
  word: "Whole words, wherever they stand: wait, Wait and \u201C wait\u201D are one query.",
  text: "These characters, inside words too.",
  token: "One token of the vocabulary: its text, or #id. Without Aa, blanks around it and case do not matter.",
  regex: "A regular expression over the joined text of each response; it may take 2 s a step.",
};
const WORDS = ["wait", "but", "however", "hmm", "alternatively", "let me check", "therefore", "so"];
const CHARTS = [
  ["matches", "Matches", count],
  ["rate", "Matches per 1,000 tokens", number],
  ["entropy", "Their mean entropy (nats)", number],
  ["influence", "Their mean influence", number],
];
const MAX_LISTED = 2000;

export class RunSearchView {
  constructor(store, source) {
    Object.assign(this, { store, source, results: [], key: null });
    this.field = h("input", { type: "search", id: "runsearch", spellcheck: "false", autocomplete: "off", maxlength: "500", placeholder: "Search all steps, then Enter", "aria-label": "Search all steps of the run" });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") store.go({ sq: this.field.value });
    });
    this.modes = h("div");
    this.case = button("Aa", () => store.go({ scase: store.state.scase ? 0 : 1 }), { class: "toggle", "aria-label": "Match case", title: "Match case" });
    this.go = button("Search", () => store.go({ sq: this.field.value }), { id: "runsearch-go" });
    this.stop = button("Stop", () => this.cancel(), { class: "quiet", id: "runsearch-stop" });
    this.words = h("div", { class: "searchwords", role: "group", "aria-label": "Often asked" }, WORDS.map((word) => button(word, () => store.go({ sq: word, smode: "word", scase: 0 }), { class: "quiet" })));
    this.meaning = h("p", { class: "hint" });
    this.status = h("p", { class: "lead", role: "status" });
    this.spellings = h("p", { class: "spellings" });
    this.problems = h("div");
    const events = { pick: (step) => this.openStep(step), hover: (step) => this.hover(step) };
    this.charts = CHARTS.map(([key, title, format]) => ({ key, format, chart: new StepChart(title, 165, events) }));
    this.grid = h("div", { class: "charts" }, this.charts.map(({ chart }) => chart.node));
    this.list = new TokenList("Matches", store, (token) => token.step, { page: 40, empty: "No match." });
    this.listed = h("div", { class: "sectionhead" }, h("h2", {}, "Where"), (this.amount = h("span", { class: "amount" })), this.list.table.csvButton(() => "archer-search.csv"));
    this.found = h("div", {}, this.spellings, this.grid, this.listed, this.list.node);
    this.node = h(
      "section",
      { class: "view runsearchview" },
      h("div", { class: "worktitle" }, h("h1", {}, "Search the run"), button("Back", () => store.go({ page: "" }), { class: "quiet", title: "To where you were (u)" })),
      h("div", { class: "controls" }, this.field, this.modes, this.case, this.go, this.stop),
      this.words,
      this.meaning,
      this.status,
      this.problems,
      this.found,
    );
  }

  show({ state, timelines }) {
    const mode = MEANING[state.smode] ? state.smode : "word";
    if (this.field.value !== state.sq && document.activeElement !== this.field) this.field.value = state.sq;
    chooseSegment(this.modes, "What to look for", MODES, mode, (smode) => this.store.go({ smode, sq: this.field.value }));
    this.case.setAttribute("aria-pressed", state.scase ? "true" : "false");
    this.meaning.textContent = MEANING[mode];
    const key = JSON.stringify([state.run, state.sq, mode, state.scase, timelines[state.run].steps.length]);
    if (key === this.key) {
      this.render();
      return;
    }
    this.key = key;
    if (this.aborter) this.aborter.replaced = true; // its answers are of no use to the new question
    this.cancel();
    this.results = [];
    this.status.textContent = "";
    this.render();
    if (state.sq.trim()) this.look({ run: state.run, q: state.sq, mode, case: state.scase, runs: timelines[state.run].steps.length });
  }

  cancel() {
    this.aborter?.abort();
    this.aborter = null;
    this.stop.hidden = true;
  }

  async look(query) {
    const aborter = (this.aborter = new AbortController());
    this.stop.hidden = false;
    let after = -1;
    try {
      while (after !== null) {
        this.status.textContent = `Searching … ${count(this.results.length)} of ${plural(query.runs, "step")}`;
        const answer = await this.source.searchRun({ ...query, after }, aborter.signal);
        if (aborter.replaced) return;
        if (aborter.signal.aborted) break;
        this.results.push(...answer.results);
        after = answer.next;
        this.render();
      }
      this.status.textContent = this.summary(aborter.signal.aborted ? `stopped after ${plural(this.results.length, "step")}` : plural(this.results.length, "step"));
    } catch (error) {
      if (aborter.replaced) return;
      this.status.textContent = error.name === "AbortError" ? this.summary(`stopped after ${plural(this.results.length, "step")}`) : error.message;
    }
    if (aborter === this.aborter) this.cancel();
    document.documentElement.dataset.searched = this.key;
  }

  known() {
    return this.results.filter((result) => !result.problem);
  }

  summary(scope) {
    const known = this.known();
    const sum = (name) => known.reduce((total, result) => total + result[name], 0);
    const mean = (name) => {
      const tokens = sum(`${name}_tokens`);
      return tokens ? known.reduce((total, result) => total + (result[name] ?? 0) * result[`${name}_tokens`], 0) / tokens : null;
    };
    if (!sum("matches")) return `No match in ${plural(sum("of_responses"), "response")} · ${scope}`;
    return `${plural(sum("matches"), "match").replace("matchs", "matches")} in ${count(sum("responses"))} of ${plural(sum("of_responses"), "response")} · ${scope} · mean entropy ${number(mean("entropy"))} · mean influence ${number(mean("influence"))} over ${plural(sum("influence_tokens"), "scored token")}`;
  }

  render() {
    const known = this.known();
    this.found.hidden = !known.length;
    fill(this.problems, this.results.filter((result) => result.problem).slice(0, 8).map(({ step, problem }) => h("p", { class: "notice" }, `Step ${step} could not be searched: ${problem}`)));
    if (!known.length) return;
    const spelled = new Map();
    for (const { spellings } of known) for (const [text, amount] of Object.entries(spellings)) spelled.set(text, (spelled.get(text) ?? 0) + amount);
    const most = Array.from(spelled).sort((a, b) => b[1] - a[1]).slice(0, 12);
    fill(this.spellings, most.map(([text, amount]) => h("span", { class: "spelling" }, h("code", { class: "tok" }, visibleBlanks(text)), ` ${count(amount)}`)));
    const values = { matches: (r) => r.matches, rate: (r) => (r.of_tokens ? (1000 * r.matches) / r.of_tokens : null), entropy: (r) => r.entropy, influence: (r) => r.influence };
    for (const { key, chart, format } of this.charts) {
      const column = known.map(values[key]);
      chart.node.hidden = column.every((value) => value === null);
      if (!chart.node.hidden) chart.show([{ steps: known.map(({ step }) => step), values: column, colour: cssColour("--series-1") }], null, [], format);
    }
    const listed = known.flatMap(({ examples }) => examples).slice(0, MAX_LISTED);
    const total = known.reduce((sum, { matches }) => sum + matches, 0);
    this.amount.textContent = listed.length < total ? `${count(listed.length)} of ${count(total)}: up to 40 a step, from as many responses as there are` : `all ${count(total)}`;
    const none = total === 0;
    for (const node of [this.grid, this.listed, this.list.node]) node.hidden = none;
    this.list.show(listed, Array.from(new Set(listed.flatMap(({ values: held }) => Object.keys(held)))), true);
  }

  hover(step) {
    for (const { chart } of this.charts) if (!chart.node.hidden) chart.hover(step);
  }

  // The step, with the same words looked for in its text.
  openStep(step) {
    const { sq, smode, scase } = this.store.state;
    this.store.go({ step, group: null, response: null, token: null, q: smode === "token" ? "" : sq, regex: smode === "regex" ? 1 : 0, case: scase });
  }
}
