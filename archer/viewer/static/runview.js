// Level one: the whole run over its steps, from the manifest alone.

import { cssColour, fill, h } from "./dom.js";
import { bytes, count, moment, number, percent, plural } from "./format.js";
import { DataTable } from "./table.js";
import { StepChart } from "./chart.js";

export const SERIES = [
  ["mean_reward", "Mean reward", number],
  ["accepted_share", "Accepted share", percent],
  ["mean_entropy", "Mean entropy (nats)", number],
  ["mean_abs_influence", "Mean |influence|", number],
  ["mean_response_length", "Mean response length", number],
  ["mean_log_prob", "Mean log-prob", number],
];

const COLUMNS = [
  ["step", "Step", (v) => count(v)],
  ["rows", "Responses", count],
  ["groups", "Groups", count],
  ["tokens", "Tokens", count],
  ["mean_response_length", "Mean length", number],
  ["mean_reward", "Reward", number],
  ["accepted_share", "Accepted", percent],
  ["mean_entropy", "Entropy", number],
  ["mean_log_prob", "Log-prob", number],
  ["mean_abs_influence", "|Influence|", number],
  ["influence_tokens", "Scored tokens", count],
  ["bytes", "File", bytes],
  ["seconds", "Write (s)", number],
  ["time", "Written", moment],
];

export function runColours() {
  return ["--series-1", "--series-2", "--series-3", "--series-4"].map(cssColour);
}

export class RunView {
  constructor(store) {
    this.store = store;
    const events = { pick: (step) => store.go({ step, group: null, response: null, token: null }), hover: (step) => this.hover(step) };
    this.charts = SERIES.map(([key, title, format]) => ({ key, format, chart: new StepChart(title, 150, events) }));
    this.title = h("h1");
    this.facts = h("p", { class: "lead" });
    this.legend = h("div", { class: "runlegend" });
    this.grid = h("div", { class: "charts" }, this.charts.map(({ chart }) => chart.node));
    this.table = new DataTable("Steps", [], { pick: (row) => events.pick(row.step), sort: { key: "step", descending: true }, page: 25 });
    this.meta = h("div", { class: "meta" });
    this.empty = h("div", { class: "notice", hidden: true });
    this.body = h(
      "div",
      {},
      this.legend,
      this.grid,
      h("div", { class: "sectionhead" }, h("h2", {}, "Steps"), this.table.csvButton(() => "archer-steps.csv")),
      this.table.node,
    );
    this.node = h("section", { class: "view runview" }, this.title, this.facts, this.empty, this.body, this.meta);
  }

  hover(step) {
    for (const { chart } of this.charts) chart.hover(step);
  }

  show({ state, library, timelines }) {
    const run = library.runs[state.run];
    const timeline = timelines[state.run];
    this.title.textContent = run.name;
    const kinds = run.traces.map((trace) => `${trace.kind} trace`).join(" and ");
    this.facts.textContent = `${plural(timeline.steps.length, "step")} · ${kinds}${library.follow ? " · following" : ""}`;
    const nothing = timeline.steps.length === 0;
    this.empty.hidden = !nothing;
    this.body.hidden = nothing;
    this.empty.textContent = library.follow
      ? "No step has been written yet. The first one appears here by itself."
      : "No step has been written yet. Press Follow above, or start the viewer with --follow, to see steps as they come.";
    this.showMeta(run, timeline);
    if (nothing) return;
    const colours = runColours();
    const order = [state.run, ...timelines.keys()].filter((number, index, all) => all.indexOf(number) === index);
    fill(this.legend, library.runs.length > 1 && order.map((number) => h("span", {}, swatch(colours[number % 4]), library.runs[number].name)));
    const marks = Object.keys(timeline.problems).map(Number);
    for (const { key, chart, format } of this.charts) {
      const lines = order
        .filter((number) => timelines[number]?.series[key])
        .map((number) => ({ steps: timelines[number].steps, values: timelines[number].series[key], colour: colours[number % 4] }));
      chart.node.hidden = !lines.length;
      if (lines.length) chart.show(lines, null, marks, format);
    }
    this.showSteps(timeline);
  }

  showSteps(timeline) {
    const columns = { ...timeline.series, step: timeline.steps, bytes: timeline.bytes, seconds: timeline.seconds, time: timeline.time };
    const rows = timeline.steps.map((step, index) => ({ step, index, problem: timeline.problems[step] ?? null }));
    const present = COLUMNS.filter(([key]) => columns[key]?.some((value) => value !== null));
    this.table.setColumns([
      ...present.map(([key, label, format]) => ({ key, label, value: (row) => columns[key][row.index], cell: (row) => format(columns[key][row.index]) })),
      ...(Object.keys(timeline.problems).length
        ? [{ key: "problem", label: "Damage", text: true, value: (row) => row.problem, cell: (row) => h("span", { class: "damage" }, row.problem ?? "") }]
        : []),
    ]);
    this.table.show(rows);
  }

  showMeta(run, timeline) {
    const damaged = Object.keys(timeline.problems).length;
    fill(
      this.meta,
      run.traces.map((trace) =>
        h(
          "details",
          {},
          h("summary", {}, `About the ${trace.kind} trace`),
          h(
            "dl",
            { class: "facts" },
            [
              ["folder", trace.folder],
              ["format", trace.format],
              ["written every", plural(trace.write_every, "step")],
              ["started", moment(trace.created)],
              ["last written", moment(trace.updated)],
              ["damaged steps", String(damaged)],
              ...(trace.bad_lines.length ? [["unreadable manifest lines", trace.bad_lines.join(", ")]] : []),
              ...Object.entries(trace.metadata),
            ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
          ),
        ),
      ),
    );
  }
}

function swatch(colour) {
  const node = h("i", { class: "dot" });
  node.style.background = colour;
  return node;
}
