// One metric of several runs over steps: dashes tell runs apart, a list at the pointer gives their values.

import { fill, h } from "./dom.js";
import { count, number, visible } from "./format.js";
import { StepChart } from "./chart.js";

const LISTED = 10;

export class RunChart extends StepChart {
  constructor(title, height, events) {
    super(visible(title), height, events);
    this.tip = h("div", { class: "charttip nopicture", hidden: true });
    this.node.append(this.tip);
    this.canvas.addEventListener("pointerenter", () => (this.pointed = true));
    this.canvas.addEventListener("pointerleave", () => {
      this.pointed = false;
      this.tip.hidden = true;
    });
  }

  // `lines`: [{name, steps, values, colour, dash}], the current run first
  showRuns(lines, marks, format = number, log = false) {
    this.told = lines;
    this.tell = format;
    const drawn = log ? lines.map((line) => ({ ...line, values: line.values.map((value) => (value > 0 ? Math.log10(value) : null)) })) : lines;
    this.show(drawn, null, marks, log ? (value) => format(value === null ? null : 10 ** value) : format, log);
    this.canvas.dataset.painted = String(lines.length);
  }

  trace(context, line, x, y) {
    context.setLineDash(line.dash ?? []);
    super.trace(context, line, x, y);
    context.setLineDash([]);
  }

  hover(step) {
    super.hover(step);
    this.showTip(step);
  }

  showTip(step) {
    this.tip.hidden = !this.pointed || step === null || !this.told || this.told.length < 2;
    if (this.tip.hidden) return;
    const found = this.told.map((line) => ({ line, place: nearest(line.steps, step) })).filter(({ line, place }) => place >= 0 && line.values[place] !== null);
    found.sort((a, b) => b.line.values[b.place] - a.line.values[a.place]);
    fill(
      this.tip,
      h("b", {}, `step ${step}`),
      found.slice(0, LISTED).map(({ line, place }) => h("span", {}, lineSwatch(line.colour, line.dash), `${this.tell(line.values[place])} · ${visible(line.name)}${line.steps[place] === step ? "" : `, step ${count(line.steps[place])}`}`)),
      found.length > LISTED && h("span", {}, `and ${found.length - LISTED} more`),
    );
  }
}

// A short stroke as the chart draws it.
export function lineSwatch(colour, dash = []) {
  const node = h("i", { class: "lineswatch", "aria-hidden": "true" });
  node.style.borderTop = `3px ${dash.length === 0 ? "solid" : dash[0] <= 2 ? "dotted" : "dashed"} ${colour}`;
  return node;
}

// The place of the last step up to `step`; the first one where all come after it.
function nearest(steps, step) {
  let low = 0;
  let high = steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle - 1;
  }
  return steps.length ? low : -1;
}
