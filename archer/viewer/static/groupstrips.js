// The responses of a group: a labelled row each, and one heat strip per pane.

import { button, fill, h } from "./dom.js";
import { count, number } from "./format.js";
import { rowHeight, Strip } from "./strip.js";
import { isDark } from "./colour.js";
import { verdictMark } from "./stepview.js";

export class GroupStrips {
  // `events`: {pick(row, token), hover(response, token, point)}
  constructor(panes, events) {
    this.events = events;
    this.labels = h("div", { class: "striplabels", role: "group", "aria-label": "Responses of the group" });
    this.panes = Array.from({ length: panes }, (_, index) => {
      const canvas = h("canvas", { role: "img" });
      const cursor = h("i", { class: "stripcursor", hidden: true });
      const node = h("div", { class: "strippane", "data-pane": index }, canvas, cursor);
      const pane = { canvas, cursor, node, strip: new Strip(canvas) };
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

  // `view`: {head, responses (in display order), metrics, scales, grain, keeps, current, token}
  show(view) {
    const same = this.view && this.view.responses === view.responses && this.view.head === view.head;
    this.view = view;
    this.responses = view.responses;
    this.height = rowHeight(view.responses.length);
    if (!same) this.showLabels();
    for (const label of this.labels.children) label.setAttribute("aria-pressed", Number(label.dataset.row) === view.current ? "true" : "false");
    this.paint();
  }

  showLabels() {
    const { head, responses } = this.view;
    fill(
      this.labels,
      responses.map((response) => {
        const { row } = response;
        const verdict = head.verdict(row);
        const label = button(
          [verdictMark(verdict), h("b", {}, String(row)), h("span", {}, head.fact(row, "reward") === null ? "" : `r ${number(head.fact(row, "reward"), 2)}`), h("span", { class: "len" }, count(head.fact(row, "length")))],
          () => this.events.pick(row, null),
          {
            class: "striplabel",
            "data-row": row,
            "aria-label": `Response ${row}, ${verdict ?? "no verdict"}, reward ${number(head.fact(row, "reward"))}, ${head.fact(row, "length")} tokens`,
          },
        );
        label.style.height = `${this.height}px`;
        return label;
      }),
    );
    this.labels.classList.toggle("tiny", this.height < 18);
  }

  // Nothing is drawn again that would look the same.
  paint() {
    const { metrics, scales, grain, keeps, head } = this.view;
    const widths = this.panes.map((pane) => pane.node.clientWidth); // read all, then draw: one layout, not several
    this.panes.forEach((pane, index) => {
      const width = widths[index];
      if (!width) return;
      const key = [metrics[index], grain, Math.floor(width), this.height].join("/");
      const pooled = pane.key === key && pane.responses === this.responses && pane.keeps === keeps;
      if (!pooled) {
        pane.strip.show(this.responses, metrics[index], grain, keeps, width, this.height);
        Object.assign(pane, { key, responses: this.responses, keeps });
      }
      if (!pooled || pane.painted !== scales[index].key) pane.strip.paint(scales[index], isDark());
      pane.painted = scales[index].key;
      pane.canvas.setAttribute("aria-label", `${metrics[index]} of ${this.responses.length} responses of step ${head.step}, one row each`);
      this.showCursor(pane);
    });
  }

  showCursor(pane) {
    const { current, token } = this.view;
    const index = this.responses.findIndex((response) => response.row === current);
    pane.cursor.hidden = index < 0 || token === null || token === undefined;
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
