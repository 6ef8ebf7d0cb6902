// All responses of a group as rows of one heat strip. A pixel shows the mean of the tokens it covers, or the most extreme.

import { cssColour, sizeCanvas } from "./dom.js";
import { pixel, specialColours } from "./colour.js";
import { shades } from "./grain.js";
import { zoomed } from "./zoom.js";

const BEYOND = 0;
const FAILED = 1; // shown wherever there is one: a failure must not drown in its neighbours
const VALUE = 2;
const MISSING = 3;
const MASKED = 4;
const FADED = 0.14;

export function rowHeight(rows) {
  if (rows <= 8) return 24;
  return rows <= 40 ? 18 : 10;
}

// The tokens of pixel column i are [edges[i], edges[i + 1]) of what is shown of the longest response, at least one.
function columnEdges(columns, [from, to]) {
  const edges = new Int32Array(columns + 1);
  for (let column = 0; column <= columns; column += 1) edges[column] = from + Math.floor((column * (to - from)) / columns);
  return edges;
}

export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.buffer = document.createElement("canvas");
  }

  // `keeps[i]` fades the tokens of response i that do not pass the filters; null fades nothing. `zoom`: the tokens
  // shown, [from, to) or null; `pooling`: what a pixel over several tokens shows, their mean or the most extreme.
  show(responses, { metric, grain, keeps, width, height, zoom, pooling }) {
    this.responses = responses;
    this.metric = metric;
    this.width = Math.max(40, Math.floor(width));
    this.height = height;
    let longest = 1;
    for (const response of responses) longest = Math.max(longest, response.span);
    this.range = zoomed(zoom, longest);
    this.pool(responses.map((response) => shades(response, metric, grain)), keeps, pooling === "extremes");
  }

  // Tokens under one pixel.
  get perPixel() {
    return (this.range[1] - this.range[0]) / this.width;
  }

  pool(shaded, keeps, extremes) {
    const { responses, width: columns } = this;
    const size = responses.length * columns;
    this.kind = new Uint8Array(size);
    this.value = new Float32Array(size);
    this.token = new Int32Array(size);
    this.kept = new Uint8Array(size);
    const edges = columnEdges(columns, this.range);
    responses.forEach((response, row) => {
      const values = shaded[row];
      const keep = keeps ? keeps[row] : null;
      const failed = response.failed[this.metric];
      for (let column = 0; column < columns; column += 1) {
        const first = edges[column];
        const end = Math.min(Math.max(edges[column + 1], first + 1), response.span);
        const place = row * columns + column;
        let best = -1;
        let kind = BEYOND;
        let kept = 0;
        let sum = 0;
        let count = 0;
        for (let token = first; token < end; token += 1) {
          const passes = !keep || keep[token] ? 1 : 0;
          const found = !response.mask[token] ? MASKED : failed && failed[token] ? FAILED : values && values[token] === values[token] ? VALUE : MISSING;
          const rises = passes > kept || (passes === kept && found < kind);
          if (kind === BEYOND || rises || (passes === kept && found === VALUE && kind === VALUE && Math.abs(values[token]) > Math.abs(values[best]))) {
            if (kind === BEYOND || rises) sum = count = 0; // a mean is of tokens of one kind
            best = token;
            kind = found;
            kept = passes;
          }
          if (found === VALUE && kind === VALUE && passes === kept) {
            sum += values[token];
            count += 1;
          }
        }
        this.kind[place] = kind;
        this.token[place] = best;
        this.kept[place] = kept;
        this.value[place] = kind !== VALUE ? 0 : extremes ? values[best] : sum / count;
      }
    });
  }

  paint(scale, dark) {
    const { responses, width: columns, height } = this;
    const rows = responses.length;
    const context = sizeCanvas(this.canvas, columns, rows * height);
    context.clearRect(0, 0, columns, rows * height);
    if (!rows) return;
    this.buffer.width = columns;
    this.buffer.height = rows * 2;
    const image = new ImageData(columns, rows * 2);
    const pixels = new Uint32Array(image.data.buffer);
    const special = specialColours(dark);
    const masked = pixel(special.masked);
    const failed = pixel(special.failed);
    const missing = [pixel(special.missing), pixel(special.missingLine)];
    const faded = fadedPixels(scale, special.paper);
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const place = row * columns + column;
        const kind = this.kind[place];
        if (kind === BEYOND) continue;
        let upper;
        let lower;
        if (kind === VALUE) {
          const index = scale.index(this.value[place]);
          upper = this.kept[place] ? scale.pixels[index] : faded[index];
          lower = upper;
        } else if (kind === FAILED) {
          upper = failed;
          lower = failed;
        } else if (kind === MASKED) {
          upper = masked;
          lower = masked;
        } else {
          const odd = (column >> 1) & 1; // a checker pattern: no single colour could be mistaken for a value
          upper = missing[odd];
          lower = missing[1 - odd];
        }
        pixels[2 * row * columns + column] = upper;
        pixels[(2 * row + 1) * columns + column] = lower;
      }
    }
    this.buffer.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const gap = height > 14 ? 4 : 1;
    context.fillStyle = cssColour("--rule");
    for (let row = 0; row < rows; row += 1) {
      // A hairline under each response: a zero has the colour of the page, the end of a response must still show.
      const end = Math.min(Math.max(this.xOf(responses[row].span - 0.5), 0), columns);
      if (height > 14) context.fillRect(0, (row + 1) * height - gap / 2, end, 1);
      context.drawImage(this.buffer, 0, 2 * row, columns, 2, 0, row * height + gap / 2, columns, height - gap);
    }
  }

  // The response and token under a point, null outside.
  at(x, y) {
    const row = Math.floor(y / this.height);
    if (row < 0 || row >= this.responses.length) return null;
    const column = Math.min(Math.max(Math.floor(x), 0), this.width - 1);
    return { index: row, token: this.token[row * this.width + column] };
  }

  xOf(token) {
    return ((token + 0.5 - this.range[0]) / (this.range[1] - this.range[0])) * this.width;
  }

  positionAt(x) {
    return this.range[0] + (Math.min(Math.max(x, 0), this.width) / this.width) * (this.range[1] - this.range[0]);
  }
}

function fadedPixels(scale, paper) {
  return scale.rgb.map((rgb) => pixel(rgb.map((value, index) => Math.round(paper[index] + (value - paper[index]) * FADED))));
}
