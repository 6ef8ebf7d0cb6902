// Starts the client: one store, one source, one view at a time.

import { CompareView } from "./compareview.js";
import { Follower } from "./follow.js";
import { Header } from "./header.js";
import { Help, listen } from "./keyboard.js";
import { PromptView } from "./promptview.js";
import { revealToken } from "./reveal.js";
import { RunSearchView } from "./runsearchview.js";
import { RunView } from "./runview.js";
import { StepView } from "./stepview.js";
import { PAGES, Store } from "./state.js";
import { TokenPanel } from "./tokenpanel.js";
import { Tooltip } from "./tooltip.js";
import { WorkView } from "./workview.js";
import { button, fill, h, withCode } from "./dom.js";
import { openSource } from "./api.js";
import { startTheme } from "./theme.js";

class App {
  constructor(root) {
    this.store = new Store();
    this.source = openSource();
    this.tooltip = new Tooltip();
    this.help = new Help();
    const panel = new TokenPanel(this.store, this.source);
    this.panel = panel;
    this.views = {
      run: new RunView(this.store),
      step: new StepView(this.store, this.source, panel),
      work: new WorkView(this.store, this.source, this.tooltip, panel),
      compare: new CompareView(this.store, this.source, this.tooltip),
      prompt: new PromptView(this.store, this.source),
      search: new RunSearchView(this.store, this.source),
    };
    this.header = new Header(this.store, {
      step: (direction) => this.stepBy(direction),
      compare: () => this.compare(),
      search: () => this.searchRun(),
      help: () => this.help.open(),
      theme: () => this.recolour(),
      follow: () => this.toggleFollow(),
    });
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.ticket = 0;
    fill(root, button("To the content", () => this.main.focus(), { class: "skip" }), this.header.node, this.main);
    startTheme(() => this.recolour());
    this.listen();
  }

  async start() {
    try {
      this.library = await this.source.library();
      this.timelines = await Promise.all(this.library.runs.map((run) => this.source.timeline(run.run)));
    } catch (error) {
      this.fail(error);
      return;
    }
    this.follower = new Follower(this.source, this.library.runs.length, (run, timeline) => this.grown(run, timeline));
    if (this.library.follow) this.follower.start(this.timelines);
    if (this.library.static && this.store.state.step === null) await this.openStatic();
    this.store.subscribe(() => this.render());
    await this.render();
  }

  // An exported page opens where its data is.
  async openStatic() {
    const head = await this.source.head(0, this.timelines[0].steps[0]);
    this.store.go({ step: head.step, group: head.groups[0].group });
  }

  async render() {
    const ticket = (this.ticket += 1);
    const current = () => ticket === this.ticket;
    const state = this.store.state;
    if (!this.library.runs[state.run]) {
      this.fail(new Error(`There is no run ${state.run} here.`));
      return;
    }
    const context = { state, library: this.library, timelines: this.timelines, following: this.follower.on };
    this.header.show(context);
    document.title = this.titleOf(state);
    try {
      if (PAGES.includes(state.page) && !this.library.static) {
        this.place(state.page);
        await this.views[state.page].show(context, current);
        if (current()) document.documentElement.dataset.shown = state.page;
        return;
      }
      if (state.step === null) {
        this.place("run");
        this.views.run.show(context);
        return;
      }
      context.head = await this.source.head(state.run, state.step);
      if (!current()) return;
      if (state.vs) {
        this.place("compare");
        await this.views.compare.show(context, current);
      } else if (state.group === null) {
        this.place("step");
        this.views.step.show(context);
      } else {
        if (!this.main.contains(this.views.work.node) || this.shownStep !== `${state.run}/${state.step}/${state.group}`) window.scrollTo(0, 0);
        this.shownStep = `${state.run}/${state.step}/${state.group}`;
        this.place("work");
        await this.views.work.show(context, current);
        const chosen = `${this.shownStep}/${state.response}/${state.token}`;
        if (current() && state.response !== null && this.revealed !== chosen) revealToken(this.views.work.response.heatmap, this.views.work.response.token, this.main.querySelector(".stickyhead"));
        this.revealed = chosen;
      }
      if (current()) document.documentElement.dataset.shown = `${state.run}/${state.step}/${state.group}/${state.response}`;
    } catch (error) {
      if (current()) this.fail(error);
    }
  }

  titleOf(state) {
    const parts = [state.step !== null && `step ${state.step}`, state.group !== null && `group ${state.group}`, state.response !== null && `response ${state.response}`];
    return [this.library.runs[state.run].name, ...parts.filter(Boolean)].join(" · ");
  }

  place(name) {
    const { node } = this.views[name];
    if (this.main.firstChild !== node || this.main.childNodes.length !== 1) {
      this.tooltip.hide();
      fill(this.main, node);
      if (name !== "work") window.scrollTo(0, 0);
    }
  }

  // A step that cannot be read is reported where it would stand; everything else stays in reach.
  fail(error) {
    const state = this.store.state;
    const damaged = error.status === 422 && state.step !== null;
    const advice = damaged
      ? "The other steps are not affected. `archer trace check` lists everything that is damaged."
      : state.step !== null
        ? "Choose a step in the timeline, or go back to the run."
        : "Check the folder given to `archer view` and reload this page.";
    this.tooltip.hide();
    fill(
      this.main,
      h("section", { class: "view failure", role: "alert" }, h("h1", {}, damaged ? `Step ${state.step} cannot be read` : "Nothing to show here"), h("p", { class: "notice damaged" }, error.message), h("p", {}, withCode(advice))),
    );
  }

  recolour() {
    if (this.library) this.render();
  }

  grown(run, timeline) {
    this.timelines[run] = timeline;
    this.source.forgetHeads();
    this.render();
  }

  toggleFollow() {
    if (this.follower.on) this.follower.stop();
    else this.follower.start(this.timelines);
    this.library.follow = this.follower.on;
    this.render();
  }

  stepBy(direction) {
    const { state } = this.store;
    const { steps } = this.timelines[state.run];
    if (!steps.length) return;
    const at = steps.indexOf(state.step);
    const next = at < 0 ? (direction > 0 ? 0 : steps.length - 1) : at + direction;
    if (next >= 0 && next < steps.length) this.store.go({ step: steps[next], group: null, response: null, token: null });
  }

  async groupBy(direction) {
    const { state } = this.store;
    if (state.step === null) return;
    const groups = (await this.source.head(state.run, state.step)).groups.map((entry) => entry.group);
    const at = groups.indexOf(state.group);
    const next = at < 0 ? (direction > 0 ? 0 : groups.length - 1) : at + direction;
    if (groups[next] !== undefined) this.store.go({ group: groups[next], response: null, token: null });
  }

  responseBy(direction) {
    const { state } = this.store;
    if (state.group === null || state.vs) return;
    const rows = this.views.work.rowOrder();
    const at = rows.indexOf(state.response);
    const next = at < 0 ? (direction > 0 ? 0 : rows.length - 1) : at + direction;
    if (rows[next] !== undefined) this.store.go({ response: rows[next], token: null });
  }

  compare() {
    const { state } = this.store;
    if (this.library.static) return;
    if (state.vs) {
      this.store.go({ vs: "" });
      return;
    }
    const other = this.library.runs.length > 1 ? (state.run + 1) % this.library.runs.length : state.run;
    const { steps } = this.timelines[state.run];
    const step = state.step ?? steps[steps.length - 1];
    if (step === undefined) return;
    const others = this.timelines[other].steps;
    const same = other !== state.run && others.includes(step) ? step : others.findLast((candidate) => candidate < step) ?? others[0];
    this.store.go({ step, response: null, token: null, vs: `${other}:${same}` });
  }

  searchRun() {
    if (this.library.static) return;
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
      if (state.response === null || state.vs || !this.main.contains(this.views.work.node)) return false;
      this.views.work.response.move(event.key);
      return true;
    };
    const newest = () => {
      const { steps } = this.timelines[this.store.state.run];
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
      s: () => this.searchRun(),
      e: () => this.panel.exportCsv(),
      t: () => {
        document.getElementById("theme").click();
      },
      "/": () => (document.getElementById("runsearch") ?? document.getElementById("search"))?.focus(),
      "?": () => this.help.open(),
      Escape: () => {
        this.tooltip.hide();
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

new App(document.getElementById("app")).start();
