// Level three: one response, its facts, its text twice, the metrics over position, the chosen token in detail.

import { fill, h } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { PositionChart } from "./positionchart.js";
import { isDark } from "./colour.js";
import { matchTokens } from "./search.js";
import { parseZoom } from "./zoom.js";
import { Rendered } from "./rendered.js";
import { responseTitle } from "./responsefacts.js";
import { shades } from "./grain.js";
import { passing } from "./tokens.js";
import { tokenFacts, tokenName } from "./tooltip.js";

export class ResponseView {
  constructor(store, source, tooltip) {
    Object.assign(this, { store, source, tooltip });
    this.facts = h("h2", { class: "responsetitle" });
    this.inspector = h("aside", { class: "inspector", "aria-label": "The chosen token" });
    this.charts = [0, 1, 2].map(() => new PositionChart((token) => store.go({ token }), (zoom) => store.go({ zoom })));
    this.heatmap = new Heatmap(3, {
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
      (this.texts = h("div", { class: "grid texts" }, this.inspector, this.heatmap.node)),
    );
    this.rendered = new Rendered(() => source.renderWorker());
  }

  // What of it stands in the third pane.
  thirdPane() {
    return [this.charts[2].node, this.heatmap.panes[2].node];
  }

  // `view`: {context, response, metrics, scales, filter, active}
  show(view) {
    const { context, response, metrics, scales, filter, active } = view;
    const { state, head } = context;
    const moved = this.view?.response !== response;
    this.view = view;
    this.node.hidden = false;
    if (moved) fill(this.facts, responseTitle(head, response.row));
    const found = filter.search && !filter.search.error ? matchTokens(response, filter.search) : null;
    this.matches = found?.starts ?? [];
    if (state.rendered) this.texts.append(this.rendered.node);
    else this.rendered.node.remove();
    this.texts.classList.toggle("withrendered", Boolean(state.rendered));
    this.rendered.show(state.rendered ? response : null);
    const keep = active ? passing(response, filter) : null;
    this.heatmap.show({
      response,
      dark: isDark(),
      panes: metrics.map((metric, index) => ({ values: shades(response, metric, state.grain), failed: response.failed[metric], scale: scales[index], keep, hits: found?.flags ?? null })),
    });
    const token = state.token === null ? null : Math.min(Math.max(state.token, 0), response.span - 1);
    const reveal = moved || token !== this.token;
    this.token = token;
    this.heatmap.select(token, reveal && token !== null);
    metrics.forEach((metric, index) => {
      const chart = this.charts[index];
      chart.visible = this.heatmap.visibleTokens();
      chart.selected = token;
      chart.show(response, shades(response, metric, state.grain), scales[index], metric, { zoom: parseZoom(state.zoom), pooling: state.pool });
    });
    this.showInspector();
    const place = token === null ? -1 : this.matches.indexOf(token);
    return { matches: this.matches.length, place: place < 0 ? null : place };
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
    this.tooltip.hide(); // the same stands beside the text, where it covers nothing
  }
}
