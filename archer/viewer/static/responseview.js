// Level three: one response, its facts, its text twice, the metrics over position, the chosen token in detail.

import { fill, h } from "./dom.js";
import { count, number, visible } from "./format.js";
import { Heatmap } from "./heatmap.js";
import { PositionChart } from "./chart.js";
import { isDark } from "./colour.js";
import { matchTokens, prepare, queryOf, unsearched } from "./search.js";
import { shades } from "./grain.js";
import { passing } from "./tokens.js";
import { tokenFacts, tokenName } from "./tooltip.js";
import { verdictMark } from "./stepview.js";

export class ResponseView {
  constructor(store, source, tooltip) {
    Object.assign(this, { store, source, tooltip });
    this.facts = h("h2", { class: "responsetitle" });
    this.inspector = h("aside", { class: "inspector", "aria-label": "The chosen token" });
    this.charts = [0, 1].map(() => new PositionChart((token) => store.go({ token })));
    this.heatmap = new Heatmap(2, {
      hover: (token, event) => this.hover(token, event),
      select: (token) => store.go({ token }),
      scrolled: (first, last) => this.markCharts([first, last]),
    });
    this.charts.forEach((chart, index) => (chart.node.dataset.pane = index));
    this.node = h(
      "section",
      { class: "response" },
      this.facts,
      h("div", { class: "grid" }, h("div", { class: "rail" }), this.charts.map((chart) => chart.node)),
      h("div", { class: "grid texts" }, this.inspector, this.heatmap.node),
    );
  }

  // `view`: {context, response, metrics, scales, filter, active}
  show(view) {
    const { context, response, metrics, scales, filter, active } = view;
    const { state, head } = context;
    const moved = this.view?.response !== response;
    this.view = view;
    this.node.hidden = false;
    if (moved) this.showFacts(head, response);
    const found = filter.search && !filter.search.error ? matchTokens(response, filter.search) : null;
    this.matches = found?.starts ?? [];
    const keep = active ? passing(response, filter) : null;
    this.heatmap.show({
      response,
      dark: isDark(),
      panes: metrics.map((metric, index) => ({ values: shades(response, metric, state.grain), scale: scales[index], keep, hits: found?.flags ?? null })),
    });
    const token = state.token === null ? null : Math.min(Math.max(state.token, 0), response.span - 1);
    const reveal = moved || token !== this.token;
    this.token = token;
    this.heatmap.select(token, reveal && token !== null);
    this.charts.forEach((chart, index) => {
      chart.visible = this.heatmap.visibleTokens();
      chart.selected = token;
      chart.show(response, shades(response, metrics[index], state.grain), scales[index], metrics[index]);
    });
    this.showInspector();
    const place = token === null ? -1 : this.matches.indexOf(token);
    return { matches: this.matches.length, place: place < 0 ? null : place };
  }

  showFacts(head, response) {
    const { row } = response;
    const facts = [];
    if (head.verdict(row)) facts.push(head.verdict(row));
    if (head.fact(row, "reward") !== null) facts.push(`reward ${number(head.fact(row, "reward"))}`);
    facts.push(`${count(head.fact(row, "length"))} tokens`);
    for (const metric of head.metrics) {
      const absolute = metric.ramp === "diverging";
      facts.push(`mean ${absolute ? `|${metric.name}|` : metric.name.replaceAll("_", " ")} ${number(head.mean(row, metric.name, absolute))}`);
    }
    facts.push(`rollout row ${head.fact(row, "response_index")}`);
    const said = (head.fact(row, "said") ?? []).map(([name, text]) => h("div", { class: "said" }, h("b", {}, visible(name)), ` ${visible(text)}`));
    fill(this.facts, verdictMark(head.verdict(row)), ` Response ${row} `, h("span", { class: "lead" }, facts.join(" · ")), said);
  }

  showInspector() {
    const { context, response } = this.view;
    if (this.token === null) {
      fill(this.inspector, h("p", { class: "hint" }, "Point at a token to read its values, click to keep them here. Arrow keys go from token to token."));
      return;
    }
    fill(
      this.inspector,
      h("div", { class: "chosen" }, tokenName(response, this.token)),
      h("dl", {}, tokenFacts(context.head, response, this.token, this.tooltip.unit).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    );
  }

  markCharts(visible) {
    for (const chart of this.charts) chart.mark(this.token, visible);
  }

  hover(token, event) {
    if (token < 0 || !event) this.tooltip.hide();
    else this.tooltip.show(this.view.context.head, this.view.response, token, event);
  }

  // Arrow keys: left and right by token, up and down by line.
  move(key) {
    const { response, context } = this.view;
    if (!response.span) return;
    const from = Math.min(this.store.state.token ?? -1, response.span - 1); // keys may come faster than frames
    const layout = this.heatmap.layout;
    let to = Math.max(from, 0);
    if (key === "ArrowRight") to = Math.min(from + 1, response.span - 1);
    if (key === "ArrowLeft") to = Math.max(from - 1, 0);
    if (key === "ArrowDown" && from >= 0) to = layout.vertical(from, 1);
    if (key === "ArrowUp" && from >= 0) to = layout.vertical(from, -1);
    if (key === "Home") to = 0;
    if (key === "End") to = response.span - 1;
    this.store.go({ token: to });
    this.tooltip.say(context.head, response, to);
    requestAnimationFrame(() => this.tooltip.show(context.head, response, to, this.heatmap.pointOf(to)));
  }

  // To the next or previous match of what is in the search field now, which may not be on the screen yet.
  jump(direction) {
    const { state } = this.store;
    const current = () => queryOf(this.store.state.q, this.store.state.regex, this.store.state.case);
    const search = current();
    if (!this.view || this.view.response.row !== state.response || !search || search.error) return;
    if (unsearched(search, [this.view.response]).length) {
      prepare(search, [this.view.response], this.source.regexes).then(() => search === current() && this.jump(direction));
      return;
    }
    const { starts } = matchTokens(this.view.response, search);
    if (!starts.length) return;
    const from = state.token ?? -1;
    const next =
      direction > 0
        ? (starts.find((start) => start > from) ?? starts[0])
        : (starts.findLast((start) => start < from) ?? starts[starts.length - 1]);
    this.store.go({ token: next });
  }
}
