// Below the charts: the group to look at first, a rejected response beside the nearest accepted one.

import { button, fill, h } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { isDark } from "./colour.js";
import { meaningOf, readingOf } from "./meaning.js";
import { number, spoken } from "./format.js";
import { scaleFor } from "./scales.js";
import { verdictMark } from "./stepview.js";

export class TellingGroup {
  constructor(store, source, tooltip) {
    Object.assign(this, { store, source });
    this.why = h("p", { class: "lead" });
    this.open = h("span");
    this.panes = [0, 1].map((index) => {
      const heatmap = new Heatmap(1, {
        hover: (token, event) => (token < 0 || !event ? tooltip.hide() : tooltip.show(this.head, this.shown[index], token, event)),
        select: (token) => this.go(this.shown[index].row, token),
      });
      const title = h("h3");
      return { title, heatmap, node: h("div", { class: "tellingpane" }, title, heatmap.node) };
    });
    this.node = h("section", { class: "telling", hidden: true, "aria-label": "The most telling group" }, h("div", { class: "sectionhead" }, h("h2", {}, "Look here first"), this.open), this.why, h("div", { class: "two" }, this.panes.map((pane) => pane.node)));
  }

  go(row, token) {
    this.store.go({ step: this.found.step, group: this.found.group, response: row, token });
  }

  async show({ state, timelines, library }) {
    const key = `${state.run}/${timelines[state.run].steps.length}/${isDark()}`;
    if (this.key === key) return;
    this.key = key;
    const found = await this.source.telling(state.run).catch(() => null);
    if (this.key !== key) return;
    this.node.hidden = !found;
    if (!found) return;
    this.why.textContent = `${found.why[0].toUpperCase()}${found.why.slice(1)}.`;
    const head = await this.source.head(state.run, found.step);
    if (this.key !== key) return;
    if (head.metric(found.metric).spread.all.count) {
      const [reading] = meaningOf(found.metric, "", readingOf(library, state.run));
      this.why.append(` Coloured by ${spoken(found.metric)}. ${reading}`);
    }
    const rows = [found.row, found.beside].filter((row) => row !== null);
    const shown = await Promise.all(rows.map((row) => this.source.response(head, row)));
    if (this.key !== key) return;
    Object.assign(this, { found, head, shown });
    fill(this.open, button(`Open group ${found.group} of step ${found.step}`, () => this.go(found.row, found.token), { id: "open-telling" }));
    this.panes.forEach((pane, index) => {
      const response = shown[index];
      pane.node.hidden = !response;
      if (!response) return;
      const { row } = response;
      const mean = head.mean(row, found.metric);
      fill(pane.title, verdictMark(head.verdict(row)), ` Response ${row} `, h("span", { class: "lead" }, `reward ${number(head.fact(row, "reward"))} · ${head.fact(row, "length")} tokens · mean ${spoken(found.metric)} ${number(mean)}`));
      pane.heatmap.show({ response, dark: isDark(), panes: [{ values: response.values[found.metric], scale: scaleFor(state, head, found.metric, null, response), keep: null, hits: null }] });
    });
    if (found.token !== null) this.panes[0].heatmap.select(found.token, true);
  }
}
