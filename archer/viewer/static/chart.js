// Line charts over steps and bar charts over token positions.

import { cssColour, h, sizeCanvas } from "./dom.js";
import { count, number, percent } from "./format.js";

function extremes(columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value === null || value === undefined) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return [low, high];
}

// What an axis of values spans: never nothing; a value that never changes is shown against zero.
function extent(columns) {
  const [low, high] = extremes(columns);
  if (low > high || (low === 0 && high === 0)) return [0, 1];
  return low === high ? [Math.min(low, 0), Math.max(high, 0)] : [low, high];
}

// What the axis of steps spans; a single one stands in the middle.
function span(columns) {
  const [first, last] = extremes(columns);
  if (first > last) return [0, 1];
  return first === last ? [first - 0.5, last + 0.5] : [first, last];
}

// Round numbers over a range, about as many as asked for; the first and the last enclose it.
export function roundTicks([low, high], parts = 4) {
  const rough = (high - low) / parts;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((size) => size >= rough * (1 - 1e-9));
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
}

// The same of logarithms: 1, 2 and 5 of each power of ten, over more than two of them the powers alone.
export function logTicks([low, high]) {
  const factors = high - low > 2 ? [1] : [1, 2, 5];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  const ticks = [];
  for (let power = Math.floor(low / every) * every; power <= high + every; power += every) for (const factor of factors) ticks.push(power + Math.log10(factor));
  const [first, last] = [ticks.findLast((tick) => tick <= low + 1e-9), ticks.find((tick) => tick >= high - 1e-9)];
  return ticks.filter((tick) => tick >= first && tick <= last);
}

// Those of them that lie within the range.
export function ticksWithin([low, high], parts) {
  return roundTicks([low, high], parts).filter((value) => value >= low && value <= high);
}

// A tick to all its digits: rounded ones would stand at uneven distances.
export function tickText(value, format) {
  if (format === percent) return `${number(100 * value, 6)} %`;
  return format === number ? number(value, 6) : format(value);
}

const STEP_LABEL = 70; // pixels for the number of a step below the plot

// One series of one or more runs over steps. `events`: {pick(step), hover(step | null)}
export class StepChart {
  constructor(title, height, events) {
    this.height = height;
    this.events = events;
    this.canvas = h("canvas", { role: "img", "aria-label": title });
    this.readout = h("span", { class: "readout" });
    this.node = h("figure", { class: "chart" }, h("figcaption", {}, h("span", {}, title), this.readout), this.canvas);
    this.title = title;
    this.canvas.addEventListener("pointermove", (event) => events.hover(this.stepAt(event)));
    this.canvas.addEventListener("pointerleave", () => events.hover(null));
    this.canvas.addEventListener("click", (event) => {
      const step = this.stepAt(event);
      if (step !== null) events.pick(step);
    });
    new ResizeObserver(() => this.node.clientWidth !== this.painted && this.paint()).observe(this.node);
  }

  // `lines`: [{steps, values, colour}], the first is the current run; `marks`: damaged steps
  // `log`: the values are logarithms to base 10
  show(lines, current, marks, format = number, log = false) {
    Object.assign(this, { lines, current, marks, format });
    this.domain = span(lines.map((line) => line.steps));
    const values = lines.map((line) => line.values);
    const [low, high] = extent(values);
    const [least, most] = extremes(values);
    const told = least > most ? "no values" : `from ${format(least)} to ${format(most)}`;
    this.canvas.setAttribute("aria-label", `${this.title}, ${lines[0].steps.length} steps, ${told}`);
    this.range = !log && low > 0 && low < 0.5 * high ? [0, high] : [low, high];
    this.ticks = this.height > 90 ? (log ? logTicks : roundTicks)(this.range) : [];
    if (this.ticks.length) this.range = [this.ticks[0], this.ticks[this.ticks.length - 1]];
    this.hovered = null;
    this.paint();
  }

  stepAt(event) {
    const steps = this.lines?.[0]?.steps;
    if (!steps?.length) return null;
    const box = this.canvas.getBoundingClientRect();
    const wanted = this.domain[0] + ((event.clientX - box.left - this.inset) / (box.width - this.inset - 4)) * (this.domain[1] - this.domain[0]);
    let low = 0;
    let high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= wanted) low = middle;
      else high = middle;
    }
    return Math.abs(steps[low] - wanted) <= Math.abs(steps[high] - wanted) ? steps[low] : steps[high];
  }

  hover(step) {
    if (this.hovered === step) return;
    this.hovered = step;
    this.paint();
  }

  paint() {
    if (!this.lines || !this.node.clientWidth) return;
    const width = this.node.clientWidth;
    this.painted = width;
    const { height } = this;
    const context = sizeCanvas(this.canvas, width, height);
    context.clearRect(0, 0, width, height);
    const { ticks } = this;
    context.font = `11px ${cssColour("--sans")}`;
    this.inset = Math.max(4, ...ticks.map((value) => Math.ceil(context.measureText(tickText(value, this.format)).width) + 10));
    const x = (step) => this.inset + ((step - this.domain[0]) / (this.domain[1] - this.domain[0])) * (width - this.inset - 4);
    const bottom = height - (ticks.length ? 22 : 7); // below are the numbers of the steps
    const y = (value) => bottom - ((value - this.range[0]) / (this.range[1] - this.range[0])) * (bottom - 7);
    if (ticks.length) {
      this.grid(context, ticks, y, width);
      this.stepNumbers(context, x, width);
    }
    else {
      context.fillStyle = cssColour("--line");
      context.fillRect(0, height - 1, width, 1);
    }
    for (const line of [...this.lines].reverse()) this.trace(context, line, x, y);
    context.fillStyle = cssColour("--rejected");
    for (const step of this.marks) context.fillRect(x(step) - 1.5, bottom, 3, 7);
    this.marker(context, this.current, x, ticks.length ? bottom : height, cssColour("--accent"), 2);
    this.marker(context, this.hovered, x, ticks.length ? bottom : height, cssColour("--muted"), 1);
    const shown = this.hovered ?? this.current;
    const { steps, values } = this.lines[0];
    const place = shown === null || shown === undefined ? steps.length - 1 : steps.indexOf(shown);
    this.readout.textContent = place >= 0 ? `${this.format(values[place])} · step ${steps[place]}` : "";
  }

  // Numbers stand in a column of their own, right-aligned, a hairline from each through the plot.
  grid(context, ticks, y, width) {
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of ticks) {
      const at = Math.round(y(value));
      context.fillStyle = cssColour("--line");
      context.fillRect(this.inset, at, width - this.inset, 1);
      context.fillStyle = cssColour("--muted");
      context.fillText(tickText(value, this.format), this.inset - 8, at + 0.5);
    }
    context.textAlign = "left";
  }

  // Round steps below the plot, none of them cut off at its ends.
  stepNumbers(context, x, width) {
    const parts = Math.max(1, Math.floor((width - this.inset) / STEP_LABEL));
    context.textBaseline = "bottom";
    context.textAlign = "center";
    context.fillStyle = cssColour("--muted");
    for (const step of ticksWithin(this.domain, parts)) {
      if (!Number.isInteger(step)) continue;
      const half = context.measureText(count(step)).width / 2;
      context.fillText(count(step), Math.min(Math.max(x(step), half), width - half), this.height);
    }
    context.textAlign = "left";
  }

  trace(context, line, x, y) {
    context.strokeStyle = line.colour;
    context.lineWidth = line === this.lines[0] ? 1.75 : 1.25;
    context.lineJoin = "round";
    context.beginPath();
    let open = false;
    line.steps.forEach((step, index) => {
      const value = line.values[index];
      if (value === null || value === undefined) {
        open = false;
      } else if (open) {
        context.lineTo(x(step), y(value));
      } else {
        context.moveTo(x(step), y(value));
        context.lineTo(x(step) + 0.01, y(value));
        open = true;
      }
    });
    context.stroke();
    if (line.steps.length <= 40) {
      context.fillStyle = line.colour;
      line.steps.forEach((step, index) => {
        const value = line.values[index];
        if (value === null || value === undefined) return;
        context.beginPath();
        context.arc(x(step), y(value), 2.4, 0, 2 * Math.PI);
        context.fill();
      });
    }
  }

  marker(context, step, x, height, colour, width) {
    if (step === null || step === undefined) return;
    context.fillStyle = colour;
    context.fillRect(x(step) - width / 2, 0, width, height);
  }
}
