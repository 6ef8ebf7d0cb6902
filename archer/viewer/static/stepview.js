// Level two, upper half: one step with its groups, all its responses, and what the manifest says of it.

import { button, choose, chooseSegment, fill, h } from "./dom.js";
import { bytes, count, moment, number, percent, plural, visible } from "./format.js";
import { DataTable } from "./table.js";
import { Toolbar } from "./toolbar.js";
import { statsTable } from "./stats.js";
import { stripTokens } from "./tokens.js";

const GROUP_ORDERS = [
  ["group", "group number"],
  ["accepted", "accepted share"],
  ["reward", "mean reward"],
  ["length", "mean length"],
];

// Groups that are fetched before anybody asks: the first ones on the page, and the one under the pointer.
const AHEAD_GROUPS = 4;
const AHEAD_TOKENS = 300000;
const VERDICTS = [["all", "all"], ["accepted", "accepted"], ["rejected", "rejected"]];

// The end of a prompt, where the question usually stands, on one line.
export function promptTail(prompt, length) {
  const line = visible(prompt.replace(/\s+/g, " ").trim());
  return line.length > length ? `… ${line.slice(-length)}` : line;
}

const MARKS = { accepted: "✓", rejected: "✕", unjudged: "?" };

export function verdictMark(verdict) {
  if (verdict === null) return h("span", { class: "verdict" }, "");
  return h("span", { class: `verdict ${verdict}`, title: verdict }, MARKS[verdict]);
}

export class StepView {
  constructor(store, source, tokenPanel) {
    Object.assign(this, { store, source, tokenPanel });
    this.order = "group";
    this.title = h("h1");
    this.facts = h("p", { class: "lead" });
    this.notes = h("div");
    this.groups = h("div", { class: "groups" });
    this.orderBox = h("div");
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
      h("div", { class: "sectionhead" }, h("h2", {}, "Groups"), this.orderBox),
      this.groups,
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
    fill(this.notes, [...head.notes, ...empty].map((note) => h("p", { class: "notice" }, note)));
    this.showGroups();
    fill(this.stats, statsTable(head.metrics.map((metric) => [metric.label, metric.spread])));
    this.showManifest();
  }

  fetchAhead() {
    clearTimeout(this.ahead);
    this.ahead = setTimeout(() => {
      let tokens = 0;
      for (const card of Array.from(this.groups.children).slice(0, AHEAD_GROUPS)) {
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

  showGroups() {
    const { head } = this;
    choose(this.orderBox, "Order of the groups", GROUP_ORDERS, this.order, (order) => {
      this.order = order;
      this.showGroups();
    });
    const cards = head.groups.map(({ group, prompt }) => {
      const rows = head.rowsOf(group);
      const mean = (get) => {
        const values = rows.map(get).filter((value) => value !== null);
        return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
      };
      return {
        group,
        prompt,
        rows,
        accepted: mean((row) => (head.fact(row, "accepted") === null ? null : Number(head.fact(row, "accepted")))),
        reward: mean((row) => head.fact(row, "reward")),
        length: mean((row) => head.fact(row, "length")),
      };
    });
    if (this.order !== "group") cards.sort((a, b) => (b[this.order] ?? -Infinity) - (a[this.order] ?? -Infinity) || a.group - b.group);
    fill(this.groups, cards.map((card) => this.card(card)));
  }

  card({ group, prompt, rows, reward, length }) {
    const { head } = this;
    const dots = rows.slice(0, 32).map((row) => {
      const verdict = head.verdict(row);
      return h("i", { class: `pip ${verdict ?? ""}` });
    });
    const good = rows.filter((row) => head.fact(row, "accepted")).length;
    const facts = [`${good} of ${rows.length} accepted`, `reward ${number(reward)}`, `length ${number(length)}`];
    return button(
      [
        h("span", { class: "cardtop" }, h("strong", {}, `Group ${group}`), h("span", { class: "pips", "aria-hidden": "true" }, dots)),
        prompt !== null && h("span", { class: "promptline" }, promptTail(prompt, 96)),
        h("span", { class: "cardfacts" }, facts.join(" · ")),
      ],
      () => this.store.go({ group, response: null, token: null }),
      { class: "groupcard", "data-group": group, onpointerenter: () => this.fetch(group), onfocus: () => this.fetch(group) },
    );
  }

  showResponses(state) {
    const { head } = this;
    this.verdicts.hidden = !head.rows.accepted;
    chooseSegment(this.verdicts, "Verdict", VERDICTS, state.verdict, (verdict) => this.store.go({ verdict }));
    if (this.find.value !== state.find) this.find.value = state.find;
    const prompts = new Map(head.groups.map(({ group, prompt }) => [group, prompt]));
    const rows = head.numbers.filter((row) => (state.verdict === "all" || head.verdict(row) === state.verdict) && isLike(head, row, prompts, state.find));
    const fact = (key, label, format, name = key) =>
      head.rows[name] ? [{ key, label, value: (entry) => head.fact(entry.row, name), cell: (entry) => format(head.fact(entry.row, name)) }] : [];
    this.table.setColumns([
      { key: "response", label: "Response", value: (entry) => entry.row, cell: (entry) => String(entry.row) },
      ...fact("group", "Group", String),
      ...(head.rows.accepted ? [{ key: "accepted", label: "Verdict", text: true, value: (entry) => head.verdict(entry.row), cell: (entry) => [verdictMark(head.verdict(entry.row)), ` ${head.verdict(entry.row)}`] }] : []),
      ...fact("reward", "Reward", number),
      ...fact("length", "Tokens", count),
      ...head.metrics.map((metric) => {
        const absolute = metric.ramp === "diverging";
        const get = (entry) => head.mean(entry.row, metric.name, absolute);
        return { key: `mean_${absolute ? "abs_" : ""}${metric.name}`, label: absolute ? `mean |${metric.name}|` : `mean ${metric.name.replaceAll("_", " ")}`, value: get, cell: (entry) => number(get(entry)) };
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
