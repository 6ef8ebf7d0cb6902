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
  if (!Object.hasOwn(STARTS, grain) || !values || response.text === undefined) return values;
  let known = kept.get(response);
  if (!known) kept.set(response, (known = new Map()));
  const key = `${grain}/${metric}`;
  if (!known.has(key)) known.set(key, means(response, values, metric, grain));
  return known.get(key);
}

// The units of a response in order: {first, end, sum, count, extreme}; `extreme` is the token furthest from zero.
export function unitsOf(response, metric, grain) {
  const values = response.values[metric];
  const starts = STARTS[grain];
  const units = [];
  let unit = null;
  let before = "";
  for (let token = 0; token < response.span; token += 1) {
    const text = tokenText(response, token);
    if (!unit || starts(before, text)) {
      unit = { first: token, end: token, sum: 0, count: 0, extreme: token };
      units.push(unit);
      before = "";
    }
    unit.end = token + 1;
    const value = values?.[token];
    if (value === value && value !== undefined) {
      if (!unit.count || Math.abs(value) > Math.abs(values[unit.extreme])) unit.extreme = token;
      unit.sum += value;
      unit.count += 1;
    }
    before = text.trim() ? text : before + text; // a token that only continues a character has no text
  }
  return units;
}

function means(response, values, metric, grain) {
  const shaded = new Float32Array(values.length).fill(NaN);
  for (const { first, end, sum, count } of unitsOf(response, metric, grain)) {
    for (let token = first; token < end; token += 1) if (values[token] === values[token]) shaded[token] = sum / count;
  }
  return shaded;
}
