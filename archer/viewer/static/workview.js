// Levels two and three: the group's strips, and below them the chosen response, entropy and influence side by side.

import { choose, fill, h } from "./dom.js";
import { count, number, visible } from "./format.js";
import { GroupStrips } from "./groupstrips.js";
import { Legend } from "./legend.js";
import { ResponseView } from "./responseview.js";
import { Toolbar } from "./toolbar.js";
import { filterOf, filters, passing } from "./tokens.js";
import { isDark } from "./colour.js";
import { promptTail } from "./stepview.js";
import { scaleFor } from "./scales.js";

const ROW_ORDERS = [["row", "in order"], ["verdict", "accepted first"], ["reward", "by reward"], ["length", "by length"], ["value", "by mean |right|"]];

export class WorkView {
  constructor(store, source, tooltip, tokenPanel) {
    Object.assign(this, { store, source, tooltip, tokenPanel });
    this.response = new ResponseView(store, tooltip);
    this.toolbar = new Toolbar(store, (direction) => this.response.jump(direction));
    this.title = h("h1");
    this.notes = h("div");
    this.orderBox = h("div", { class: "rail" });
    this.paneHeads = ["left", "right"].map((side) => {
      const legend = new Legend();
      const chooser = h("span");
      return { side, legend, chooser, node: h("div", { class: "panehead", "data-pane": side === "left" ? 0 : 1 }, chooser, legend.node) };
    });
    this.strips = new GroupStrips(2, {
      pick: (row, token) => store.go({ response: row, token }),
      hover: (response, token, point) => this.hoverStrip(response, token, point),
    });
    this.prompt = h("details", { class: "prompt" });
    this.panelSlot = h("div");
    this.node = h(
      "section",
      { class: "view workview" },
      h("div", { class: "worktitle" }, this.title, this.prompt),
      this.notes,
      h("div", { class: "stickyhead" }, this.toolbar.node, h("div", { class: "grid panes" }, this.orderBox, this.paneHeads.map((pane) => pane.node))),
      this.strips.node,
      this.response.node,
      this.panelSlot,
    );
    this.strips.node.classList.add("grid");
  }

  hoverStrip(response, token, point) {
    if (!response) this.tooltip.hide();
    else this.tooltip.show(this.context.head, response, token, point);
  }

  async show(context, current) {
    const { state, head } = context;
    const metrics = this.metricsOf(state, head);
    const fromGroup = [...new Set([...metrics, filterOf(state).metric])].filter((name) => head.metric(name));
    const searching = state.q !== "";
    const loaded = await Promise.all([
      this.source.group(head, state.group, searching ? null : fromGroup, searching),
      state.response === null ? null : this.source.response(head, state.response),
    ]);
    if (!current()) return;
    const [group, response] = loaded;
    Object.assign(this, { context, group, metrics });
    this.node.dataset.panes = state.pane;
    this.toolbar.show(context);
    const titled = [head.run, head.step, head.version, state.group, state.response].join("/");
    if (this.titled !== titled) {
      this.titled = titled;
      this.showTitle(response);
      fill(this.notes, head.notes.map((note) => h("p", { class: "notice" }, note)));
    }
    const filter = filterOf(state);
    const active = filters(filter);
    const scales = metrics.map((metric) => scaleFor(state, head, metric, group, response));
    this.showPaneHeads(scales);
    this.strips.show({ head, responses: this.ordered(group), metrics, scales, keeps: this.keepsOf(group, filter, active), current: state.response, token: state.token });
    this.response.node.hidden = !response;
    if (response) {
      const facts = this.response.show({ context, response, metrics, scales, filter, active });
      this.toolbar.showMatches(filter.search, facts.matches, facts.place);
    } else {
      this.toolbar.showMatches(filter.search, this.groupMatches(group, filter), null);
    }
    if (this.tokenPanel.node.parentNode !== this.panelSlot) this.panelSlot.append(this.tokenPanel.node);
    const scopes = [...(response ? ["response"] : []), "group", ...(context.library.static ? [] : ["step"])];
    this.tokenPanel.show({ ...context, scopes });
    this.prefetch();
  }

  metricsOf(state, head) {
    const names = head.metrics.map((metric) => metric.name);
    const left = names.includes(state.left) ? state.left : names[0];
    const right = names.includes(state.right) ? state.right : names.find((name) => name !== left) ?? left;
    return [left, right];
  }

  // The order is kept while nothing changes, so that rows stay where they are.
  ordered(group) {
    const { state, head } = this.context;
    const key = `${state.rows}/${this.metrics[1]}`;
    if (this.orderedFrom !== group || this.orderedKey !== key) {
      const rows = head.sortedRows(state.group, state.rows, this.metrics[1]);
      const byRow = new Map(group.map((response) => [response.row, response]));
      this.inOrder = rows.map((row) => byRow.get(row));
      Object.assign(this, { orderedFrom: group, orderedKey: key });
    }
    return this.inOrder;
  }

  keepsOf(group, filter, active) {
    const { state } = this.context;
    const key = [filter.metric, state.lo, state.hi, state.q, state.regex, state.case, this.orderedKey].join("\u0000");
    if (this.keptFrom !== group || this.keptKey !== key) {
      this.keeps = active ? this.inOrder.map((response) => passing(response, filter)) : null;
      Object.assign(this, { keptFrom: group, keptKey: key });
    }
    return this.keeps;
  }

  groupMatches(group, filter) {
    if (!filter.search || filter.search.error) return 0;
    let total = 0;
    for (const response of group) if (response.text !== undefined) total += filter.search.find(response.text).length;
    return total;
  }

  rowOrder() {
    return this.inOrder?.map((response) => response.row) ?? [];
  }

  showTitle(response) {
    const { state, head } = this.context;
    const rows = head.rowsOf(state.group);
    const good = rows.filter((row) => head.fact(row, "accepted")).length;
    fill(
      this.title,
      `Group ${state.group} `,
      h("span", { class: "lead" }, `${count(rows.length)} responses · ${head.rows.accepted ? `${good} accepted · ` : ""}mean reward ${number(mean(rows.map((row) => head.fact(row, "reward"))))}`),
    );
    const entry = head.groups.find(({ group }) => group === state.group);
    const text = response?.prompt ?? entry?.prompt ?? null;
    fill(this.prompt, h("summary", {}, "Prompt ", text !== null && h("span", { class: "promptline" }, promptTail(text, 96))), h("pre", { dir: "ltr" }, text === null ? "This trace holds no prompts." : promptText(text)));
  }

  showPaneHeads(scales) {
    const { state, head } = this.context;
    choose(this.orderBox, "Order of the responses", ROW_ORDERS, state.rows, (rows) => this.store.go({ rows }));
    this.paneHeads.forEach(({ side, legend, chooser }, index) => {
      const options = head.metrics.map((metric) => [metric.name, metric.label]);
      choose(chooser, `Metric of the ${side} pane`, options, this.metrics[index], (value) => this.store.go({ [side]: value }), { class: "metric", id: `${side}-metric` });
      legend.show(this.metrics[index], scales[index], isDark());
    });
  }

  // The neighbours of the chosen response are fetched ahead, so that j and k do not wait.
  prefetch() {
    const { state, head } = this.context;
    const rows = this.rowOrder();
    const at = rows.indexOf(state.response); // -1 when none is chosen: then the first one comes next
    clearTimeout(this.prefetching);
    this.prefetching = setTimeout(() => {
      for (const row of [rows[at + 1], rows[at - 1]]) {
        if (row !== undefined) this.source.response(head, row).then((response) => this.response.heatmap.prepare(response), () => {});
      }
    }, 60);
  }
}

// Line breaks stay, everything else that cannot be seen becomes a sign.
export function promptText(text) {
  return text.split("\n").map(visible).join("\n");
}

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
