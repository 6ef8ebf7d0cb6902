// Starts the client: one store, one source, one view at a time.

import { CompareView } from "./compareview.js";
import { failurePage, missingRun } from "./failure.js";
import { Follower } from "./follow.js";
import { Header } from "./header.js";
import { Help } from "./keyboard.js";
import { Navigation } from "./navigation.js";
import { Notes } from "./notes.js";
import { PromptView } from "./promptview.js";
import { revealToken } from "./reveal.js";
import { RunSearchView } from "./runsearchview.js";
import { RunView } from "./runview.js";
import { StepView } from "./stepview.js";
import { PAGES, Store } from "./state.js";
import { TokenPanel } from "./tokenpanel.js";
import { Tooltip } from "./tooltip.js";
import { WorkView } from "./workview.js";
import { button, fill, h } from "./dom.js";
import { openSource } from "./api.js";
import { savePng } from "./png.js";
import { startTheme } from "./theme.js";
import { visible } from "./format.js";

class App {
  constructor(root) {
    this.store = new Store();
    this.source = openSource();
    this.tooltip = new Tooltip();
    this.help = new Help();
    const panel = new TokenPanel(this.store, this.source);
    this.panel = panel;
    this.notes = new Notes(this.store, this.source);
    this.notes.changed = () => this.markNotes();
    this.views = {
      run: new RunView(this.store, this.source, this.tooltip, this.notes),
      step: new StepView(this.store, this.source, panel),
      work: new WorkView(this.store, this.source, this.tooltip, panel),
      compare: new CompareView(this.store, this.source, this.tooltip),
      prompt: new PromptView(this.store, this.source),
      search: new RunSearchView(this.store, this.source),
    };
    this.navigation = new Navigation(this);
    this.header = new Header(this.store, {
      step: (direction) => this.navigation.stepBy(direction),
      compare: () => this.navigation.compare(),
      search: () => this.navigation.searchRun(),
      help: () => this.help.open(),
      note: () => this.notes.open(),
      png: () => this.savePng(),
      theme: () => this.recolour(),
      follow: () => this.toggleFollow(),
    });
    this.main = h("main", { id: "main", tabindex: "-1" });
    fill(this.main, h("p", { class: "view muted" }, "Reading the run …"));
    this.ticket = 0;
    fill(root, button("To the content", () => this.main.focus(), { class: "skip" }), this.header.node, this.main);
    startTheme(() => this.recolour());
  }

  async start() {
    try {
      this.library = await this.source.library();
      if (!this.library.static) this.store.nameRuns(this.library.runs);
      this.timelines = await Promise.all(this.library.runs.map((run) => this.source.timeline(run.run)));
    } catch (error) {
      this.fail(error);
      return;
    }
    this.follower = new Follower(this.source, this.library.runs.length, (run, timeline) => this.grown(run, timeline));
    if (this.library.follow) this.follower.start(this.timelines);
    if (this.library.static && this.store.state.step === null) await this.openStatic();
    if (this.library.start && location.hash.replace("#", "") === "") this.store.open(this.library.start);
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
      this.failRun(state);
      return;
    }
    const context = { state, library: this.library, timelines: this.timelines, following: this.follower.on };
    this.header.show(context);
    this.loadNotes(state);
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
        if (current()) this.views.compare.node.classList.remove("pending");
      } else if (state.group === null) {
        this.place("step");
        this.views.step.show(context);
      } else {
        if (!this.main.contains(this.views.work.node) || this.shownStep !== `${state.run}/${state.step}/${state.group}`) window.scrollTo(0, 0);
        this.shownStep = `${state.run}/${state.step}/${state.group}`;
        this.place("work");
        await this.views.work.show(context, current);
        if (current()) this.views.work.node.classList.remove("pending");
        const chosen = `${this.shownStep}/${state.response}/${state.token}`;
        if (current() && state.response !== null && this.revealed !== chosen) revealToken(...this.views.work.chosen(), this.main.querySelector(".stickyhead"));
        this.revealed = chosen;
      }
      if (current()) {
        document.documentElement.dataset.shown = `${state.run}/${state.step}/${state.group}/${state.response}`;
        this.markNotes();
      }
    } catch (error) {
      if (current()) this.fail(error);
    }
  }

  titleOf(state) {
    const parts = [state.step !== null && `step ${state.step}`, state.group !== null && `group ${state.group}`, state.response !== null && `response ${state.response}`];
    return [visible(this.library.runs[state.run].name), ...parts.filter(Boolean)].join(" · ");
  }

  place(name) {
    const { node } = this.views[name];
    if (this.main.firstChild !== node || this.main.childNodes.length !== 1) {
      this.tooltip.hide();
      fill(this.main, node);
      if (name !== "work") window.scrollTo(0, 0);
    }
  }

  fail(error) {
    this.tooltip.hide();
    fill(this.main, failurePage(error, this.store.state));
  }

  failRun(state) {
    this.tooltip.hide();
    fill(this.main, missingRun(state, this.library.runs, (run, same) => this.store.go(same ? { run } : { run, step: null, group: null, response: null, token: null, vs: "" })));
  }

  async loadNotes({ run }) {
    if (this.notedRun === run) return;
    this.notedRun = run;
    await this.notes.load(run);
    this.notes.show();
    this.markNotes();
  }

  markNotes() {
    this.notes.mark(this.main, this.store.state, this.header.noteButton);
    this.header.noteButton.hidden = Boolean(this.library?.static);
  }

  savePng() {
    const { state } = this.store;
    const parts = ["archer", this.library.runs[state.run]?.name, ...["step", "group", "response"].filter((name) => state[name] !== null).map((name) => `${name}-${state[name]}`)];
    return savePng(this.main.firstChild ?? this.main, parts.join("-")).catch((error) => this.fail(error));
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
}

new App(document.getElementById("app")).start();
