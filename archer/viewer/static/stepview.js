// Level two, upper half: one step with its groups, all its responses, and what the manifest says of it.

import { button, fill, h, segmented, select } from "./dom.js";
import { bytes, count, moment, number, percent, plural, visible } from "./format.js";
import { DataTable } from "./table.js";
import { statsTable } from "./stats.js";

const GROUP_ORDERS = [
  ["group", "group number"],
  ["accepted", "accepted share"],
  ["reward", "mean reward"],
  ["length", "mean length"],
];

// The end of a prompt, where the question usually stands, on one line.
export function promptTail(prompt, length) {
  const line = visible(prompt.replace(/\s+/g, " ").trim());
  return line.length > length ? `… ${line.slice(-length)}` : line;
}

export function verdictMark(verdict) {
  if (verdict === null) return h("span", { class: "verdict" }, "");
  return h("span", { class: `verdict ${verdict}`, title: verdict }, verdict === "accepted" ? "✓" : "✕");
}

export class StepView {
  constructor(store, tokenPanel) {
    this.store = store;
    this.tokenPanel = tokenPanel;
    this.order = "group";
    this.title = h("h1");
    this.facts = h("p", { class: "lead" });
    this.notes = h("div");
    this.groups = h("div", { class: "groups" });
    this.orderBox = h("div");
    this.verdicts = h("div");
    this.stats = h("div");
    this.manifest = h("div");
    this.table = new DataTable("Responses of the step", [], {
      pick: (row) => store.go({ group: row.group, response: row.row, token: null }),
      page: 50,
      empty: "No response of this step has that verdict.",
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
      h("div", { class: "sectionhead" }, h("h2", {}, "Responses"), this.verdicts, this.table.csvButton(() => `archer-step-${this.head.step}-responses.csv`)),
      this.table.node,
      this.panelSlot,
      this.manifest,
    );
  }

  show(context) {
    const { head, state } = context;
    this.head = head;
    this.context = context;
    this.title.textContent = `Step ${head.step}`;
    const { manifest } = head;
    const facts = [plural(head.size, "response"), plural(head.groups.length, "group"), `${count(manifest.tokens)} tokens`];
    if (manifest.accepted_share !== null) facts.push(`${percent(manifest.accepted_share)} accepted`);
    if (manifest.mean_reward !== null) facts.push(`mean reward ${number(manifest.mean_reward)}`);
    this.facts.textContent = facts.join(" · ");
    fill(this.notes, head.notes.map((note) => h("p", { class: "notice" }, note)));
    this.showGroups();
    fill(this.stats, statsTable(head.metrics.map((metric) => [metric.label, metric.spread])));
    this.showResponses(state);
    this.showManifest();
    if (this.tokenPanel.node.parentNode !== this.panelSlot) this.panelSlot.append(this.tokenPanel.node);
    this.tokenPanel.show({ ...context, scopes: ["step"] });
  }

  showGroups() {
    const { head } = this;
    fill(this.orderBox, select("Order of the groups", GROUP_ORDERS, this.order, (order) => {
      this.order = order;
      this.showGroups();
    }));
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
      { class: "groupcard", "data-group": group },
    );
  }

  showResponses(state) {
    const { head } = this;
    fill(this.verdicts, head.rows.accepted && segmented("Verdict", [["all", "all"], ["accepted", "accepted"], ["rejected", "rejected"]], state.verdict, (verdict) => this.store.go({ verdict })));
    const rows = head.numbers.filter((row) => state.verdict === "all" || head.verdict(row) === state.verdict);
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
