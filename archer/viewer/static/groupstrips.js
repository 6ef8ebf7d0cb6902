// The responses of a group: a labelled row each, and one heat strip per pane.

import { button, fill, h } from "./dom.js";
import { number } from "./format.js";
import { Brush } from "./zoom.js";
import { boundOf, isDark } from "./colour.js";
import { rowHeight, Strip } from "./strip.js";
import { rowLabel } from "./rowlabel.js";
import { sharedScale } from "./scales.js";

export class GroupStrips {
  // `events`: {pick(row, token), hover(response, token, point), zoom(text)}; without `zoom` there is none
  constructor(panes, events) {
    this.events = events;
    this.labels = h("div", { class: "striplabels", role: "group", "aria-label": "Responses of the group" });
    this.panes = Array.from({ length: panes }, (_, index) => {
      const canvas = h("canvas", { role: "img" });
      const cursor = h("i", { class: "stripcursor", hidden: true });
      const caption = h("p", { class: "stripcaption", hidden: true });
      const box = h("div", { class: "stripbox" }, canvas, cursor);
      const node = h("div", { class: "strippane", "data-pane": index }, box, caption);
      const pane = { canvas, cursor, caption, node, strip: new Strip(canvas) };
      if (events.zoom) new Brush(canvas, box, (x) => pane.strip.positionAt(x), events.zoom);
      canvas.addEventListener("pointermove", (event) => this.hover(pane, event));
      canvas.addEventListener("pointerleave", () => events.hover(null, -1, null));
      canvas.addEventListener("click", (event) => {
        const found = this.at(pane, event);
        if (found) events.pick(this.responses[found.index].row, found.token >= 0 ? found.token : null);
      });
      return pane;
    });
    this.node = h("div", { class: "strips" }, this.labels, this.panes.map((pane) => pane.node));
    new ResizeObserver(() => this.resized()).observe(this.node);
  }

  // `view`: {head, responses (in display order), metrics, scales, grain, keeps, current, token, beside, zoom, pooling}
  show(view) {
    const same = this.view && this.view.responses === view.responses && this.view.head === view.head;
    this.view = view;
    this.responses = view.responses;
    this.height = rowHeight(view.responses.length);
    if (!same) this.showLabels();
    for (const label of this.labels.children) label.setAttribute("aria-pressed", [view.current, view.beside].includes(Number(label.dataset.row)) ? "true" : "false");
    this.paint();
  }

  showLabels() {
    const { head, responses } = this.view;
    fill(
      this.labels,
      responses.map(({ row }) => {
        const { content, name, title } = rowLabel(head, row);
        const label = button(content, () => this.events.pick(row, null), { class: "striplabel", "data-row": row, "aria-label": name, title });
        label.style.height = `${this.height}px`;
        return label;
      }),
    );
    this.labels.classList.toggle("tiny", this.height < 18);
  }

  // Nothing is drawn again that would look the same. A pane without a metric is not on the page.
  paint() {
    const { metrics, scales, grain, keeps, head } = this.view;
    const widths = this.panes.map((pane) => pane.node.clientWidth); // read all, then draw: one layout, not several
    this.panes.forEach((pane, index) => {
      const width = widths[index];
      if (!width || !metrics[index]) return;
      const { zoom = null, pooling = "mean" } = this.view;
      const key = [metrics[index], grain, Math.floor(width), this.height, zoom, pooling].join("/");
      const pooled = pane.key === key && pane.responses === this.responses && pane.keeps === keeps;
      if (!pooled) {
        pane.strip.show(this.responses, { metric: metrics[index], grain, keeps, width, height: this.height, zoom, pooling });
        Object.assign(pane, { key, responses: this.responses, keeps });
      }
      const scale = this.scaleOf(pane, scales[index], pooling, !pooled);
      if (!pooled || pane.painted !== scale.key) pane.strip.paint(scale, isDark());
      pane.painted = scale.key;
      pane.canvas.setAttribute("aria-label", `${metrics[index]} of ${this.responses.length} responses of step ${head.step}, one row each`);
      this.showCursor(pane);
    });
  }

  // Means of many tokens are smaller than the tokens: their colours are bound by themselves, and it says so.
  scaleOf(pane, scale, pooling, again) {
    const { strip, caption } = pane;
    const several = strip.perPixel >= 1.05; // less reads as one
    if (again) pane.bound = several && pooling === "mean" ? Math.max(boundOf([strip.value]), scale.least) : null;
    caption.hidden = !several && !this.view.zoom;
    const shown = pane.bound === null ? scale : sharedScale(scale.ramp, pane.bound, this.view.gamma ?? 1, scale.least);
    const each = `${number(strip.perPixel, 2)} tokens`;
    const what = !several ? "" : pooling === "mean" ? `A pixel is the mean of ${each}; full colour at ${scale.ramp === "diverging" ? "±" : ""}${number(pane.bound, 2)}.` : `A pixel is the most extreme of ${each}.`;
    caption.textContent = `${what}${this.view.zoom ? ` Tokens ${strip.range[0]} to ${strip.range[1] - 1}; double click for all.` : this.events.zoom && several ? " Drag to zoom." : ""}`.trim();
    return shown;
  }

  showCursor(pane) {
    const { current, token } = this.view;
    const index = this.responses.findIndex((response) => response.row === current);
    const outside = token < pane.strip.range[0] || token >= pane.strip.range[1];
    pane.cursor.hidden = index < 0 || token === null || token === undefined || outside;
    if (pane.cursor.hidden) return;
    pane.cursor.style.height = `${this.height}px`;
    pane.cursor.style.transform = `translate(${pane.strip.xOf(token) - 1}px, ${index * this.height}px)`;
  }

  mark(token) {
    this.view.token = token;
    for (const pane of this.panes) if (pane.strip.responses) this.showCursor(pane);
  }

  resized() {
    if (this.view) this.paint();
  }

  at(pane, event) {
    const box = pane.canvas.getBoundingClientRect();
    return pane.strip.at(event.clientX - box.left, event.clientY - box.top);
  }

  hover(pane, event) {
    const found = this.at(pane, event);
    if (!found || found.token < 0) this.events.hover(null, -1, null);
    else this.events.hover(this.responses[found.index], found.token, event);
  }
}
