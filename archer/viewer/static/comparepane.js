// One side of a comparison: its run, step and group, the group's strip, and the text of a chosen response.

import { choose, fill, h } from "./dom.js";
import { filters, passing } from "./tokens.js";
import { GroupStrips } from "./groupstrips.js";
import { Heatmap } from "./heatmap.js";
import { isDark } from "./colour.js";
import { matchTokens } from "./search.js";
import { number, visible } from "./format.js";
import { promptLine } from "./promptline.js";
import { verdictMark } from "./stepview.js";

export class ComparePane {
  // `go(change)` moves this side to another run, step, group or response
  constructor(name, tooltip, go) {
    Object.assign(this, { name, go });
    this.slots = [h("span"), h("span"), h("span")];
    this.choosers = h("div", { class: "controls" }, h("strong", { class: "sidename" }, name), this.slots);
    this.prompt = h("p", { class: "promptline", dir: "ltr" });
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
    this.node = h("div", { class: "comparepane", "data-side": name }, this.choosers, this.prompt, this.strips.node, this.title, this.heatmap.node);
  }

  // `view`: {head, place, run, group, responses, metric, scale, filter, shared, library, timelines}
  show(view) {
    this.view = view;
    const { head, responses, metric, scale, filter } = view;
    this.showChoosers(view);
    const entry = head.groups.find(({ group }) => group === view.group);
    this.prompt.textContent = promptLine(entry, 120);
    const active = filters(filter);
    const keeps = active ? responses.map((response) => passing(response, filter)) : null;
    this.strips.show({ head, responses, metrics: [metric], scales: [scale], grain: "token", keeps, current: view.place.response, token: null });
    this.response = responses.find((response) => response.row === view.place.response) ?? responses[0];
    const { row } = this.response;
    fill(this.title, verdictMark(head.verdict(row)), ` Response ${row} `, h("span", { class: "lead" }, `reward ${number(head.fact(row, "reward"))} · ${head.fact(row, "length")} tokens`));
    const hits = filter.search && !filter.search.error ? matchTokens(this.response, filter.search).flags : null;
    const keep = keeps ? keeps[responses.indexOf(this.response)] : null;
    this.heatmap.show({ response: this.response, dark: isDark(), panes: [{ values: this.response.values[metric], scale, keep, hits }] });
  }

  showChoosers({ head, run, group, shared, library, timelines }) {
    const [runs, steps, groups] = this.slots;
    if (library.runs.length > 1) choose(runs, `Run ${this.name}`, library.runs.map((each) => [each.run, visible(each.name)]), run, (value) => this.go({ run: Number(value) }));
    choose(steps, `Step ${this.name}`, timelines[run].steps.map((step) => [step, `step ${step}`]), head.step, (step) => this.go({ step: Number(step) }));
    const options = head.groups.map((entry) => [entry.group, `group ${entry.group}${shared.includes(entry.group) ? " · in both" : ""}`]);
    choose(groups, `Group ${this.name}`, options, group, (value) => this.go({ group: Number(value), response: null }));
  }
}
