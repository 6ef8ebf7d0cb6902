// All metrics of a run as charts: by prefix, by a search, or an overview; other runs drawn over them.

import { button, chooseSegment, debounce, fill, h } from "./dom.js";
import { number, plural } from "./format.js";
import { pngButton } from "./png.js";
import { TRACED } from "./tracedseries.js";
import { RunChart } from "./runchart.js";
import { runColour, runDash } from "./runcolours.js";

const CORE = [/^val-core\//, /^actor\/(grad_norm|ppo_kl|pg_clipfrac|kl_loss)$/, /^response_length\/clip_ratio$/];
const UNTRACED = [/^critic\/(score|rewards)\/mean$/, /^actor\/entropy$/, /^response_length\/mean$/];
const POINTS = 600;
const BATCH = 32;
const ALL = "*";

export class MetricBoard {
  // `events`: {pick(step)}
  constructor(store, source, events) {
    Object.assign(this, { store, source });
    this.events = { pick: (step) => events.pick(step), hover: (step) => this.hover(step) };
    this.charts = new Map();
    this.held = new Map();
    this.wanted = new Set();
    this.prefixes = h("div", { class: "prefixes" });
    this.find = h("input", { type: "search", id: "metrics", spellcheck: "false", autocomplete: "off", placeholder: "find a metric", "aria-label": "Find a metric", oninput: (event) => store.go({ metrics: event.target.value }) });
    this.logButton = button("log", () => store.go({ log: store.state.log ? 0 : 1 }), { class: "toggle", title: "Logarithmic axis; values of zero and below are left out" });
    this.said = h("span", { class: "readout" });
    this.grid = h("div", { class: "charts" });
    this.node = h("div", { class: "metricboard" }, h("div", { class: "controls boardhead" }, this.prefixes, this.find, this.logButton, this.said, pngButton(() => this.grid, () => `archer-${this.name}-charts`)), this.grid);
    this.observer = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: "300px" });
    this.fetchSoon = debounce(20, () => this.fetch());
  }

  // `runs`: numbers of the runs to draw, the current one first
  async show(context, runs) {
    Object.assign(this, { context, runs, name: context.library.runs[context.state.run].name });
    const { state, timelines } = context;
    const timeline = timelines[state.run];
    if (this.indexed !== timeline) {
      this.indexed = timeline;
      this.held.clear();
      this.index = { names: [], bad_lines: 0 };
      this.source.metrics(state.run).then((index) => {
        if (this.indexed !== timeline) return;
        this.index = index;
        this.arrange();
      }, () => {});
    }
    this.arrange();
  }

  arrange() {
    const { state } = this.context;
    const names = this.index.names.map(({ name }) => name);
    const counts = new Map();
    for (const name of names) counts.set(prefixOf(name), (counts.get(prefixOf(name)) ?? 0) + 1);
    const options = [["", "overview"], ...(names.length ? [[ALL, `all ${names.length}`]] : []), ...Array.from(counts, ([prefix, size]) => [prefix, `${prefix} ${size}`])];
    this.prefixes.hidden = !names.length;
    this.find.hidden = !names.length;
    chooseSegment(this.prefixes, "Metrics", options, state.charts, (charts) => this.store.go({ charts, metrics: "" }));
    if (this.find.value !== state.metrics) this.find.value = state.metrics;
    this.logButton.setAttribute("aria-pressed", state.log ? "true" : "false");
    const text = state.metrics.trim().toLowerCase();
    const traced = TRACED.filter(([key]) => this.runs.some((run) => this.context.timelines[run]?.series[key]));
    const overview = !text && state.charts === "";
    const core = traced.length ? CORE : [...UNTRACED, ...CORE];
    const chosen = text
      ? names.filter((name) => name.toLowerCase().includes(text))
      : overview
        ? core.flatMap((pattern) => names.filter((name) => pattern.test(name)))
        : names.filter((name) => state.charts === ALL || prefixOf(name) === state.charts);
    const bad = this.index.bad_lines ? ` · ${plural(this.index.bad_lines, "line")} of metrics.jsonl cannot be read` : "";
    this.said.textContent = text && !chosen.length ? `no metric is like that${bad}` : `${text ? plural(chosen.length, "metric") : ""}${bad}`;
    const keys = [...(overview || text ? traced.filter(([, title]) => !text || title.toLowerCase().includes(text)).map(([key]) => `trace:${key}`) : []), ...chosen];
    this.place(keys);
  }

  place(keys) {
    const joined = keys.join("\n");
    if (this.placed !== joined) {
      this.placed = joined;
      this.wanted.clear();
      this.observer.disconnect();
      for (const key of keys) if (!this.charts.has(key)) this.charts.set(key, this.chart(key));
      fill(this.grid, keys.map((key) => this.charts.get(key).node));
      for (const key of keys) this.observer.observe(this.charts.get(key).node);
    }
    for (const key of keys) this.draw(key);
    this.fetchSoon();
  }

  chart(key) {
    const title = TRACED.find(([name]) => `trace:${name}` === key)?.[1] ?? key;
    const chart = new RunChart(title, 165, this.events);
    chart.node.dataset.metric = key;
    return chart;
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.wanted.add(target.dataset.metric);
      else this.wanted.delete(target.dataset.metric);
    }
    this.fetchSoon();
  }

  // Only what is on the screen is asked for, all runs of a chart, many charts in one request.
  async fetch() {
    const { indexed } = this;
    await Promise.all(
      this.runs.map(async (run) => {
        const names = [...this.wanted].filter((key) => !key.startsWith("trace:") && !this.held.has(`${run}/${key}`));
        for (let first = 0; first < names.length; first += BATCH) {
          const batch = names.slice(first, first + BATCH);
          for (const name of batch) this.held.set(`${run}/${name}`, null);
          const series = await this.source.series(run, batch, POINTS).catch(() => ({}));
          if (this.indexed !== indexed) return;
          for (const name of batch) this.held.set(`${run}/${name}`, series[name] ?? null);
          for (const name of batch) this.draw(name);
        }
      }),
    );
  }

  draw(key) {
    const { state, timelines, library } = this.context;
    const traced = TRACED.find(([name]) => `trace:${name}` === key);
    const lines = this.runs.flatMap((run) => {
      const timeline = timelines[run];
      const found = traced ? timeline?.series[traced[0]] && { steps: timeline.steps, values: timeline.series[traced[0]] } : this.held.get(`${run}/${key}`);
      return found && found.steps.length ? [{ ...found, name: library.runs[run].name, colour: runColour(run), dash: runDash(run) }] : [];
    });
    if (lines.length) this.charts.get(key).showRuns(lines, Object.keys(timelines[state.run].problems).map(Number), traced?.[2] ?? number, state.log === 1);
  }

  hover(step) {
    for (const key of this.wanted) this.charts.get(key)?.hover(step);
  }
}

function prefixOf(name) {
  const at = name.indexOf("/");
  return at > 0 ? name.slice(0, at + 1) : "other";
}
