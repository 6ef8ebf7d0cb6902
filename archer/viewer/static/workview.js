// Levels two and three: the group's strips, and below them two responses side by side, or one with two metrics.

import { fill, h } from "./dom.js";
import { GroupStrips } from "./groupstrips.js";
import { GroupTitle } from "./grouptitle.js";
import { jumpToMatch } from "./jump.js";
import { PaneHeads } from "./paneheads.js";
import { PairView } from "./pairview.js";
import { parseZoom } from "./zoom.js";
import { prepare, unsearched } from "./search.js";
import { ResponseView } from "./responseview.js";
import { spoken } from "./format.js";
import { paneShown, Toolbar } from "./toolbar.js";
import { ViewBar } from "./viewbar.js";
import { countMatches, filterOf, filters, paneMetrics, passing, stripTokens } from "./tokens.js";
import { scaleFor } from "./scales.js";

export class WorkView {
  constructor(store, source, tooltip, tokenPanel) {
    Object.assign(this, { store, source, tooltip, tokenPanel });
    this.response = new ResponseView(store, source, tooltip);
    this.pair = new PairView(store, source, tooltip);
    this.viewbar = new ViewBar(store);
    this.toolbar = new Toolbar(store, { jump: (direction) => this.jump(direction), colours: ["panes", "grain", "scale", "gamma"] });
    this.title = new GroupTitle(store, source);
    this.heads = new PaneHeads(store);
    this.strips = new GroupStrips(this.heads.nodes.length, {
      pick: (row, token) => this.pick(row, token),
      hover: (response, token, point) => this.hoverStrip(response, token, point),
      zoom: (zoom) => store.go({ zoom }),
    });
    this.hint = h("p", { class: "hint", hidden: true });
    this.textSlot = h("div");
    this.panelSlot = h("div");
    this.node = h(
      "section",
      { class: "view workview pending" },
      this.title.node,
      h("div", { class: "stickyhead" }, this.toolbar.node, h("div", { class: "grid panes" }, this.heads.order, this.heads.nodes)),
      this.strips.node,
      this.hint,
      this.viewbar.node,
      this.textSlot,
      this.panelSlot,
    );
    this.strips.node.classList.add("grid");
    this.third = [...this.response.thirdPane(), this.strips.panes[2].node, this.heads.nodes[2]].map((node) => ({ node, parent: node.parentNode }));
    this.three = true;
    this.showThird(false);
  }

  // The third pane is on the page only where it shows something.
  showThird(three) {
    if (three === this.three) return;
    this.three = three;
    for (const { node, parent } of this.third) {
      if (three) parent.append(node);
      else node.remove();
    }
    this.node.classList.toggle("three", three);
  }

  // A strip is drawn from the panes' metrics alone; what else is known of a token comes a moment after the pointer.
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
    const [group, shown] = await Promise.all([
      stripTokens(this.source, head, state.group, state),
      state.response === null ? null : this.shownResponses(state, head),
    ]);
    if (!current()) return;
    const filter = filterOf(state, head);
    if (!(await this.search(filter, [...group, ...(shown ?? [])], current))) return;
    Object.assign(this, { context, group, metrics: paneMetrics(state, head) });
    this.tooltip.unit = state.grain === "token" ? null : { grain: state.grain, metrics: this.metrics };
    this.node.dataset.panes = paneShown(state, head);
    this.node.dataset.line = state.line;
    this.showThird(this.metrics.length === 3);
    this.toolbar.show(context);
    this.title.show(context, shown?.[0]);
    this.showGroup(filter, shown ?? this.opened(head, state.group));
    if (this.tokenPanel.node.parentNode !== this.panelSlot) this.panelSlot.append(this.tokenPanel.node);
    this.showPanel(shown ?? this.opened(head, state.group));
    if (shown) this.prefetch();
    else this.open(filter, current); // the strips do not wait for the text
  }

  // The responses whose text is on the page: the chosen one, and the one that lies beside it.
  async shownResponses(state, head) {
    const row = state.response;
    let rows = [row];
    if (row === null || state.beside !== "") {
      const beside = /^\d+$/.test(state.beside) ? Number(state.beside) : null;
      if (row !== null && beside !== null && beside !== row && head.fact(beside, "group") === state.group) rows = [row, beside];
      else {
        const pair = await this.source.pair(head, state.group, row);
        rows = [pair.row, pair.beside].filter((each) => each !== null);
      }
    }
    return Promise.all(rows.map((each) => this.source.response(head, each)));
  }

  // A group opens with a rejected response beside the nearest accepted one.
  async open(filter, current) {
    const { state, head } = this.context;
    const shown = await this.shownResponses(state, head).catch(() => []);
    if (!current() || !(await this.search(filter, shown, current))) return;
    this.lastOpened = { head, group: state.group, shown };
    this.showGroup(filter, shown);
    this.showPanel(shown);
    this.prefetch();
    this.node.dataset.opened = `${head.step}/${state.group}`;
  }

  // Tokens are those of the group until a response is chosen; sentences those of the response that it opened with.
  showPanel([response]) {
    const { context } = this;
    const of = context.state.response !== null || (response && context.state.table === "units");
    const scopes = [...(of ? ["response"] : []), "group", ...(context.library.static ? [] : ["step"])];
    this.tokenPanel.show({ ...context, state: of ? { ...context.state, response: response.row } : context.state, scopes });
  }

  opened(head, group) {
    return this.lastOpened?.head === head && this.lastOpened.group === group ? this.lastOpened.shown : [];
  }

  async search(filter, responses, current) {
    if (!unsearched(filter.search, responses).length) return true;
    this.toolbar.showSearching();
    await prepare(filter.search, responses, this.source.regexes);
    return current();
  }

  showGroup(filter, shown) {
    const { context, group, metrics } = this;
    const { state, head } = context;
    const [response, beside] = shown;
    this.shown = shown;
    const active = filters(filter);
    const scales = metrics.map((metric) => scaleFor(state, head, metric, group, state.response === null ? null : response));
    this.heads.show(context, metrics, scales);
    this.strips.show({
      head,
      responses: this.ordered(group),
      metrics,
      scales,
      keeps: this.keepsOf(group, filter, active),
      grain: state.grain,
      current: response?.row ?? null,
      beside: beside?.row ?? null,
      token: state.token,
      zoom: parseZoom(state.zoom),
      pooling: state.pool,
      gamma: state.gamma,
    });
    this.showHint(group);
    this.viewbar.show(context, shown);
    const text = beside ? this.pair.node : this.response.node;
    this.textSlot.hidden = !response;
    if (this.textSlot.firstChild !== text) fill(this.textSlot, text);
    let facts = { matches: countMatches(group, filter.search), place: null };
    if (beside) facts = this.pair.show({ context, responses: shown, metrics, scales, under: metrics.length > 2 && state.line !== "left" ? 2 : 0, filter, active, token: state.response === null ? null : clamped(state.token, response) });
    else if (response) facts = this.response.show({ context, response, metrics, scales, filter, active });
    if (state.response !== null) this.toolbar.showMatches(filter.search, facts.matches, facts.place);
    else this.toolbar.showMatches(filter.search, countMatches(group, filter.search), null);
  }

  // Another response in place of the chosen one; while two are side by side, again with the nearest to it.
  pick(row, token) {
    const paired = this.shown?.length > 1;
    this.store.go({ response: row, token, beside: paired ? "nearest" : this.store.state.beside });
  }

  move(key) {
    if (this.shown?.length > 1) this.pair.move(key);
    else if (this.store.state.response !== null) this.response.move(key);
    else return false;
    return true;
  }

  jump(direction) {
    const [response, beside] = this.shown ?? [];
    const { state } = this.store;
    if (state.response !== null && response?.row !== state.response) return;
    jumpToMatch(this.store, this.source, response, direction, (token) => this.store.go({ response: response.row, token, beside: beside ? String(beside.row) : state.beside }));
  }

  // A strip of nothing but missing values says why.
  showHint(group) {
    const { state, head } = this.context;
    const absent = [...new Set(this.metrics)].filter((metric) => group.every(({ values, failed }) => !failed[metric] && values[metric].every((value) => value !== value)));
    const verdicts = new Set(head.rowsOf(state.group).map((row) => head.verdict(row)));
    const why = absent.includes("influence") && verdicts.size === 1 && !verdicts.has(null) ? ` Influence contrasts accepted with rejected responses, and here all are ${[...verdicts][0]}.` : "";
    this.hint.hidden = !absent.length;
    this.hint.textContent = `No ${absent.map(spoken).join(" and ")} was computed for this group.${why}`;
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

  // Where the chosen token is drawn: [heatmap, token]
  chosen() {
    return this.shown?.length > 1 ? [this.pair.sides[0].heatmap, this.pair.token] : [this.response.heatmap, this.response.token];
  }

  rowOrder() {
    return this.inOrder?.map((response) => response.row) ?? [];
  }

  // The neighbours of the chosen response are fetched ahead, so that j and k do not wait.
  prefetch() {
    const { state, head } = this.context;
    const rows = this.rowOrder();
    const at = rows.indexOf(state.response); // -1 when none is chosen: then the first one comes next
    clearTimeout(this.prefetching);
    this.prefetching = setTimeout(() => {
      for (const row of [rows[at + 1], rows[at - 1]]) {
        if (row === undefined) continue;
        if (this.shown.length > 1) this.shownResponses({ ...state, response: row, beside: "nearest" }, head).then((pair) => this.pair.prepare(pair), () => {});
        else this.source.response(head, row).then((response) => this.response.heatmap.prepare(response), () => {});
      }
    }, 60);
  }
}

function clamped(token, response) {
  return token === null ? null : Math.min(Math.max(token, 0), response.span - 1);
}
