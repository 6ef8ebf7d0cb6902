// Numbers and untrusted text as people read them.

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const BLANKS = { 0xa0: "⍽", 0x3000: "␣" }; // the blanks other than a space that texts often hold

function sign(char) {
  const point = char.codePointAt(0);
  if (point < 0x20) return String.fromCodePoint(0x2400 + point);
  if (point === 0x7f) return "␡";
  if (BLANKS[point]) return BLANKS[point];
  return `⟨U+${point.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// Control characters, bidi overrides and the like become signs that can be seen and that do nothing.
export function visible(text) {
  return text.replace(INVISIBLE, sign);
}

export function visibleBlanks(text) {
  return visible(text).replaceAll("␊", "⏎").replaceAll("␉", "⇥").replaceAll(" ", "·");
}

// A slice that never cuts a character of two units in half.
export function wholeSlice(text, from, to) {
  const inside = (at) => at > 0 && at < text.length && (text.charCodeAt(at) & 0xfc00) === 0xdc00 && (text.charCodeAt(at - 1) & 0xfc00) === 0xd800;
  return text.slice(inside(from) ? from + 1 : from, inside(to) ? to - 1 : to);
}

// A metric's name as people say it.
export function spoken(name) {
  return name.replaceAll("_", " ").replace("log prob", "log-prob");
}

export function signedNumber(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e").replaceAll("-", "−");
  const text = size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

// What a person typed or copied from the page, where a minus is a minus sign; null when it is no number.
export function readNumber(text) {
  const value = Number(text.trim().replace("−", "-").replace("e−", "e-").replaceAll(",", ""));
  return text.trim() !== "" && Number.isFinite(value) ? value : null;
}

export function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US").replace("-", "−");
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(value !== 0 && Math.abs(value) < 0.1 ? 1 : 0)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? size.toFixed(0) : size.toFixed(1)} ${units[unit]}`;
}

export function moment(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–";
}

export function plural(amount, noun) {
  return `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}
