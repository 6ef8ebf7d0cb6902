// A colour and a dash for every run, so that fifty can be told apart: twelve hues, then the same hues dashed.

import { cssColour } from "./dom.js";
import { isDark } from "./colour.js";

const HUES = [130, 330, 195, 95, 285, 25, 165, 305, 75, 225, 350, 110];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4]];

export function runColour(number) {
  if (number < 4) return cssColour(`--series-${number + 1}`);
  const hue = HUES[(number - 4) % HUES.length];
  const shade = Math.floor((number - 4) / HUES.length) % 2;
  const light = (isDark() ? 68 : 40) + (shade ? (isDark() ? -12 : 14) : 0);
  return `hsl(${hue} ${shade ? 45 : 62}% ${light}%)`;
}

export function runDash(number) {
  return DASHES[number < 4 ? 0 : Math.floor((number - 4) / HUES.length + 0.5) % DASHES.length];
}
