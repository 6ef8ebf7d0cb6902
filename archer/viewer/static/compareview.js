// Two steps, or two runs, beside each other: figures, the prompts in common, strips and text on one colour scale.

import { alignedGroups, partner, sharedPrompts } from "./align.js";
import { button, choose, fill, h } from "./dom.js";
import { ComparePane } from "./comparepane.js";
import { countMatches, filterOf } from "./tokens.js";
import { DataTable } from "./table.js";
import { distinctRows, figuresTable, promptRows } from "./comparetables.js";
import { isDark } from "./colour.js";
import { Legend } from "./legend.js";
import { meaningOf, readingOf } from "./meaning.js";
import { plural, visible } from "./format.js";
import { prepare } from "./search.js";
import { sharedScale } from "./scales.js";
import { Toolbar } from "./toolbar.js";

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
    Object.assign(this, { store, source, tooltip });
    this.toolbar = new Toolbar(store, { colours: ["gamma"] });
    this.legend = new Legend();
    this.chooser = h("span");
    this.figures = h("div");
    this.common = h("p", { class: "lead common" });
    this.panes = ["A", "B"].map((name, side) => new ComparePane(name, tooltip, (change) => this.go(side, change)));
    this.prompts = new DataTable("Prompts in both", [], { page: 8, pick: (row) => this.goPair(row) });
    this.table = new DataTable("Distinct tokens on both sides", [], { page: 30, sort: { key: "size", descending: true } });
    this.node = h(
      "section",
      { class: "view compareview pending" },
      h("div", { class: "worktitle" }, h("h1", {}, "Compare"), this.common, button("Swap sides", () => this.swap(), { class: "quiet" })),
      this.figures,
      this.prompts.node,
      h("div", { class: "stickyhead" }, this.toolbar.node, h("div", { class: "comparehead" }, this.chooser, this.legend.node)),
      h("div", { class: "two" }, this.panes.map((pane) => pane.node)),
      h("div", { class: "sectionhead" }, h("h2", {}, "Distinct tokens of the two groups"), this.table.csvButton(() => "archer-compare.csv")),
      this.table.node,
    );
  }

  // A choice on one side. Another group brings the group with the same prompt to the other side.
  go(side, change) {
    const { state } = this.store;
    const places = [{ run: state.run, step: state.step, group: state.group, response: state.response }, parseOther(state.vs)];
    places[side] = { ...places[side], ...change };
    if ("step" in change || "run" in change) {
      const { steps } = this.timelines[places[side].run];
      const { step } = places[side];
      Object.assign(places[side], { step: steps.includes(step) ? step : (steps.findLast((each) => each < step) ?? steps[0] ?? step), group: null, response: null });
    }
    if (change.response === null) {
      const match = partner(this.sides[side].head, change.group, this.sides[1 - side].head);
      if (match !== null) Object.assign(places[1 - side], { group: match, response: null });
    }
    this.store.go({ ...places[0], token: null, vs: formatOther(places[1]) });
  }

  goPair({ a, b }) {
    const other = parseOther(this.store.state.vs);
    this.store.go({ group: a, response: null, token: null, vs: formatOther({ ...other, group: b, response: null }) });
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
    const heads = [head, otherHead];
    const bare = heads.find((each) => !each.groups.length);
    if (bare) throw new Error(`Step ${bare.step} holds no responses to compare. Press c to leave the comparison and choose another step.`);
    const groups = alignedGroups(head, state.group, otherHead, other.group);
    const sides = [{ place: state, run: state.run }, { place: other, run: other.run }].map((side, index) => ({ ...side, head: heads[index], group: groups[index] }));
    await Promise.all(sides.map(async (side) => (side.responses = await this.source.group(side.head, side.group, null, true))));
    const filter = filterOf(state, head);
    await prepare(filter.search, sides.flatMap(({ responses }) => responses), this.source.regexes);
    if (!current()) return;
    Object.assign(this, { sides, timelines });
    this.tooltip.unit = null;
    const offered = head.metrics.filter((metric) => otherHead.metric(metric.name));
    const metric = (offered.find(({ name }) => name === state.metric) ?? offered.find(({ name }) => name === state.right) ?? offered[0]).name;
    const bound = Math.max(...heads.map((each) => each.metric(metric).bound));
    const scale = sharedScale(head.metric(metric).ramp, bound, state.gamma);
    choose(this.chooser, "Metric", offered.map(({ name, label }) => [name, label]), metric, (value) => this.store.go({ metric: value }), { class: "metric", id: "compare-metric" });
    const [a, b] = sides.map((side) => readingOf(library, side.run)); // two runs may have traced two objectives
    this.legend.show(metric, scale, isDark(), meaningOf(metric, scale.ramp, a === b ? a : `A: ${a} B: ${b}`));
    this.toolbar.show(context);
    this.toolbar.showMatches(filter.search, countMatches(sides.flatMap(({ responses }) => responses), filter.search), null);
    this.showHeads(heads, library);
    sides.forEach((side, index) => this.panes[index].show({ ...side, metric, scale, filter, library, timelines, shared: this.shared.map(({ a, b }) => [a, b][index]) }));
    const { columns, rows } = distinctRows(sides, metric, filter);
    this.table.setColumns(columns);
    this.table.show(rows);
  }

  // What depends on the two steps alone is not made again for another group or colour.
  showHeads(heads, library) {
    if (this.shownHeads?.every((head, index) => head === heads[index])) return;
    this.shownHeads = heads;
    this.shared = sharedPrompts(...heads);
    const name = (head) => `${library.runs.length > 1 ? `${visible(library.runs[head.run].name)} · ` : ""}step ${head.step}`;
    fill(this.figures, figuresTable(heads, heads.map((head, side) => `${"AB"[side]} · ${name(head)}`)));
    const total = heads[0].groups.length;
    this.common.textContent = heads.some((head) => head.groups.every(({ prompt_key: key }) => key === null))
      ? "These traces hold no prompts to line groups up by."
      : this.shared.length
        ? `${this.shared.length} of ${plural(total, "prompt")} of A ${this.shared.length === 1 ? "is" : "are"} also in B; groups are lined up by prompt.`
        : "No prompt of A is also in B: the groups beside each other answer different prompts.";
    const { columns, rows } = promptRows(heads, this.shared);
    this.prompts.node.hidden = !rows.length;
    this.prompts.setColumns(columns);
    this.prompts.show(rows);
  }
}
