// The text heatmaps: one scroll and one layout, painted side by side, with hover and selection linked.

import { cssColour, debounce, h, sizeCanvas } from "./dom.js";
import { Layout, LINE } from "./layout.js";
import { paintLines, TEXT_FONT } from "./paint.js";
import { TextWindow } from "./textwindow.js";

export class Heatmap {
  // `events`: {hover(token, point), select(token), scrolled(first, last)}
  constructor(panes, events) {
    this.events = events;
    this.panes = Array.from({ length: panes }, (_, index) => {
      const canvas = h("canvas", { "aria-hidden": "true" });
      const text = new TextWindow("Response text", index > 0);
      const layer = h("div", { class: "textlayer" }, text.node);
      return { canvas, text, layer, node: h("div", { class: "textpane", "data-pane": index }, canvas, layer) };
    });
    this.sticky = h("div", { class: "heatmap-sticky" }, this.panes.map((pane) => pane.node));
    this.spacer = h("div", { class: "heatmap-spacer" }, this.sticky);
    this.node = h("div", { class: "heatmap", tabindex: "0", role: "region", "aria-label": "Tokens of the response; arrow keys move from token to token" }, this.spacer);
    this.layouts = new WeakMap();
    this.hovered = -1;
    this.selected = -1;
    this.frame = 0;
    this.settle = debounce(90, () => this.settled());
    this.node.addEventListener("scroll", () => {
      this.schedule();
      this.settle();
    });
    this.sticky.addEventListener("pointermove", (event) => this.hover(this.tokenAt(event), event));
    this.sticky.addEventListener("pointerleave", () => this.hover(-1, null));
    this.sticky.addEventListener("click", (event) => {
      const selection = document.getSelection();
      if (selection && !selection.isCollapsed) return;
      const token = this.tokenAt(event);
      if (token >= 0) this.events.select(token);
    });
    new ResizeObserver(() => this.resized()).observe(this.node);
  }

  // `view`: {response, panes: [{values, scale, keep, hits}], dark}
  show(view) {
    const moved = this.view?.response !== view.response;
    this.view = view;
    if (moved || this.visiblePanes !== this.whichVisible()) this.relayout(moved);
    this.paint();
  }

  // Which panes are on the page: one that comes in place of another has no text to select yet.
  whichVisible() {
    return this.panes.map((pane) => pane.node.clientWidth > 0).join();
  }

  relayout(moved) {
    const shown = this.panes.find((pane) => pane.node.clientWidth > 0) ?? this.panes[0];
    this.visiblePanes = this.whichVisible();
    this.paneWidth = Math.max(120, shown.node.clientWidth);
    this.layout = this.layoutOf(this.view.response);
    if (moved && this.node.scrollTop) this.node.scrollTop = 0;
    for (const pane of this.panes) pane.text.show(this.layout, this.view.response);
    const lines = Math.floor(Math.max(300, window.innerHeight * 0.56) / LINE); // whole ones
    this.viewport = Math.min(this.layout.height + 8, lines * LINE);
    this.node.style.height = `${this.viewport}px`;
    this.sticky.style.height = `${this.viewport}px`;
    this.spacer.style.height = `${this.layout.height + 8}px`;
    this.settle();
  }

  // Layouts are kept with their response, and made ahead for those that may come next.
  layoutOf(response) {
    const kept = this.layouts.get(response);
    if (kept && kept.paneWidth === this.paneWidth) return kept;
    const { context, advance } = this.font();
    const layout = new Layout(response, this.paneWidth, context, advance);
    layout.paneWidth = this.paneWidth;
    this.layouts.set(response, layout);
    return layout;
  }

  // The font is loaded when it is first measured; that need not be when somebody waits.
  font() {
    const context = this.panes[0].canvas.getContext("2d");
    context.font = TEXT_FONT;
    return { context, advance: context.measureText("0".repeat(64)).width / 64 };
  }

  prepare(response) {
    if (this.paneWidth) this.layoutOf(response);
    else this.font();
  }

  resized() {
    if (!this.view || !this.node.clientWidth) return;
    const shown = this.panes.find((pane) => pane.node.clientWidth > 0);
    if (shown && shown.node.clientWidth !== this.paneWidth) {
      this.relayout(false);
      this.paint();
    }
  }

  schedule() {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.paint();
      });
    }
  }

  settled() {
    for (const pane of this.panes) if (pane.node.clientWidth) pane.text.update(this.node.scrollTop, this.viewport);
    this.events.scrolled?.(...this.visibleTokens());
  }

  visibleTokens() {
    const first = Math.min(Math.floor(this.node.scrollTop / LINE), this.layout.lines - 1);
    const last = Math.min(Math.floor((this.node.scrollTop + this.viewport) / LINE), this.layout.lines - 1);
    const end = this.layout.segmentsOf(last)[1];
    return [this.layout.token[this.layout.lineStart[first]] ?? 0, this.layout.token[end - 1] ?? 0];
  }

  paint() {
    if (!this.view || !this.layout) return;
    const { dark, response } = this.view;
    const inks = {
      dark: "#17181c",
      light: "#f4f2ec",
      muted: cssColour("--muted"),
      faded: dark ? "rgba(232,230,225,0.38)" : "rgba(28,29,34,0.36)",
      accent: cssColour("--accent"),
      match: cssColour("--match"),
    };
    const { scrollTop } = this.node;
    const visible = this.panes.map((pane) => pane.node.clientWidth > 0); // read all, then draw: one layout, not several
    this.panes.forEach((pane, index) => {
      if (!visible[index] || !this.view.panes[index]) return;
      const context = sizeCanvas(pane.canvas, this.paneWidth, this.viewport);
      const view = { layout: this.layout, response, dark, inks, hover: this.hovered, selected: this.selected, ...this.view.panes[index] };
      paintLines(context, view, this.paneWidth, this.viewport, scrollTop);
      pane.text.node.style.transform = `translateY(${-scrollTop}px)`;
    });
  }

  tokenAt(event) {
    const pane = this.panes.find((candidate) => candidate.node.contains(event.target));
    if (!pane || !this.layout) return -1;
    const box = pane.node.getBoundingClientRect();
    return this.layout.at(event.clientX - box.left, event.clientY - box.top + this.node.scrollTop);
  }

  hover(token, event) {
    if (token !== this.hovered) {
      this.hovered = token;
      this.schedule();
    }
    this.events.hover(token, event);
  }

  // Outline a token; `reveal` scrolls to it.
  select(token, reveal) {
    this.selected = token ?? -1;
    if (reveal && token >= 0) this.reveal(token);
    this.schedule();
  }

  // Scroll to a token that is not well in sight.
  reveal(token) {
    if (!this.layout) return;
    const y = this.layout.lineOf(token) * LINE;
    const { scrollTop } = this.node;
    if (y < scrollTop + LINE || y > scrollTop + this.viewport - 2 * LINE) {
      this.node.scrollTop = Math.max(0, y - this.viewport / 3);
    }
  }
  // The middle of a token on the screen, as a pointer would be there; null where it is not laid out.
  pointOf(token) {
    const pane = this.panes.find((candidate) => candidate.node.clientWidth > 0);
    if (!pane || !this.layout) return null;
    const box = pane.node.getBoundingClientRect();
    const segment = this.layout.firstSegment[token];
    return {
      clientX: box.left + this.layout.x[segment] + this.layout.width[segment] / 2,
      clientY: box.top + this.layout.line[segment] * LINE - this.node.scrollTop + LINE,
    };
  }
}
