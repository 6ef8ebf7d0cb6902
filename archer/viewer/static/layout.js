// Lays the tokens of a response out in lines of a monospaced font; both panes share the result.

import { isRtl, mirrorRuns } from "./rtl.js";
import { tokenText } from "./pack.js";
import { visible } from "./format.js";

export const LINE = 26;
export const FONT_SIZE = 14;
export const INSET = 4; // room at both edges for the frame around a token
const widths = new Map();

// Printable ASCII: as wide as it has characters. Character codes, because this runs for every token.
export function isPlain(text) {
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index);
    if (code < 0x20 || code > 0x7e) return false;
  }
  return true;
}

function isBlank(code) {
  return code === 0x20 || (code >= 0x09 && code <= 0x0d) || code === 0xa0 || code === 0x3000;
}

// Width of a piece in pixels; plain ASCII is a multiple of the advance.
function widthOf(context, text, advance) {
  if (isPlain(text)) return text.length * advance;
  let width = widths.get(text);
  if (width === undefined) {
    if (widths.size > 20000) widths.clear();
    width = context.measureText(text).width;
    widths.set(text, width);
  }
  return width;
}

// Display pieces of a token: control signs made visible, cut after every line break.
function pieces(text) {
  const parts = [];
  const lines = text.replaceAll("\r\n", "␍\n").split("\n");
  lines.forEach((line, index) => {
    const last = index === lines.length - 1;
    const shown = visible(line.replaceAll("\t", "⇥   ")) + (last ? "" : "⏎");
    if (shown || !last) parts.push([shown, !last]);
  });
  return parts;
}

// Segments (parts of tokens that stand on one line) as parallel arrays, and their lines.
export class Layout {
  constructor(response, width, context, advance) {
    this.advance = advance;
    this.token = [];
    this.text = [];
    this.x = [];
    this.width = [];
    this.plain = [];
    this.line = [];
    this.lineStart = [0];
    this.firstSegment = new Int32Array(response.span + 1);
    this.available = Math.max(width - 2 * INSET, 12 * advance);
    this.right = INSET + this.available;
    this.cursor = INSET;
    let word = [];
    let wordWidth = 0;
    const flush = () => {
      if (wordWidth <= this.available && this.cursor + wordWidth > this.right) this.breakLine();
      for (const piece of word) this.place(piece, context);
      word = [];
      wordWidth = 0;
    };
    const add = (token, text, width, plain, breaks) => {
      word.push({ token, text, width, plain, breaks });
      wordWidth += width;
      if (breaks) flush();
    };
    for (let token = 0; token < response.span; token += 1) {
      const raw = tokenText(response, token);
      // Words are kept whole: a line may break before a token that starts with a blank.
      if (word.length && raw && isBlank(raw.charCodeAt(0))) flush();
      if (raw === "") add(token, "", advance / 2, false, false);
      else if (isPlain(raw)) add(token, raw, raw.length * advance, true, false);
      else for (const [text, breaks] of pieces(raw)) add(token, text, widthOf(context, text, advance), isPlain(text), breaks);
      if (word.length && raw && isBlank(raw.charCodeAt(raw.length - 1))) flush();
      if (wordWidth > this.available) flush();
    }
    flush();
    this.lines = this.lineStart.length;
    this.rtl = {}; // segments that stand in a right-to-left run
    if (isRtl(response.text)) for (let line = 0; line < this.lines; line += 1) mirrorRuns(this, ...this.segmentsOf(line));
    this.height = this.lines * LINE;
    let segment = 0;
    for (let token = 0; token <= response.span; token += 1) {
      while (segment < this.token.length && this.token[segment] < token) segment += 1;
      this.firstSegment[token] = segment;
    }
  }

  breakLine() {
    this.lineStart.push(this.token.length);
    this.cursor = INSET;
  }

  place({ token, text, width, plain, breaks }, context) {
    if (this.cursor > INSET && this.cursor + width > this.right) this.breakLine();
    if (width <= this.available) this.push(token, text, width, plain);
    else this.placeLong(token, text, plain, context);
    if (breaks) this.breakLine();
  }

  push(token, text, width, plain) {
    this.token.push(token);
    this.text.push(text);
    this.x.push(this.cursor);
    this.width.push(width);
    this.plain.push(plain);
    this.line.push(this.lineStart.length - 1);
    this.cursor += width;
  }

  // Longer than a line: cut by characters, never inside one.
  placeLong(token, text, plain, context) {
    let part = "";
    let width = 0;
    for (const char of text) {
      const next = widthOf(context, char, this.advance);
      if (part && width + next > this.available) {
        this.push(token, part, width, plain);
        this.breakLine();
        part = "";
        width = 0;
      }
      part += char;
      width += next;
    }
    if (part) this.push(token, part, width, plain);
  }

  segmentsOf(line) {
    return [this.lineStart[line], line + 1 < this.lines ? this.lineStart[line + 1] : this.token.length];
  }

  // The token under a point, -1 where there is none.
  at(x, y) {
    const line = Math.floor(y / LINE);
    if (line < 0 || line >= this.lines) return -1;
    const [first, end] = this.segmentsOf(line);
    for (let segment = first; segment < end; segment += 1) {
      if (x >= this.x[segment] && x < this.x[segment] + this.width[segment]) return this.token[segment];
    }
    return -1;
  }

  // The token one line above or below, nearest in x.
  vertical(token, direction) {
    const from = this.firstSegment[token];
    if (from >= this.token.length) return token;
    const middle = this.x[from] + this.width[from] / 2;
    for (let line = this.line[from] + direction; line >= 0 && line < this.lines; line += direction) {
      const [first, end] = this.segmentsOf(line);
      let best = -1;
      let distance = Infinity;
      for (let segment = first; segment < end; segment += 1) {
        const away = Math.abs(this.x[segment] + this.width[segment] / 2 - middle);
        if (away < distance) {
          best = this.token[segment];
          distance = away;
        }
      }
      if (best >= 0) return best;
    }
    return token;
  }

  lineOf(token) {
    const segment = this.firstSegment[token];
    return segment < this.line.length ? this.line[segment] : 0;
  }
}
