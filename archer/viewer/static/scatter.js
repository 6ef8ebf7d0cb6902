// Points over two numbers on a canvas. Dragging draws a rectangle, a click takes the nearest point.

import { cssColour, fill, h, sizeCanvas } from "./dom.js";
import { number } from "./format.js";
import { ticksWithin } from "./chart.js";

const EDGE = { left: 58, right: 10, top: 10, bottom: 30 };
const REACH = 12; // pixels between a click and the point it means
const TAIL = 0.002; // share of the values at each end that may lie beyond the axes
const DRAG = 4; // pixels that make a rectangle out of a click

// Where nearly all values are; a few far ones would press all others into a line. They are drawn at the edge.
function bounds(values, share) {
  const sorted = Float64Array.from(values).sort();
  if (!sorted.length) return { range: [0, 1], beyond: 0 };
  const [first, last] = [sorted[0], sorted[sorted.length - 1]];
  const cut = Math.floor(share * sorted.length);
  let [low, high] = [sorted[cut], sorted[sorted.length - 1 - cut]];
  const core = high - low;
  if (first > low - core) low = first; // near enough to be shown in place
  if (last < high + core) high = last;
  const room = (high - low || Math.abs(high) || 1) * 0.03;
  return { range: [low - room, high + room], beyond: values.reduce((sum, value) => sum + (value < low || value > high ? 1 : 0), 0) };
}

function dot(colour) {
  const node = h("i", { class: "dot", "aria-hidden": "true" });
  node.style.background = colour;
  return node;
}

// `events`: {pick(index), brush({x: [low, high], y: [low, high]} | null), hover(index | null)}
export class Scatter {
  constructor(height, events) {
    Object.assign(this, { height, events, rectangle: null });
    this.canvas = h("canvas", { role: "img", class: "scatter" });
    this.readout = h("span", { class: "readout" });
    this.key = h("p", { class: "scatterkey" });
    this.node = h("div", { class: "scatterbox" }, this.key, this.canvas, this.readout);
    this.canvas.addEventListener("pointerdown", (event) => this.down(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.up(event));
    this.canvas.addEventListener("pointerleave", () => this.hover(null));
    new ResizeObserver(() => this.node.clientWidth !== this.painted && this.paint()).observe(this.node);
  }

  // Returns how many points lie beyond the axes. `plot`: {x, y, colours: [css], names: [what each colour is], kinds: Uint8Array into colours, rings?: Uint8Array, labels: [x, y], say(index)}
  show(plot) {
    this.plot = plot;
    this.rectangle = null;
    const [across, up] = [bounds(plot.x, TAIL), bounds(plot.y, TAIL)];
    this.range = { x: across.range, y: up.range };
    this.canvas.setAttribute("aria-label", `${plot.labels[1]} over ${plot.labels[0]}, ${plot.x.length} points`);
    const present = new Set(plot.kinds);
    fill(this.key, plot.names.map((name, kind) => present.has(kind) && h("span", {}, dot(plot.colours[kind]), name)), plot.rings?.some(Boolean) && h("span", {}, h("i", { class: "ring" }), "truncated"));
    this.paint();
    return across.beyond + up.beyond;
  }

  toScreen(far, high) {
    const { range } = this;
    const x = Math.min(Math.max(far, range.x[0]), range.x[1]);
    const y = Math.min(Math.max(high, range.y[0]), range.y[1]);
    return [
      EDGE.left + ((x - range.x[0]) / (range.x[1] - range.x[0])) * (this.painted - EDGE.left - EDGE.right),
      this.height - EDGE.bottom - ((y - range.y[0]) / (range.y[1] - range.y[0])) * (this.height - EDGE.top - EDGE.bottom),
    ];
  }

  toValues([left, top]) {
    const { range } = this;
    return [
      range.x[0] + ((left - EDGE.left) / (this.painted - EDGE.left - EDGE.right)) * (range.x[1] - range.x[0]),
      range.y[0] + ((this.height - EDGE.bottom - top) / (this.height - EDGE.top - EDGE.bottom)) * (range.y[1] - range.y[0]),
    ];
  }

  paint() {
    const width = this.node.clientWidth;
    if (!this.plot || !width) return;
    this.painted = width;
    const context = sizeCanvas(this.canvas, width, this.height);
    context.clearRect(0, 0, width, this.height);
    this.axes(context, width);
    const { x, y, colours, kinds, rings } = this.plot;
    const size = x.length > 4000 ? 2 : x.length > 800 ? 3 : 6;
    context.globalAlpha = x.length > 800 ? 0.55 : 0.8;
    // In the order of the points: one kind painted after the other would hide it.
    for (let index = 0; index < x.length; index += 1) {
      context.fillStyle = colours[kinds[index]];
      const [left, top] = this.toScreen(x[index], y[index]);
      context.fillRect(left - size / 2, top - size / 2, size, size);
    }
    context.globalAlpha = 1;
    context.strokeStyle = cssColour("--ink");
    for (let index = 0; rings && index < x.length; index += 1) {
      if (!rings[index]) continue;
      const [left, top] = this.toScreen(x[index], y[index]);
      context.strokeRect(left - size / 2 - 2, top - size / 2 - 2, size + 4, size + 4);
    }
    if (this.rectangle) this.frame(context);
  }

  axes(context, width) {
    const { labels } = this.plot;
    const bottom = this.height - EDGE.bottom;
    context.fillStyle = cssColour("--line");
    context.fillRect(EDGE.left, bottom, width - EDGE.left - EDGE.right, 1);
    context.fillRect(EDGE.left, EDGE.top, 1, bottom - EDGE.top);
    if (this.range.y[0] < 0 && this.range.y[1] > 0) context.fillRect(EDGE.left, this.toScreen(0, 0)[1], width - EDGE.left - EDGE.right, 1);
    context.font = `11px ${cssColour("--sans")}`;
    context.fillStyle = cssColour("--muted");
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const value of ticksWithin(this.range.x, Math.max(2, Math.floor(width / 140)))) context.fillText(number(value, 2), this.toScreen(value, 0)[0], bottom + 4);
    context.fillText(labels[0], EDGE.left + (width - EDGE.left - EDGE.right) / 2, bottom + 17);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticksWithin(this.range.y, 6)) context.fillText(number(value, 2), EDGE.left - 6, this.toScreen(0, value)[1]);
    context.textAlign = "center";
    context.save();
    context.translate(12, (EDGE.top + bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "middle";
    context.fillText(labels[1], 0, 0);
    context.restore();
    context.textAlign = "left";
  }

  frame(context) {
    const [[left, top], [right, bottom]] = this.rectangle;
    context.fillStyle = cssColour("--window");
    context.fillRect(left, top, right - left, bottom - top);
    context.strokeStyle = cssColour("--accent");
    context.strokeRect(left, top, right - left, bottom - top);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  down(event) {
    if (event.button !== 0 || !this.plot) return;
    this.start = this.place(event);
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (!this.plot) return;
    const at = this.place(event);
    if (!this.start) {
      this.hover(this.nearest(at));
      return;
    }
    if (Math.hypot(at[0] - this.start[0], at[1] - this.start[1]) < DRAG) return;
    this.rectangle = [this.start, at];
    this.paint();
  }

  up(event) {
    if (!this.start) return;
    const at = this.place(event);
    const dragged = Math.hypot(at[0] - this.start[0], at[1] - this.start[1]) >= DRAG;
    const corners = [this.toValues(this.start), this.toValues(at)];
    this.start = null;
    if (dragged && this.events.brush) {
      this.events.brush({ x: this.ends(corners, 0, "x"), y: this.ends(corners, 1, "y") });
      return;
    }
    this.rectangle = null;
    this.paint();
    const index = this.nearest(at);
    if (index !== null) this.events.pick(index);
    else this.events.brush?.(null);
  }

  // A side at the edge of the plot is open: what lies beyond is drawn there.
  ends(corners, axis, name) {
    const [low, high] = corners.map((corner) => corner[axis]).sort((a, b) => a - b);
    const [first, last] = this.range[name];
    const near = (last - first) * 0.01;
    return [low <= first + near ? -Infinity : low, high >= last - near ? Infinity : high];
  }

  hover(index) {
    this.readout.textContent = index === null ? "" : this.plot.say(index);
    this.canvas.style.cursor = index === null ? "crosshair" : "pointer";
  }

  nearest([left, top]) {
    let best = null;
    let closest = REACH;
    const { x, y } = this.plot;
    for (let index = 0; index < x.length; index += 1) {
      const [px, py] = this.toScreen(x[index], y[index]);
      const away = Math.hypot(px - left, py - top);
      if (away < closest) {
        closest = away;
        best = index;
      }
    }
    return best;
  }
}
