// One prompt through training: its groups at all steps it appeared in, as charts and as a table that leads to them.

import { button, cssColour, fill, h } from "./dom.js";
import { count, number, percent, plural, visible } from "./format.js";
import { DataTable } from "./table.js";
import { StepChart } from "./chart.js";
import { groupMarks } from "./groupcards.js";

const SERIES = [
  ["accepted", "Accepted share", percent],
  ["length", "Mean length (tokens)", number],
  ["entropy", "Mean entropy (nats)", number],
  ["influence", "Mean influence (signed)", number],
];
const AGAIN = 200; // milliseconds between two looks while steps are still indexed

export class PromptView {
  constructor(store, source) {
    Object.assign(this, { store, source });
    this.title = h("h1", {}, "One prompt through training");
    this.lead = h("p", { class: "lead", role: "status" });
    this.notes = h("div");
    this.text = h("pre", { class: "promptwhole", dir: "ltr" });
    this.charts = SERIES.map(([key, title, format]) => ({ key, format, chart: new StepChart(title, 165, { pick: (step) => this.open(step), hover: (step) => this.hover(step) }) }));
    this.grid = h("div", { class: "charts" }, this.charts.map(({ chart }) => chart.node));
    this.table = new DataTable("Groups of this prompt", [], { page: 50, pick: (row) => this.openGroup(row), empty: "No step indexed so far holds this prompt." });
    this.node = h(
      "section",
      { class: "view promptview" },
      h("div", { class: "worktitle" }, this.title, button("Back", () => store.go({ page: "" }), { class: "quiet", title: "To where you were (u)" })),
      this.lead,
      this.notes,
      h("details", { class: "prompt", open: true }, h("summary", {}, "Prompt"), this.text),
      this.grid,
      h("div", { class: "sectionhead" }, h("h2", {}, "Its groups"), this.table.csvButton(() => "archer-prompt.csv")),
      this.table.node,
    );
  }

  async show({ state }, current) {
    clearTimeout(this.timer);
    const answer = await this.source.promptCourse(state.run, state.prompt);
    if (!current()) return;
    this.answer = answer;
    const name = state.prompt.replace(/^sample:/, "sample ").replace(/^text:/, "prompt ");
    const steps = new Set(answer.groups.map((entry) => entry.step)).size;
    const progress = answer.indexed < answer.steps && !answer.full ? ` · ${count(answer.indexed)} of ${count(answer.steps)} steps read so far …` : "";
    this.lead.textContent = `${name} · ${plural(answer.groups.length, "group")} at ${count(steps)} of ${plural(answer.steps, "step")}${progress}`;
    const notes = Object.entries(answer.problems).map(([step, problem]) => `Step ${step} could not be read: ${problem}`);
    if (answer.full) notes.push(`Only ${count(answer.indexed)} of ${count(answer.steps)} steps are indexed: there are too many groups to keep.`);
    if (new Set(answer.groups.map((entry) => entry.key)).size > 1) notes.push("Steps disagree on the text of this sample: the number was given to different prompts. The text is that of the newest.");
    fill(this.notes, notes.slice(0, 8).map((note) => h("p", { class: "notice" }, note)));
    this.text.textContent = answer.text === null ? "This trace holds no prompts." : answer.text.split("\n").map(visible).join("\n");
    this.showCharts(answer.groups);
    this.showTable(answer.groups);
    if (progress) this.timer = setTimeout(() => this.store.state.page === "prompt" && this.show({ state: this.store.state }, () => this.store.state.page === "prompt" && this.store.state.prompt === state.prompt), AGAIN);
  }

  showCharts(groups) {
    for (const { key, chart, format } of this.charts) {
      const known = groups.filter((entry) => entry[key] !== null);
      chart.node.hidden = !known.length;
      if (known.length) chart.show([{ steps: known.map((entry) => entry.step), values: known.map((entry) => entry[key]), colour: cssColour("--series-1") }], null, [], format);
    }
  }

  showTable(groups) {
    const figure = (key, label, format) => ({ key, label, value: (row) => row[key], cell: (row) => format(row[key]) });
    this.table.setColumns([
      figure("step", "Step", String),
      figure("group", "Group", String),
      figure("responses", "Responses", count),
      figure("accepted", "Accepted", percent),
      figure("reward", "Reward", number),
      figure("length", "Length", number),
      figure("entropy", "Entropy", number),
      figure("influence", "Influence", number),
      figure("influence_abs", "|Influence|", number),
      { key: "marks", label: "", text: true, value: (row) => groupMarks(row).map(([name]) => name).join(", "), cell: (row) => groupMarks(row).map(([name]) => name).join(", ") },
    ]);
    this.table.show(groups);
  }

  hover(step) {
    for (const { chart } of this.charts) if (!chart.node.hidden) chart.hover(step);
  }

  open(step) {
    const found = this.answer.groups.find((entry) => entry.step === step);
    if (found) this.openGroup(found);
  }

  openGroup({ step, group }) {
    this.store.go({ step, group, response: null, token: null });
  }
}
