// Level one: the whole run over its steps: its metrics, other runs over them, and the group to look at first.

import { button, fill, h } from "./dom.js";
import { bytes, count, moment, number, percent, plural, visible } from "./format.js";
import { DataTable } from "./table.js";
import { lineSwatch } from "./runchart.js";
import { MetricBoard } from "./metricboard.js";
import { runColour, runDash } from "./runcolours.js";
import { TellingGroup } from "./telling.js";

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

// As many runs are drawn over each other unasked; of more, only the one that was opened.
const OVERLAID = 8;

// Numbers of the runs to draw, the current one first.
export function overlaid(state, size) {
  const all = Array.from({ length: size }, (_, run) => run);
  const chosen = state.over === "" ? (size <= OVERLAID ? all : []) : state.over === "-" ? [] : state.over.split(",").map(Number).filter((run) => run < size);
  return [state.run, ...chosen.filter((run) => run !== state.run)];
}

export class RunView {
  constructor(store, source, tooltip, notes) {
    Object.assign(this, { store, notes });
    const events = { pick: (step) => store.go({ step: this.traced(step), group: null, response: null, token: null }) };
    this.board = new MetricBoard(store, source, events);
    this.telling = new TellingGroup(store, source, tooltip);
    this.title = h("h1");
    this.facts = h("p", { class: "lead" });
    this.legend = h("div", { class: "runlegend" });
    this.table = new DataTable("Steps", [], { pick: (row) => events.pick(row.step), sort: { key: "step", descending: true }, page: 25 });
    this.meta = h("div", { class: "meta" });
    this.empty = h("div", { class: "notice", hidden: true });
    this.body = h(
      "div",
      {},
      this.telling.node,
      notes.node,
      h("div", { class: "sectionhead" }, h("h2", {}, "Steps"), this.table.csvButton(() => "archer-steps.csv")),
      this.table.node,
    );
    this.node = h("section", { class: "view runview" }, this.title, this.facts, this.empty, this.legend, this.board.node, this.body, this.meta);
  }

  // Not every step that has metrics has a trace: the nearest that has.
  traced(step) {
    const { steps } = this.timeline;
    return steps.reduce((best, each) => (best === null || Math.abs(each - step) < Math.abs(best - step) ? each : best), null);
  }

  show(context) {
    const { state, library, timelines } = context;
    const run = library.runs[state.run];
    const timeline = timelines[state.run];
    this.timeline = timeline;
    this.title.textContent = visible(run.name);
    const traced = run.traces.length > 0;
    const kinds = run.traces.map((trace) => `${trace.kind} trace`).join(" and ");
    this.facts.textContent = `${traced ? `${plural(timeline.steps.length, "step")} · ${kinds}` : "metrics only, no trace"}${library.follow ? " · following" : ""}`;
    const nothing = timeline.steps.length === 0;
    this.empty.hidden = !nothing;
    this.body.hidden = nothing;
    this.empty.textContent = !traced
      ? "This run left no trace, only metrics: there are no responses to open. trainer.entropy_trace.enable=True writes one."
      : library.follow
        ? "No step has been written yet. The first one appears here by itself."
        : "No step has been written yet. Press Follow above, or start the viewer with --follow, to see steps as they come.";
    this.showMeta(run, timeline);
    this.showLegend(state, library);
    this.board.show(context, overlaid(state, library.runs.length));
    if (nothing) return;
    this.telling.show(context).catch(() => (this.telling.node.hidden = true));
    this.notes.show();
    this.showSteps(timeline);
  }

  // A list of all runs that scrolls; the box before each draws it over the current one.
  showLegend(state, library) {
    const size = library.runs.length;
    const drawn = new Set(overlaid(state, size));
    const set = (runs) => this.store.go({ over: runs.join(",") || "-" });
    this.legend.hidden = size < 2;
    const focused = document.activeElement?.dataset?.run;
    fill(
      this.legend,
      size > 1 && [
        button("all", () => set(library.runs.map((run) => run.run)), { class: "quiet" }),
        button("none", () => set([]), { class: "quiet" }),
        library.runs.map(({ run, name }) => {
          const box = h("input", { type: "checkbox", "data-run": run, checked: drawn.has(run), disabled: run === state.run, onchange: () => set([...drawn].filter((each) => each !== run).concat(drawn.has(run) ? [] : [run])) });
          return h("label", {}, box, lineSwatch(runColour(run), runDash(run)), visible(name));
        }),
      ],
    );
    if (focused) this.legend.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
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
