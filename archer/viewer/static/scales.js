// The colour scale of a metric as the user set it: bound by the step, the group or the response.

import { boundOf, isDark, Scale } from "./colour.js";

const bounds = new WeakMap();

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
  if (!described) return new Scale("sequential", 1, state.gamma, isDark());
  let { bound } = described;
  if (state.scale === "group" && group) bound = cachedBound(group, metric);
  if (state.scale === "response" && response) bound = responseBound(response, metric);
  return new Scale(described.ramp, bound, state.gamma, isDark());
}
