// All responses of a group as rows of one heat strip. A pixel shows the most extreme of the tokens it covers.

import { cssColour, sizeCanvas } from "./dom.js";
import { pixel, specialColours } from "./colour.js";
import { shades } from "./grain.js";

const BEYOND = 0;
const VALUE = 1;
const MISSING = 2;
const MASKED = 3;
const FADED = 0.14;

export function rowHeight(rows) {
  if (rows <= 8) return 30;
  if (rows <= 16) return 24;
  return rows <= 40 ? 18 : 10;
}

// The tokens of pixel column i are [edges[i], edges[i + 1]) of the group's longest response, at least one.
function columnEdges(columns, longest) {
  const edges = new Int32Array(columns + 1);
  for (let column = 0; column <= columns; column += 1) edges[column] = Math.floor((column * longest) / columns);
  return edges;
}

export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.buffer = document.createElement("canvas");
  }

  // `keeps[i]` fades the tokens of response i that do not pass the filters; null fades nothing.
  show(responses, metric, grain, keeps, width, height) {
    this.responses = responses;
    this.width = Math.max(40, Math.floor(width));
    this.height = height;
    this.longest = 1;
    for (const response of responses) this.longest = Math.max(this.longest, response.span);
    this.pool(responses.map((response) => shades(response, metric, grain)), keeps);
  }

  pool(shaded, keeps) {
    const { responses, width: columns, longest } = this;
    const size = responses.length * columns;
    this.kind = new Uint8Array(size);
    this.value = new Float32Array(size);
    this.token = new Int32Array(size);
    this.kept = new Uint8Array(size);
    const edges = columnEdges(columns, longest);
    responses.forEach((response, row) => {
      const values = shaded[row];
      const keep = keeps ? keeps[row] : null;
      for (let column = 0; column < columns; column += 1) {
        const first = edges[column];
        const end = Math.min(Math.max(edges[column + 1], first + 1), response.span);
        const place = row * columns + column;
        let best = -1;
        let kind = BEYOND;
        let kept = 0;
        for (let token = first; token < end; token += 1) {
          const passes = !keep || keep[token] ? 1 : 0;
          const found = !response.mask[token] ? MASKED : values && values[token] === values[token] ? VALUE : MISSING;
          const better =
            kind === BEYOND ||
            passes > kept ||
            (passes === kept &&
              (found < kind || (found === VALUE && kind === VALUE && Math.abs(values[token]) > Math.abs(values[best]))));
          if (better) {
            best = token;
            kind = found;
            kept = passes;
          }
        }
        this.kind[place] = kind;
        this.token[place] = best;
        this.kept[place] = kept;
        this.value[place] = kind === VALUE ? values[best] : 0;
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
      const end = (Math.min(responses[row].span, this.longest) / this.longest) * columns;
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
    return ((token + 0.5) / this.longest) * this.width;
  }
}

function fadedPixels(scale, paper) {
  return scale.rgb.map((rgb) => pixel(rgb.map((value, index) => Math.round(paper[index] + (value - paper[index]) * FADED))));
}
