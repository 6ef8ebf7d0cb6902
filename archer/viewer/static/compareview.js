// Two steps, or two runs, beside each other: figures with their difference, strips and text on one colour scale.

import { button, choose, fill, h } from "./dom.js";
import { count, number, percent } from "./format.js";
import { DataTable } from "./table.js";
import { Legend } from "./legend.js";
import { ComparePane } from "./comparepane.js";
import { distinct, gather } from "./tokens.js";
import { isDark, Scale } from "./colour.js";
import { tokenCell } from "./tokenpanel.js";

const FIGURES = [
  ["rows", "responses", count],
  ["tokens", "tokens", count],
  ["mean_reward", "mean reward", number],
  ["accepted_share", "accepted", percent],
  ["mean_response_length", "mean length", number],
  ["mean_entropy", "mean entropy", number],
  ["mean_log_prob", "mean log-prob", number],
  ["mean_abs_influence", "mean |influence|", number],
];
const NO_FILTER = { metric: "", lo: null, hi: null, search: null };

// "run:step" or "run:step/group/response"
export function parseOther(text) {
  const match = /^(\d{1,4}):(\d{1,15})(?:\/(-?\d{1,15}))?(?:\/(\d{1,15}))?$/.exec(text);
  if (!match) return null;
  const part = (value) => (value === undefined ? null : Number(value));
  return { run: Number(match[1]), step: Number(match[2]), group: part(match[3]), response: part(match[4]) };
}

function formatOther({ run, step, group, response }) {
  return `${run}:${step}${group === null ? "" : `/${group}`}${group === null || response === null ? "" : `/${response}`}`;
}

export class CompareView {
  constructor(store, source, tooltip) {
    Object.assign(this, { store, source });
    this.legend = new Legend();
    this.chooser = h("span");
    this.figures = h("div");
    this.panes = [
      new ComparePane("A", tooltip, (change) => store.go(change)),
      new ComparePane("B", tooltip, (change) => this.goOther(change)),
    ];
    this.table = new DataTable("Distinct tokens on both sides", [], { page: 30, sort: { key: "size", descending: true } });
    this.node = h(
      "section",
      { class: "view compareview" },
      h("div", { class: "worktitle" }, h("h1", {}, "Compare"), button("Swap sides", () => this.swap(), { class: "quiet" })),
      this.figures,
      h("div", { class: "stickyhead comparehead" }, this.chooser, this.legend.node),
      h("div", { class: "two" }, this.panes.map((pane) => pane.node)),
      h("div", { class: "sectionhead" }, h("h2", {}, "Distinct tokens of the two groups"), this.table.csvButton(() => "archer-compare.csv")),
      this.table.node,
    );
  }

  goOther(change) {
    const before = parseOther(this.store.state.vs);
    const next = { ...before, ...change };
    if ("step" in change || "run" in change) Object.assign(next, { group: null, response: null });
    this.store.go({ vs: formatOther(next) });
  }

  swap() {
    const { state } = this.store;
    const other = parseOther(state.vs);
    this.store.go({ ...other, token: null, vs: formatOther(state) });
  }

  async show(context, current) {
    const { state, head, library, timelines } = context;
    const other = parseOther(state.vs);
    if (!other || !library.runs[other.run]) throw new Error("The address names a comparison that is not there; press c to choose one.");
    const otherHead = await this.source.head(other.run, other.step);
    const shared = head.metrics.filter((metric) => otherHead.metric(metric.name));
    const metric = (shared.find(({ name }) => name === state.metric) ?? shared.find(({ name }) => name === state.right) ?? shared[0]).name;
    const sides = [
      { head, place: state, run: state.run },
      { head: otherHead, place: other, run: other.run },
    ];
    for (const side of sides) {
      side.group = side.head.groups.some(({ group }) => group === side.place.group) ? side.place.group : side.head.groups[0].group;
      side.responses = await this.source.group(side.head, side.group, null, true);
    }
    if (!current()) return;
    const bound = Math.max(...sides.map((side) => side.head.metric(metric).bound));
    const scale = new Scale(head.metric(metric).ramp, bound, state.gamma, isDark());
    choose(this.chooser, "Metric", shared.map(({ name, label }) => [name, label]), metric, (value) => this.store.go({ metric: value }), { class: "metric", id: "compare-metric" });
    this.legend.show(metric, scale, isDark());
    this.showFigures(head, otherHead, library);
    sides.forEach((side, index) => this.panes[index].show({ ...side, metric, scale, library, timelines }));
    this.showDistinct(sides, metric);
  }

  showFigures(head, other, library) {
    const name = (side) => `${library.runs.length > 1 ? `${library.runs[side.run].name} · ` : ""}step ${side.step}`;
    const lines = FIGURES.filter(([key]) => head.manifest[key] !== null && other.manifest[key] !== null).map(([key, label, format]) => {
      const a = head.manifest[key];
      const b = other.manifest[key];
      return h("tr", {}, h("th", { scope: "row", class: "text" }, label), h("td", { class: "num" }, format(a)), h("td", { class: "num" }, format(b)), h("td", { class: "num delta" }, `${b > a ? "+" : ""}${format === percent ? `${number(100 * (b - a))} points` : format(b - a)}`));
    });
    fill(
      this.figures,
      h("div", { class: "tablescroll" }, h("table", { class: "figures" }, h("caption", { class: "unseen" }, "Figures of both sides"), h("thead", {}, h("tr", {}, h("th", {}), h("th", { class: "num", scope: "col" }, `A · ${name(head)}`), h("th", { class: "num", scope: "col" }, `B · ${name(other)}`), h("th", { class: "num", scope: "col" }, "B − A"))), h("tbody", {}, lines))),
    );
  }

  showDistinct(sides, metric) {
    const [a, b] = sides.map((side) => new Map(distinct(side.responses, gather(side.responses, NO_FILTER, metric, true)).map((entry) => [entry.text, entry])));
    const rows = Array.from(new Set([...a.keys(), ...b.keys()]), (text) => ({ text, a: a.get(text) ?? null, b: b.get(text) ?? null }));
    const difference = (row) => (row.a && row.b ? row.b.mean - row.a.mean : null);
    const figure = (key, label, get, format = (value) => number(value, 4)) => ({ key, label, value: get, cell: (row) => format(get(row)) });
    this.table.setColumns([
      { key: "token", label: "Token", text: true, value: (row) => row.text, cell: (row) => tokenCell(row.text) },
      figure("count_a", "Count A", (row) => row.a?.count ?? 0, count),
      figure("count_b", "Count B", (row) => row.b?.count ?? 0, count),
      figure("mean_a", `Mean ${metric} A`, (row) => row.a?.mean ?? null),
      figure("mean_b", `Mean ${metric} B`, (row) => row.b?.mean ?? null),
      figure("difference", "B − A", difference),
      figure("size", "|B − A|", (row) => (difference(row) === null ? null : Math.abs(difference(row)))),
    ]);
    this.table.show(rows);
  }
}
