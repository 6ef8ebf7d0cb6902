// Levels two and three: the group's strips, and below them the chosen response, entropy and influence side by side.

import { button, choose, fill, h } from "./dom.js";
import { count, number, visible } from "./format.js";
import { GroupStrips } from "./groupstrips.js";
import { Legend } from "./legend.js";
import { prepare, unsearched } from "./search.js";
import { ResponseView } from "./responseview.js";
import { Toolbar } from "./toolbar.js";
import { countMatches, filterOf, filters, paneMetrics, passing, stripTokens } from "./tokens.js";
import { isDark } from "./colour.js";
import { promptLine } from "./promptline.js";
import { scaleFor } from "./scales.js";

const ROW_ORDERS = [["row", "in order"], ["verdict", "accepted first"], ["reward", "by reward"], ["length", "by length"], ["value", "by mean |right|"]];

export class WorkView {
  constructor(store, source, tooltip, tokenPanel) {
    Object.assign(this, { store, source, tooltip, tokenPanel });
    this.response = new ResponseView(store, source, tooltip);
    this.toolbar = new Toolbar(store, { jump: (direction) => this.response.jump(direction), colours: ["panes", "grain", "scale", "gamma"] });
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
    this.hint = h("p", { class: "hint", hidden: true });
    this.prompt = h("details", { class: "prompt" });
    this.save = h("a", { class: "action", id: "save", download: "", title: "This group as one HTML file that opens without a server" }, "Save as a page");
    this.course = button("Through training", () => this.course.pick(), { class: "quiet", id: "course", title: "This prompt at all steps it appeared in" });
    this.panelSlot = h("div");
    this.node = h(
      "section",
      { class: "view workview" },
      h("div", { class: "worktitle" }, this.title, this.prompt, this.course, this.save),
      this.notes,
      h("div", { class: "stickyhead" }, this.toolbar.node, h("div", { class: "grid panes" }, this.orderBox, this.paneHeads.map((pane) => pane.node))),
      this.strips.node,
      this.hint,
      this.response.node,
      this.panelSlot,
    );
    this.strips.node.classList.add("grid");
  }

  // A strip is drawn from two metrics alone; what else is known of a token comes a moment after the pointer.
  hoverStrip(response, token, point) {
    const { head } = this.context;
    const hovered = (this.hovered = response && { response, token });
    if (!response) this.tooltip.hide();
    else this.tooltip.show(head, response, token, point);
    if (!response || response.text !== undefined) return;
    clearTimeout(this.hovering);
    this.hovering = setTimeout(async () => {
      const whole = await this.source.response(head, response.row).catch(() => null);
      if (whole && this.hovered === hovered) this.tooltip.show(head, whole, token, point);
    }, 90);
  }

  async show(context, current) {
    const { state, head } = context;
    const owner = state.response === null ? null : head.fact(state.response, "group");
    if (owner !== null && owner !== state.group) throw new Error(`Response ${state.response} belongs to group ${owner}: open #${state.step}/${owner}/${state.response}.`);
    const metrics = paneMetrics(state, head);
    const loaded = await Promise.all([
      stripTokens(this.source, head, state.group, state),
      state.response === null ? null : this.source.response(head, state.response),
    ]);
    if (!current()) return;
    const [group, response] = loaded;
    const filter = filterOf(state, head);
    if (unsearched(filter.search, [...group, response]).length) {
      this.toolbar.showSearching();
      await prepare(filter.search, [...group, response], this.source.regexes);
      if (!current()) return;
    }
    Object.assign(this, { context, group, metrics });
    this.tooltip.unit = state.grain === "token" ? null : { grain: state.grain, metrics };
    this.node.dataset.panes = state.pane;
    this.toolbar.show(context);
    const titled = [head.run, head.step, head.version, state.group, state.response].join("/");
    if (this.titled !== titled) {
      this.titled = titled;
      this.showTitle(response);
      fill(this.notes, head.notes.map((note) => h("p", { class: "notice" }, note)));
    }
    const active = filters(filter);
    const scales = metrics.map((metric) => scaleFor(state, head, metric, group, response));
    this.showPaneHeads(scales);
    this.strips.show({ head, responses: this.ordered(group), metrics, scales, keeps: this.keepsOf(group, filter, active), grain: state.grain, current: state.response, token: state.token });
    this.showHint(group);
    this.response.node.hidden = !response;
    if (response) {
      const facts = this.response.show({ context, response, metrics, scales, filter, active });
      this.toolbar.showMatches(filter.search, facts.matches, facts.place);
    } else {
      this.toolbar.showMatches(filter.search, countMatches(group, filter.search), null);
    }
    if (this.tokenPanel.node.parentNode !== this.panelSlot) this.panelSlot.append(this.tokenPanel.node);
    const scopes = [...(response ? ["response"] : []), "group", ...(context.library.static ? [] : ["step"])];
    this.tokenPanel.show({ ...context, scopes });
    this.prefetch();
  }

  // A strip of nothing but missing values says why.
  showHint(group) {
    const { state, head } = this.context;
    const absent = [...new Set(this.metrics)].filter((metric) => group.every(({ values }) => values[metric].every((value) => value !== value)));
    const verdicts = new Set(head.rowsOf(state.group).map((row) => head.verdict(row)));
    const why = absent.includes("influence") && verdicts.size === 1 && !verdicts.has(null) ? ` Influence contrasts accepted with rejected responses, and here all are ${[...verdicts][0]}.` : "";
    this.hint.hidden = !absent.length;
    this.hint.textContent = `No ${absent.map((name) => name.replaceAll("_", " ")).join(" and ")} was computed for this group.${why}`;
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
    const key = [filter.metric, state.lo, state.hi, state.q, state.regex, state.case, active, this.orderedKey].join("\u0000");
    if (this.keptFrom !== group || this.keptKey !== key) {
      this.keeps = active ? this.inOrder.map((response) => passing(response, filter)) : null;
      Object.assign(this, { keptFrom: group, keptKey: key });
    }
    return this.keeps;
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
    const address = this.source.exportAddress(head, state.group);
    const asked = head.groups.find(({ group }) => group === state.group)?.prompt_id ?? null;
    this.course.hidden = asked === null || address === null;
    this.course.pick = () => this.store.go({ page: "prompt", prompt: asked });
    this.save.hidden = address === null;
    if (address !== null) this.save.href = address;
    const entry = head.groups.find(({ group }) => group === state.group);
    const text = response?.prompt ?? entry?.prompt ?? null;
    fill(this.prompt, h("summary", {}, "Prompt ", text !== null && h("span", { class: "promptline" }, promptLine(entry ?? { prompt: text }, 96))), h("pre", { dir: "ltr" }, text === null ? "This trace holds no prompts." : promptText(text)));
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
