// Level two, upper half: one step with its groups, all its responses, and what the manifest says of it.

import { chooseSegment, fill, h } from "./dom.js";
import { bytes, count, moment, number, percent, plural, spoken, visible } from "./format.js";
import { DataTable } from "./table.js";
import { GroupCards } from "./groupcards.js";
import { linkButton } from "./tokenlist.js";
import { StepPlots } from "./stepplots.js";
import { Toolbar } from "./toolbar.js";
import { statsTable } from "./stats.js";
import { stripTokens } from "./tokens.js";

// Groups that are fetched before anybody asks: the first ones on the page, and the one under the pointer.
const AHEAD_GROUPS = 4;
const AHEAD_TOKENS = 300000;
const VERDICTS = [["all", "all"], ["accepted", "accepted"], ["rejected", "rejected"], ["unjudged", "unjudged"], ["truncated", "truncated"]];

const MARKS = { accepted: "✓", rejected: "✕", unjudged: "?" };

export function verdictMark(verdict) {
  if (verdict === null) return h("span", { class: "verdict" }, "");
  return h("span", { class: `verdict ${verdict}`, title: verdict }, MARKS[verdict]);
}

export class StepView {
  constructor(store, source, tokenPanel) {
    Object.assign(this, { store, source, tokenPanel });
    this.title = h("h1");
    this.facts = h("p", { class: "lead" });
    this.notes = h("div");
    this.groups = new GroupCards(store, { open: (group) => store.go({ group, response: null, token: null }), ahead: (group) => this.fetch(group) });
    this.plots = new StepPlots(store, source);
    this.verdicts = h("div");
    this.find = h("input", { type: "search", id: "find", spellcheck: "false", autocomplete: "off", placeholder: "uid, prompt or number", "aria-label": "Find responses by uid, prompt or number", oninput: (event) => store.go({ find: event.target.value }) });
    this.find.addEventListener("keydown", (event) => event.key === "Enter" && this.openOnly());
    this.toolbar = new Toolbar(store);
    this.stats = h("div");
    this.manifest = h("div");
    this.table = new DataTable("Responses of the step", [], {
      pick: (row) => store.go({ group: row.group, response: row.row, token: null }),
      page: 24,
      empty: "No response of this step is like that. Clear the field or choose another verdict.",
    });
    this.panelSlot = h("div");
    this.node = h(
      "section",
      { class: "view stepview" },
      this.title,
      this.facts,
      this.notes,
      this.plots.node,
      this.groups.node,
      h("div", { class: "sectionhead" }, h("h2", {}, "Summary statistics")),
      this.stats,
      h("div", { class: "sectionhead" }, h("h2", {}, "Responses"), this.verdicts, this.find, this.table.csvButton(() => `archer-step-${this.head.step}-responses.csv`)),
      this.table.node,
      h("div", { class: "steptools" }, this.toolbar.node),
      this.panelSlot,
      this.manifest,
    );
  }

  show(context) {
    const { head, state } = context;
    const same = this.head === head;
    Object.assign(this, { head, context });
    if (!same) this.showHead();
    this.plots.show(head, state);
    this.groups.show(head, state);
    if (!same) this.fetchAhead();
    this.showResponses(state);
    if (this.tokenPanel.node.parentNode !== this.panelSlot) this.panelSlot.append(this.tokenPanel.node);
    this.toolbar.show(context);
    if (!state.q) this.toolbar.showMatches(null, 0, null);
    this.tokenPanel.show({ ...context, scopes: ["step"], found: (search, matches) => this.toolbar.showMatches(search, matches, null) });
  }

  showHead() {
    const { head } = this;
    this.title.textContent = `Step ${head.step}`;
    const { manifest } = head;
    const facts = [plural(head.size, "response"), plural(head.groups.length, "group"), `${count(manifest.tokens)} tokens`];
    if (manifest.accepted_share !== null) facts.push(`${percent(manifest.accepted_share)} accepted`);
    if (manifest.mean_reward !== null) facts.push(`mean reward ${number(manifest.mean_reward)}`);
    this.facts.textContent = facts.join(" · ");
    const empty = head.size ? [] : ["This step holds no responses. An influence trace keeps the groups that were scored, and here none had both accepted and rejected responses."];
    fill(this.notes, [...head.notes, ...empty].map((note) => h("p", { class: "notice" }, note)), this.failures());
    fill(this.stats, statsTable(head.metrics.map((metric) => [metric.label, metric.spread])));
    this.showManifest();
  }

  fetchAhead() {
    clearTimeout(this.ahead);
    this.ahead = setTimeout(() => {
      let tokens = 0;
      for (const card of Array.from(this.groups.cards.children).slice(0, AHEAD_GROUPS)) {
        const group = Number(card.dataset.group);
        for (const row of this.head.rowsOf(group)) tokens += this.head.fact(row, "span");
        if (tokens > AHEAD_TOKENS) break;
        this.fetch(group);
      }
    }, 150);
  }

  fetch(group) {
    stripTokens(this.source, this.head, group, this.store.state).catch(() => {}); // who opens the group is told why
  }

  // A value that must be there and is not a number is a failure of the run, not an absence in the trace.
  failures() {
    const { head } = this;
    const failing = head.metrics.filter(({ failed }) => failed?.tokens);
    const causes = Map.groupBy(failing, ({ failed }) => JSON.stringify(failed)); // what fails at the same tokens is told once
    return Array.from(causes.values(), (metrics) => {
      const { failed } = metrics[0];
      const names = metrics.map(({ name }) => spoken(name)).join(", ");
      return h(
        "p",
        { class: "notice damaged" },
        `${plural(failed.tokens, "token")} in ${plural(failed.responses, "response")} have NaN or infinite ${names}: the computation failed there. Means leave them out. See `,
        failed.rows.map((row) => linkButton(`response ${row}`, () => this.store.go({ group: head.fact(row, "group"), response: row, token: null }), "Open this response")),
      );
    });
  }

  showResponses(state) {
    const { head } = this;
    this.verdicts.hidden = !head.rows.accepted;
    const offered = VERDICTS.filter(([name]) => (name !== "unjudged" && name !== "truncated") || head.rows[name]?.some(Boolean));
    chooseSegment(this.verdicts, "Verdict", offered, state.verdict, (verdict) => this.store.go({ verdict }));
    if (this.find.value !== state.find) this.find.value = state.find;
    const prompts = new Map(head.groups.map(({ group, prompt }) => [group, prompt]));
    const rows = head.numbers.filter((row) => (state.verdict === "all" || (state.verdict === "truncated" ? head.fact(row, "truncated") : head.verdict(row) === state.verdict)) && isLike(head, row, prompts, state.find));
    const fact = (key, label, format, name = key) =>
      head.rows[name] ? [{ key, label, value: (entry) => head.fact(entry.row, name), cell: (entry) => format(head.fact(entry.row, name)) }] : [];
    this.table.setColumns([
      { key: "response", label: "Response", value: (entry) => entry.row, cell: (entry) => String(entry.row) },
      ...fact("group", "Group", String),
      ...(head.rows.accepted ? [{ key: "accepted", label: "Verdict", text: true, value: (entry) => head.verdict(entry.row), cell: (entry) => [verdictMark(head.verdict(entry.row)), ` ${head.verdict(entry.row)}`] }] : []),
      ...fact("reward", "Reward", number),
      ...fact("length", "Tokens", count),
      ...(head.rows.truncated ? [{ key: "truncated", label: "Truncated", text: true, value: (entry) => head.fact(entry.row, "truncated"), cell: (entry) => (head.fact(entry.row, "truncated") ? "truncated" : "") }] : []),
      ...head.metrics.flatMap((metric) => (metric.ramp === "diverging" ? [[metric, false], [metric, true]] : [[metric, false]])).map(([metric, absolute]) => {
        const get = (entry) => head.mean(entry.row, metric.name, absolute);
        return { key: `mean_${absolute ? "abs_" : ""}${metric.name}`, label: absolute ? `mean |${spoken(metric.name)}|` : `mean ${spoken(metric.name)}`, value: get, cell: (entry) => number(get(entry)) };
      }),
      ...fact("sample_index", "Sample", String),
      ...(head.rows.uid ? [{ key: "uid", label: "uid", text: true, value: (entry) => head.fact(entry.row, "uid"), cell: (entry) => visible(head.fact(entry.row, "uid")) }] : []),
    ]);
    this.table.show(rows.map((row) => ({ row, group: head.fact(row, "group") })));
  }

  // Enter in the field goes to the response when only one is left.
  openOnly() {
    const { rows } = this.table;
    if (rows.length === 1) this.store.go({ group: rows[0].group, response: rows[0].row, token: null });
  }

  showManifest() {
    const formats = { bytes, time: moment, accepted_share: percent };
    const entries = Object.entries(this.head.manifest).filter(([, value]) => value !== null);
    fill(
      this.manifest,
      h(
        "details",
        { class: "manifest" },
        h("summary", {}, "Manifest line of this step"),
        h("dl", { class: "facts" }, entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, (formats[name] ?? number)(value))])),
      ),
    );
  }
}

// Whether a response is the one somebody looks for: by its number, its uid or words of its prompt.
function isLike(head, row, prompts, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return true;
  if (wanted === String(row) || wanted === String(head.fact(row, "sample_index"))) return true;
  const facts = [head.fact(row, "uid"), prompts.get(head.fact(row, "group"))];
  return facts.some((fact) => fact !== null && fact !== undefined && fact.toLowerCase().includes(wanted));
}
