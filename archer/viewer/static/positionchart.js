// A metric over the positions of a response: bars of the tokens or of their means, with zoom, the window of visible
// tokens and the chosen token marked.

import { Brush, zoomed } from "./zoom.js";
import { boundOf } from "./colour.js";
import { cssColour, h, sizeCanvas } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 54;

export class PositionChart {
  constructor(pick, zoom) {
    this.canvas = h("canvas", { role: "img", class: "position" });
    this.caption = h("p", { class: "stripcaption", hidden: true });
    const box = h("div", { class: "stripbox" }, this.canvas);
    this.node = h("div", { class: "positionchart" }, box, this.caption);
    new Brush(this.canvas, box, (x) => this.positionAt(x), zoom);
    this.canvas.addEventListener("click", (event) => {
      const token = Math.floor(this.positionAt(event.clientX - this.canvas.getBoundingClientRect().left));
      pick(Math.min(Math.max(token, 0), this.response.span - 1));
    });
    new ResizeObserver(() => this.node.clientWidth !== this.painted && this.paint()).observe(this.node);
  }

  positionAt(x) {
    const [from, to] = this.range;
    return from + (x / this.canvas.clientWidth) * (to - from);
  }

  // `pooling`: what a bar over several tokens shows, their "mean" or the most extreme one ("extremes")
  show(response, values, scale, label, { zoom, pooling }) {
    Object.assign(this, { response, values, scale, pooling, range: zoomed(zoom, response.span) });
    this.canvas.setAttribute("aria-label", `${label} over the positions of the response`);
    this.paint();
  }

  mark(selected, visible) {
    if (this.selected === selected && this.visible?.join() === visible.join()) return;
    this.selected = selected;
    this.visible = visible;
    this.paint();
  }

  // [{value}] one a column; NaN where there is nothing.
  bars(columns) {
    const { values, range: [from, to], pooling } = this;
    const bars = new Float32Array(columns).fill(NaN);
    for (let index = 0; index < columns; index += 1) {
      const first = from + Math.floor((index * (to - from)) / columns);
      const end = Math.max(first + 1, from + Math.floor(((index + 1) * (to - from)) / columns));
      let best = NaN;
      let sum = 0;
      let count = 0;
      for (let token = first; token < end; token += 1) {
        const value = values[token];
        if (value !== value) continue;
        sum += value;
        count += 1;
        if (!(Math.abs(value) <= Math.abs(best))) best = value;
      }
      if (count) bars[index] = pooling === "mean" ? sum / count : best;
    }
    return bars;
  }

  paint() {
    const width = this.node.clientWidth;
    if (!this.response || !width) return;
    this.painted = width;
    const context = sizeCanvas(this.canvas, width, HEIGHT);
    context.clearRect(0, 0, width, HEIGHT);
    const { values, scale, range: [from, to] } = this;
    const span = to - from;
    const x = (position) => ((position - from) / span) * width;
    if (this.visible && (this.visible[0] > from || this.visible[1] < to - 1)) {
      context.fillStyle = cssColour("--window");
      context.fillRect(x(this.visible[0]), 0, Math.max(x(this.visible[1] + 1) - x(this.visible[0]), 2), HEIGHT);
    }
    const diverging = scale.ramp === "diverging";
    const zero = diverging ? HEIGHT / 2 : HEIGHT - 1;
    const reach = diverging ? HEIGHT / 2 - 2 : HEIGHT - 4;
    context.fillStyle = cssColour("--line");
    context.fillRect(0, zero, width, 1);
    const columns = Math.min(Math.floor(width), span);
    const several = span > columns;
    let { bound } = scale;
    if (values) {
      const bars = this.bars(columns);
      if (several && this.pooling === "mean") bound = Math.max(boundOf([bars]), scale.least);
      const column = width / columns;
      const colours = { positive: cssColour("--positive"), negative: cssColour("--negative"), bars: cssColour("--bars") };
      bars.forEach((value, index) => {
        if (value !== value || value === 0) return;
        const share = Math.min(Math.abs(value) / bound, 1) * reach;
        context.fillStyle = diverging ? (value > 0 ? colours.positive : colours.negative) : colours.bars;
        const up = !diverging || value > 0;
        context.fillRect(index * column, up ? zero - share : zero + 1, Math.max(column - (column > 3 ? 1 : 0), 1), share);
      });
    }
    if (this.selected !== null && this.selected >= from && this.selected < to) {
      context.fillStyle = cssColour("--accent");
      context.fillRect(x(this.selected + 0.5) - 1, 0, 2, HEIGHT);
    }
    this.caption.hidden = !several;
    if (several) this.caption.textContent = `${this.pooling === "mean" ? "Means" : "Extremes"} of ${number(span / columns, 2)} tokens, up to ${number(bound, 2)}.`;
  }
}
