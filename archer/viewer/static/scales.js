// The colour scale of a metric as the user set it: bound by the step, the group or the response.

import { shades } from "./grain.js";
import { boundOf, isDark, Scale } from "./colour.js";

const KEPT = 16;
const bounds = new WeakMap();
const scales = new Map();

// The same scale is the same object, so that it is computed once and who holds it can tell that nothing changed.
// `least`: what no bound of the metric goes below.
export function sharedScale(ramp, bound, gamma, least = 0) {
  const key = [ramp, bound, gamma, least, isDark()].join("/");
  if (!scales.has(key)) scales.set(key, new Scale(ramp, Math.max(bound, least), gamma, isDark(), least));
  if (scales.size > KEPT) scales.delete(scales.keys().next().value);
  return scales.get(key);
}

// Means of units spread less than tokens do: their bound is their own.
function cachedBound(owner, responses, metric, grain) {
  let known = bounds.get(owner);
  if (!known) bounds.set(owner, (known = {}));
  known[`${grain}/${metric}`] ??= boundOf(responses.map((response) => shades(response, metric, grain) ?? new Float32Array(0)));
  return known[`${grain}/${metric}`];
}

export function scaleFor(state, head, metric, group, response) {
  const described = head.metric(metric);
  if (!described) return sharedScale("sequential", 1, state.gamma);
  let { bound, least } = described;
  if (state.scale === "response" && response) bound = cachedBound(response, [response], metric, state.grain);
  else if ((state.scale === "group" || state.grain !== "token") && group) bound = cachedBound(group, group, metric, state.grain);
  return sharedScale(described.ramp, bound, state.gamma, least);
}
