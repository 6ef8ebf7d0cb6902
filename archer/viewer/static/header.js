// The bar at the top: where one is, how to move, what to switch.

import { button, choose, fill, h } from "./dom.js";
import { isDark } from "./colour.js";
import { themeButton } from "./theme.js";
import { StepChart } from "./chart.js";
import { runColour } from "./runcolours.js";
import { TRACED } from "./tracedseries.js";
import { visible } from "./format.js";

export class Header {
  // `actions`: {step(direction), newest(), compare(), help(), theme(), follow()}
  constructor(store, actions) {
    Object.assign(this, { store, actions });
    this.runs = h("span");
    this.path = h("nav", { class: "path", "aria-label": "Where you are" });
    this.previous = button("‹", () => actions.step(-1), { class: "quiet icon", "aria-label": "Previous step (p)", title: "Previous step (p)" });
    this.next = button("›", () => actions.step(1), { class: "quiet icon", "aria-label": "Next step (n)", title: "Next step (n)" });
    this.followButton = button("Follow", () => actions.follow(), { class: "quiet follow", id: "follow", title: "New steps appear by themselves" });
    this.compareButton = button("Compare", () => actions.compare(), { class: "quiet", id: "compare", title: "Beside another step or run (c)" });
    this.noteButton = button("Note", () => actions.note(), { class: "quiet", id: "note", title: "Notes about this place (m)" });
    this.searchButton = button("Search", () => actions.search(), { class: "quiet", id: "search-run", title: "Search all steps of the run (s)" });
    this.series = TRACED[0][0];
    this.ribbonBox = h("div", { class: "ribbon" });
    this.chooser = h("span");
    this.chart = new StepChart("Steps", 46, { pick: (step) => store.go({ step, group: null, response: null, token: null }), hover: (step) => this.chart.hover(step) });
    this.ribbonBox.append(h("div", { class: "ribbonside" }, this.chooser, this.chart.readout), this.chart.node);
    this.node = h(
      "header",
      { class: "top" },
      h(
        "div",
        { class: "bar" },
        button([h("i", { class: "mark", "aria-hidden": "true" }), "Archer"], () => store.go({ step: null, group: null, response: null, token: null, vs: "" }), { class: "brand", title: "The run" }),
        this.runs,
        this.path,
        h("span", { class: "spring" }),
        h("span", { class: "stepping" }, this.previous, this.next),
        this.followButton,
        this.searchButton,
        this.compareButton,
        this.noteButton,
        button("PNG", () => actions.png(), { class: "quiet", id: "png", title: "Save what is shown as a PNG (i)" }),
        themeButton(() => actions.theme()),
        button("?", () => actions.help(), { class: "quiet icon", "aria-label": "Keys", title: "Keys (?)" }),
      ),
      this.ribbonBox,
    );
  }

  show({ state, library, timelines, following }) {
    const timelineNow = timelines[state.run];
    const key = [state.run, state.step, state.group, state.response, state.vs, state.page, state.prompt, following, isDark()].join("/");
    if (key === this.key && timelineNow === this.timelineShown) return;
    Object.assign(this, { key, timelineShown: timelineNow });
    const several = library.runs.length > 1;
    if (several) choose(this.runs, "Run", library.runs.map((run) => [run.run, visible(run.name)]), state.run, (run) => this.store.go({ run: Number(run), group: null, response: null, token: null }));
    const crumbs = [[several ? "run" : visible(library.runs[state.run].name), { step: null, group: null, response: null, token: null, vs: "" }]];
    if (state.step !== null) crumbs.push([`step ${state.step}`, { group: null, response: null, token: null, vs: "" }]);
    if (state.step !== null && state.group !== null) crumbs.push([`group ${state.group}`, { response: null, token: null, vs: "" }]);
    if (state.step !== null && state.response !== null) crumbs.push([`response ${state.response}`, { token: null, vs: "" }]);
    if (state.page) crumbs.push([state.page, {}]);
    if (state.vs) crumbs.push(["compare", {}]);
    fill(this.path, crumbs.map(([label, change], index) => button(label, () => this.store.go(change), { class: "crumb", "aria-current": index === crumbs.length - 1 ? "page" : null })));
    const timeline = timelines[state.run];
    const at = state.step === null ? -1 : timeline.steps.indexOf(state.step);
    this.previous.disabled = timeline.steps.length === 0 || at === 0;
    this.next.disabled = timeline.steps.length === 0 || at === timeline.steps.length - 1;
    this.followButton.hidden = library.static;
    this.followButton.setAttribute("aria-pressed", following ? "true" : "false");
    this.searchButton.hidden = library.static;
    this.searchButton.setAttribute("aria-pressed", state.page === "search" ? "true" : "false");
    this.compareButton.hidden = library.static;
    this.compareButton.setAttribute("aria-pressed", state.vs ? "true" : "false");
    this.showRibbon(state, timelines);
  }

  showRibbon(state, timelines) {
    const timeline = timelines[state.run];
    const present = TRACED.filter(([key]) => timeline.series[key]);
    const show = state.step !== null && timeline.steps.length > 1 && present.length > 0;
    this.ribbonBox.hidden = !show;
    if (!show) return;
    const [key, , format] = present.find(([name]) => name === this.series) ?? present[0];
    choose(this.chooser, "Series of the timeline", present.map(([name, title]) => [name, title]), key, (name) => {
      this.series = name;
      this.showRibbon(state, timelines);
    });
    this.chart.show([{ steps: timeline.steps, values: timeline.series[key], colour: runColour(state.run) }], state.step, Object.keys(timeline.problems).map(Number), format);
  }
}
