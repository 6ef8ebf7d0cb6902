// Real text over the painted one, for selecting, copying and screen readers: only the lines around the visible ones.

import { h } from "./dom.js";
import { INSET, LINE } from "./layout.js";

const MAX_TOKENS = 2000;
const MARGIN = 6;

export class TextWindow {
  constructor(label, hidden) {
    this.node = h("div", { class: "textwindow", "aria-hidden": hidden ? "true" : null, role: hidden ? null : "document", "aria-label": hidden ? null : label });
    this.range = [0, -1];
    this.node.addEventListener("copy", (event) => this.copy(event));
  }

  show(layout, response) {
    this.layout = layout;
    this.response = response;
    this.range = [0, -1];
    this.node.replaceChildren();
    this.node.style.height = `${layout.height}px`;
  }

  // Fill the lines around what is visible; nothing happens while they are all there.
  update(scrollTop, height) {
    const { layout } = this;
    if (!layout) return;
    const top = Math.max(0, Math.floor(scrollTop / LINE));
    const bottom = Math.min(layout.lines - 1, Math.ceil((scrollTop + height) / LINE));
    if (top >= this.range[0] && bottom <= this.range[1]) return;
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && this.node.contains(selection.anchorNode)) return; // keep what is being selected
    const first = Math.max(0, top - MARGIN);
    let last = Math.min(layout.lines - 1, bottom + MARGIN);
    const start = layout.lineStart[first];
    while (last > top && layout.segmentsOf(last)[1] - start > MAX_TOKENS) last -= 1;
    const lines = [];
    for (let line = first; line <= last; line += 1) {
      const [from, to] = layout.segmentsOf(line);
      const node = h("div", { class: "textline" });
      node.style.top = `${line * LINE}px`;
      node.style.left = `${INSET}px`;
      let flow = INSET; // where the span would stand by itself
      for (let segment = from; segment < Math.min(to, from + MAX_TOKENS); segment += 1) {
        const span = h("span", { "data-token": layout.token[segment], dir: "ltr" }, layout.text[segment]);
        span.style.width = `${layout.width[segment]}px`;
        if (layout.rtl[segment]) {
          span.dir = "rtl";
          span.style.left = `${layout.x[segment] - flow}px`;
        }
        flow += layout.width[segment];
        node.append(span);
      }
      lines.push(node);
    }
    this.node.replaceChildren(...lines);
    this.range = [first, last];
  }

  // What lands on the clipboard is the response's own text, without the signs for blanks and line ends.
  copy(event) {
    const selection = document.getSelection();
    if (!selection || selection.isCollapsed || !this.response) return;
    const tokens = Array.from(this.node.querySelectorAll("span"))
      .filter((span) => selection.containsNode(span, true))
      .map((span) => Number(span.dataset.token));
    if (!tokens.length) return;
    const { starts, text, span } = this.response;
    const last = tokens[tokens.length - 1];
    const end = last + 1 < span ? starts[last + 1] : text.length;
    event.clipboardData.setData("text/plain", text.slice(starts[tokens[0]], end));
    event.preventDefault();
  }
}
