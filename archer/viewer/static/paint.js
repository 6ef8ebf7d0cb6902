// Draws the visible lines of a laid-out response: colour behind every token, text in runs of one ink.

import { FONT_SIZE, LINE } from "./layout.js";
import { specialColours } from "./colour.js";

const TOP = 3;
const BOX = LINE - 5;

export const TEXT_FONT = `${FONT_SIZE}px ui-monospace, "SF Mono", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace`;

function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let start = x - height; start < x + width; start += 5) {
    context.moveTo(start, y + height);
    context.lineTo(start + height, y);
  }
  context.stroke();
  context.restore();
}

// `view`: {layout, response, values, failed, scale, keep, hits, under: {values, scale} of a second metric as a line,
// differs: flags of tokens that another response lacks, parts: the token where the two part, hover, selected, dark, inks: {dark, light, muted, accent, match}}
export function paintLines(context, view, width, height, scrollTop) {
  const { layout, response, values, scale, keep, hits, failed, under, differs, parts, inks } = view;
  const special = specialColours(view.dark);
  const css = (rgb) => `rgb(${rgb.join(",")})`;
  context.clearRect(0, 0, width, height);
  context.font = TEXT_FONT;
  context.textBaseline = "middle";
  context.direction = "ltr";
  const first = Math.max(0, Math.floor(scrollTop / LINE));
  const last = Math.min(layout.lines - 1, Math.floor((scrollTop + height) / LINE));
  const page = view.dark ? inks.light : inks.dark;
  for (let line = first; line <= last; line += 1) {
    const [from, to] = layout.segmentsOf(line);
    const y = line * LINE - scrollTop;
    const runs = [];
    for (let segment = from; segment < to; segment += 1) {
      const token = layout.token[segment];
      const x = layout.x[segment];
      const box = layout.width[segment];
      const faded = keep && !keep[token];
      let ink = page;
      if (!response.mask[token]) {
        context.fillStyle = css(special.masked);
        context.fillRect(x, y + TOP, box, BOX);
        ink = inks.muted;
      } else if (failed && failed[token]) {
        context.fillStyle = css(special.failed);
        context.fillRect(x, y + TOP, Math.max(box - 0.5, 1), BOX);
        ink = "#ffffff";
      } else if (!values || values[token] !== values[token]) {
        hatch(context, x, y + TOP, box, BOX, css(special.missingLine));
      } else {
        const index = scale.index(values[token]);
        context.globalAlpha = faded ? 0.14 : 1;
        context.fillStyle = scale.css[index];
        context.fillRect(x, y + TOP, Math.max(box - 0.5, 1), BOX);
        context.globalAlpha = 1;
        if (!faded) ink = scale.ink[index];
      }
      if (faded) ink = inks.faded;
      if (under) underline(context, under, token, x, y + TOP + BOX, box);
      if (differs && differs[token]) {
        context.fillStyle = page;
        context.fillRect(x, y + TOP - 2, box, 1.5);
      }
      if (token === parts && segment === layout.firstSegment[token]) {
        context.fillStyle = inks.accent;
        context.fillRect(x - 3, y, 3, LINE);
      }
      if (hits && hits[token]) {
        context.fillStyle = inks.match;
        context.fillRect(x, y + TOP + BOX - 1, box, 3);
      }
      add(runs, layout.text[segment], layout.plain[segment], x, ink, layout.advance, layout.rtl[segment]);
    }
    const middle = y + TOP + BOX / 2 + 1;
    for (const run of runs) {
      context.fillStyle = run.ink;
      context.direction = run.rtl ? "rtl" : "ltr";
      context.textAlign = "left"; // whatever the direction, x is the left edge
      context.fillText(run.text, run.x, middle);
      if (run.plain && run.text.includes(" ")) {
        context.globalAlpha = 0.32;
        context.fillText(dots(run.text), run.x, middle);
        context.globalAlpha = 1;
      }
    }
  }
  outline(context, view, view.hover, scrollTop, page, 1, 0.5);
  // Outside the token, so that no letter is covered, and with an edge of paper that shows on every colour.
  outline(context, view, view.selected, scrollTop, css(special.paper), 1, 0.5);
  outline(context, view, view.selected, scrollTop, inks.accent, 2, 2);
}

function underline(context, { values, scale }, token, x, y, width) {
  const value = values?.[token];
  if (value === undefined || value !== value) return;
  context.fillStyle = scale.css[scale.index(value)];
  context.fillRect(x, y, Math.max(width - 0.5, 1), 3);
}

// Blanks as dots, everything else as a blank: drawn faintly over the text.
function dots(text) {
  return text.replace(/[^ ]/g, "\t").replaceAll(" ", "·").replaceAll("\t", " ");
}

// Neighbouring plain pieces of one ink become one call: drawing text is what a frame spends its time on.
function add(runs, text, plain, x, ink, advance, rtl) {
  if (!text) return;
  const before = runs[runs.length - 1];
  if (plain && !rtl && before && before.plain && !before.rtl && before.ink === ink && Math.abs(before.x + before.text.length * advance - x) < 0.01) {
    before.text += text;
  } else {
    runs.push({ text, x, ink, plain, rtl });
  }
}

// A frame of some width around a token, its middle `away` from the token's box.
function outline(context, view, token, scrollTop, colour, width, away) {
  if (token === null || token === undefined || token < 0) return;
  const { layout } = view;
  context.strokeStyle = colour;
  context.lineWidth = width;
  for (let segment = layout.firstSegment[token]; segment < layout.firstSegment[token + 1]; segment += 1) {
    const y = layout.line[segment] * LINE - scrollTop;
    context.strokeRect(layout.x[segment] - away, y + TOP - away, layout.width[segment] + 2 * away, BOX + 2 * away);
  }
}
