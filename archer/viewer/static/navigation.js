// From place to place: steps, groups and responses by one, up a level, beside another step; the keys that do it.

import { listen } from "./keyboard.js";

export class Navigation {
  // `app`: {store, source, library, timelines, views, main, ...}; library and timelines come later
  constructor(app) {
    this.app = app;
    this.store = app.store;
    this.listen();
  }

  stepBy(direction) {
    const { state } = this.store;
    const { steps } = this.app.timelines[state.run];
    if (!steps.length) return;
    const at = steps.indexOf(state.step);
    const next = at < 0 ? (direction > 0 ? 0 : steps.length - 1) : at + direction;
    if (next >= 0 && next < steps.length) this.store.go({ step: steps[next], group: null, response: null, token: null });
  }

  async groupBy(direction) {
    const { state } = this.store;
    if (state.step === null) return;
    const groups = (await this.app.source.head(state.run, state.step)).groups.map((entry) => entry.group);
    const at = groups.indexOf(state.group);
    const next = at < 0 ? (direction > 0 ? 0 : groups.length - 1) : at + direction;
    if (groups[next] !== undefined) this.store.go({ group: groups[next], response: null, token: null });
  }

  responseBy(direction) {
    const { state } = this.store;
    if (state.group === null || state.vs) return;
    const rows = this.app.views.work.rowOrder();
    const at = rows.indexOf(state.response);
    const next = at < 0 ? (direction > 0 ? 0 : rows.length - 1) : at + direction;
    if (rows[next] !== undefined) this.app.views.work.pick(rows[next], null);
  }

  compare() {
    const { state } = this.store;
    if (this.app.library.static) return;
    if (state.vs) {
      this.store.go({ vs: "" });
      return;
    }
    const other = this.app.library.runs.length > 1 ? (state.run + 1) % this.app.library.runs.length : state.run;
    const { steps } = this.app.timelines[state.run];
    const step = state.step ?? steps[steps.length - 1];
    if (step === undefined) return;
    const others = this.app.timelines[other].steps;
    const same = other !== state.run && others.includes(step) ? step : others.findLast((candidate) => candidate < step) ?? others[0];
    this.store.go({ step, response: null, token: null, vs: `${other}:${same}` });
  }

  searchRun() {
    if (this.app.library.static) return;
    this.store.go({ page: this.store.state.page === "search" ? "" : "search" });
    document.getElementById("runsearch")?.focus();
  }

  up() {
    const { state } = this.store;
    if (state.page) {
      this.store.go({ page: "" });
      return;
    }
    const level = ["token", "response", "group", "step"].find((name) => state[name] !== null);
    if (state.vs) this.store.go({ vs: "" });
    else if (level) this.store.go({ [level]: null });
  }

  listen() {
    const arrow = (event) => {
      const { state } = this.store;
      if (state.group === null || state.vs || !this.app.main.contains(this.app.views.work.node)) return false;
      return this.app.views.work.move(event.key);
    };
    const newest = () => {
      const { steps } = this.app.timelines[this.store.state.run];
      if (steps.length) this.store.go({ step: steps[steps.length - 1], group: null, response: null, token: null });
    };
    listen({
      n: () => this.stepBy(1),
      p: () => this.stepBy(-1),
      N: () => this.groupBy(1),
      P: () => this.groupBy(-1),
      j: () => this.responseBy(1),
      k: () => this.responseBy(-1),
      l: newest,
      u: () => this.up(),
      c: () => this.compare(),
      m: () => !this.app.library.static && this.app.notes.open(),
      s: () => this.searchRun(),
      i: () => this.app.savePng(),
      e: () => this.app.panel.exportCsv(),
      t: () => document.getElementById("theme").click(),
      "/": () => (document.getElementById("runsearch") ?? document.getElementById("search"))?.focus(),
      "?": () => this.app.help.open(),
      Escape: () => {
        this.app.tooltip.hide();
        document.activeElement?.blur();
        this.store.go({ q: "", lo: "", hi: "", by: "" });
      },
      ArrowLeft: arrow,
      ArrowRight: arrow,
      ArrowUp: arrow,
      ArrowDown: arrow,
      Home: arrow,
      End: arrow,
    });
  }
}
