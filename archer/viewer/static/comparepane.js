// One side of a comparison: its run, step and group, the group's strip, and the text of a chosen response.

import { choose, fill, h } from "./dom.js";
import { GroupStrips } from "./groupstrips.js";
import { Heatmap } from "./heatmap.js";
import { isDark } from "./colour.js";
import { number } from "./format.js";
import { verdictMark } from "./stepview.js";

export class ComparePane {
  constructor(name, tooltip, go) {
    Object.assign(this, { name, go });
    this.slots = [h("span"), h("span"), h("span")];
    this.choosers = h("div", { class: "controls" }, h("strong", {}, name), this.slots);
    this.strips = new GroupStrips(1, {
      pick: (row) => go({ group: this.view.group, response: row }),
      hover: (response, token, point) => (response ? tooltip.show(this.view.head, response, token, point) : tooltip.hide()),
    });
    this.strips.node.classList.add("grid", "one");
    this.title = h("h3");
    this.heatmap = new Heatmap(1, {
      hover: (token, event) => (token < 0 || !event ? tooltip.hide() : tooltip.show(this.view.head, this.response, token, event)),
      select: (token) => this.heatmap.select(token, false),
    });
    this.node = h("div", { class: "comparepane", "data-side": name }, this.choosers, this.strips.node, this.title, this.heatmap.node);
  }

  // `view`: {head, place, run, group, responses, metric, scale, library, timelines}
  show(view) {
    this.view = view;
    const { head, library, timelines } = view;
    const [runs, steps, groups] = this.slots;
    if (library.runs.length > 1) choose(runs, `Run ${this.name}`, library.runs.map((run) => [run.run, run.name]), view.run, (run) => this.go({ run: Number(run) }));
    choose(steps, `Step ${this.name}`, timelines[view.run].steps.map((step) => [step, `step ${step}`]), head.step, (step) => this.go({ step: Number(step), group: null, response: null }));
    choose(groups, `Group ${this.name}`, head.groups.map(({ group }) => [group, `group ${group}`]), view.group, (group) => this.go({ group: Number(group), response: null }));
    const { responses, metric, scale } = view;
    this.strips.show({ head, responses, metrics: [metric], scales: [scale], keeps: null, current: view.place.response, token: null });
    this.response = responses.find((response) => response.row === view.place.response) ?? responses[0];
    const { row } = this.response;
    fill(this.title, verdictMark(head.verdict(row)), ` Response ${row} `, h("span", { class: "lead" }, `reward ${number(head.fact(row, "reward"))} · ${head.fact(row, "length")} tokens`));
    this.heatmap.show({ response: this.response, dark: isDark(), panes: [{ values: this.response.values[metric], scale, keep: null, hits: null }] });
  }
}
