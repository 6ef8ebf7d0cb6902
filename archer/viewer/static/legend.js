// The colour legend of a pane: the ramp with its numbers, and what is drawn where there is no value.

import { fill, h, sizeCanvas } from "./dom.js";
import { number } from "./format.js";
import { specialColours, STEPS } from "./colour.js";

export class Legend {
  constructor() {
    this.ramp = h("canvas", { role: "img" });
    this.ticks = h("div", { class: "ticks" });
    this.missing = h("canvas", { "aria-hidden": "true" });
    this.masked = h("canvas", { "aria-hidden": "true" });
    this.failed = h("canvas", { "aria-hidden": "true" });
    this.failedBox = swatch(this.failed, "failed", "it is NaN or infinite: the computation failed for this token");
    this.meaning = h("p", { class: "meaning" });
    this.node = h(
      "div",
      { class: "legend" },
      h(
        "div",
        { class: "legendrow" },
        h("div", { class: "ramp" }, this.ramp, this.ticks),
        h(
          "div",
          { class: "swatches" },
          swatch(this.missing, "no value", "it was not computed for this token"),
          swatch(this.masked, "masked", "the token is outside the loss mask"),
          this.failedBox,
        ),
      ),
      this.meaning,
    );
  }

  // `meaning`: [sentence, unit] or nothing; `failures`: how many values failed in what is shown
  show(label, scale, dark, meaning = null, failures = 0) {
    this.failedBox.hidden = !failures;
    if (failures) this.failedBox.lastChild.previousSibling.textContent = `${failures.toLocaleString("en-US")} failed`;
    if (this.shown === scale && this.label === label && this.said === meaning?.join()) return; // a scale is shared while it stays the same
    Object.assign(this, { shown: scale, label, said: meaning?.join() });
    fill(this.meaning, meaning && [meaning[0], meaning[1] && h("span", { class: "unit" }, ` ${meaning[1]}`)]);
    const width = 168;
    const context = sizeCanvas(this.ramp, width, 10);
    for (let x = 0; x < width; x += 1) {
      context.fillStyle = scale.css[Math.round((x / (width - 1)) * STEPS)];
      context.fillRect(x, 0, 1, 10);
    }
    const high = number(scale.bound, 2);
    const ticks = scale.ramp === "diverging" ? [`≤ −${high}`, "0", `≥ ${high}`] : ["0", `≥ ${high}`];
    fill(this.ticks, ticks.map((tick) => h("span", {}, tick)));
    this.ramp.setAttribute("aria-label", `${label}: colours from ${ticks[0]} to ${ticks[ticks.length - 1]}`);
    const special = specialColours(dark);
    paintMissing(this.missing, special);
    for (const [canvas, colour] of [[this.masked, special.masked], [this.failed, special.failed]]) {
      const flat = sizeCanvas(canvas, 16, 10);
      flat.fillStyle = `rgb(${colour.join(",")})`;
      flat.fillRect(0, 0, 16, 10);
    }
  }
}

// The explanation is a tooltip for the eye and text for a screen reader.
function swatch(canvas, name, meaning) {
  return h("span", { class: "swatch", title: meaning }, canvas, name, h("span", { class: "unseen" }, `: ${meaning}`));
}

function paintMissing(canvas, special) {
  const context = sizeCanvas(canvas, 16, 10);
  context.fillStyle = `rgb(${special.missing.join(",")})`;
  context.fillRect(0, 0, 16, 10);
  context.strokeStyle = `rgb(${special.missingLine.join(",")})`;
  context.beginPath();
  for (let x = -10; x < 16; x += 5) {
    context.moveTo(x, 10);
    context.lineTo(x + 10, 0);
  }
  context.stroke();
}
