// Above a group's strips: the order of its responses, and for each pane its metric and what its colours mean.

import { isDark } from "./colour.js";
import { choose, h } from "./dom.js";
import { Legend } from "./legend.js";
import { meaningOf, readingOf } from "./meaning.js";

const ROW_ORDERS = [["row", "in order"], ["verdict", "accepted first"], ["reward", "by reward"], ["length", "by length"], ["value", "by mean |right|"], ["signed", "by mean, lowest first"]];

const SIDES = ["left", "right", "third"]; // as the address calls the panes

export class PaneHeads {
  constructor(store) {
    this.store = store;
    this.order = h("div", { class: "rail" });
    this.heads = SIDES.map((side, index) => {
      const legend = new Legend();
      const chooser = h("span");
      return { side, legend, chooser, node: h("div", { class: "panehead", "data-pane": index }, chooser, legend.node) };
    });
    this.nodes = this.heads.map(({ node }) => node);
  }

  show({ state, head, library }, metrics, scales) {
    choose(this.order, "Order of the responses", ROW_ORDERS, state.rows, (rows) => this.store.go({ rows }));
    const options = head.metrics.map((metric) => [metric.name, metric.label]);
    metrics.forEach((metric, index) => {
      const { side, legend, chooser } = this.heads[index];
      choose(chooser, `Metric of the ${side} pane`, options, metric, (value) => this.store.go({ [side]: value }), { class: "metric", id: `${side}-metric` });
      const failed = head.rowsOf(state.group).reduce((sum, row) => sum + head.failures(row, metric), 0);
      legend.show(metric, scales[index], isDark(), meaningOf(metric, scales[index].ramp, readingOf(library, state.run)), failed);
    });
  }
}
