// Colour by larger units than tokens: the mean of a word, a line or a sentence on all of its tokens.

import { tokenText } from "./pack.js";

export const GRAINS = [["token", "each token"], ["word", "word means"], ["line", "line means"], ["sentence", "sentence means"]];
const ENDED = /[.!?…。]["'”’)\]]*\s*$/;
const kept = new WeakMap();

function blankFirst(text) {
  return /^\s/.test(text);
}

// Whether a new unit starts at a token, given its own text and that of the token before with the blanks after it.
const STARTS = {
  word: (before, text) => blankFirst(text) || /\S\s+$/.test(before),
  line: (before) => before.includes("\n"),
  sentence: (before, text) => text.trim() !== "" && (before.includes("\n") || (ENDED.test(before) && (/\s$/.test(before) || blankFirst(text)))),
};

// One number per token: the values themselves, or the mean over the unit that the token belongs to. Masked
// tokens and those without a value keep NaN and do not count.
export function shades(response, metric, grain) {
  const values = response.values[metric];
  const starts = Object.hasOwn(STARTS, grain) ? STARTS[grain] : null;
  if (!starts || !values || response.text === undefined) return values;
  let known = kept.get(response);
  if (!known) kept.set(response, (known = new Map()));
  const key = `${grain}/${metric}`;
  if (!known.has(key)) known.set(key, means(response, values, starts));
  return known.get(key);
}

function means(response, values, starts) {
  const shaded = new Float32Array(values.length).fill(NaN);
  let first = 0;
  let before = "";
  let sum = 0;
  let count = 0;
  const close = (end) => {
    for (let token = first; token < end; token += 1) if (values[token] === values[token]) shaded[token] = sum / count;
    first = end;
    sum = 0;
    count = 0;
  };
  for (let token = 0; token < values.length; token += 1) {
    const text = tokenText(response, token);
    if (token && starts(before, text)) {
      close(token);
      before = "";
    }
    if (values[token] === values[token]) {
      sum += values[token];
      count += 1;
    }
    before = text.trim() ? text : before + text; // a token that only continues a character has no text
  }
  close(values.length);
  return shaded;
}
