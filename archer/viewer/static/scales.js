// The colour scale of a metric as the user set it: bound by the step, the group or the response.

import { boundOf, isDark, Scale } from "./colour.js";

const KEPT = 16;
const bounds = new WeakMap();
const scales = new Map();

// The same scale is the same object, so that it is computed once and who holds it can tell that nothing changed.
export function sharedScale(ramp, bound, gamma) {
  const key = [ramp, bound, gamma, isDark()].join("/");
  if (!scales.has(key)) scales.set(key, new Scale(ramp, bound, gamma, isDark()));
  if (scales.size > KEPT) scales.delete(scales.keys().next().value);
  return scales.get(key);
}

function cachedBound(responses, metric) {
  let known = bounds.get(responses);
  if (!known) bounds.set(responses, (known = {}));
  known[metric] ??= boundOf(responses.map((response) => response.values[metric] ?? new Float32Array(0)));
  return known[metric];
}

function responseBound(response, metric) {
  let known = bounds.get(response);
  if (!known) bounds.set(response, (known = {}));
  known[metric] ??= boundOf([response.values[metric] ?? new Float32Array(0)]);
  return known[metric];
}

export function scaleFor(state, head, metric, group, response) {
  const described = head.metric(metric);
  if (!described) return sharedScale("sequential", 1, state.gamma);
  let { bound } = described;
  if (state.scale === "group" && group) bound = cachedBound(group, metric);
  if (state.scale === "response" && response) bound = responseBound(response, metric);
  return sharedScale(described.ramp, bound, state.gamma);
}
