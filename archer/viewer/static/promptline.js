// A prompt on one line: what tells it apart from the other prompts of its step.

import { visible } from "./format.js";

// `entry`: a group of a step's head
export function promptLine(entry, length) {
  const told = entry?.told ?? entry?.prompt ?? null;
  if (told === null) return "";
  const points = Array.from(visible(told.replace(/\s+/g, " ").trim())); // by characters: a cut never halves one
  const line = points.length > length ? `${points.slice(0, length - 1).join("")}…` : points.join("");
  return line.replace(/ …$/, "\u00a0…"); // never alone on a line
}
