// Questions to tokens: which pass the filters, the highest and lowest, sorted lists, sums by distinct token.

import { matchesOf, matchTokens, queryOf } from "./search.js";
import { readNumber } from "./format.js";
import { tokenText } from "./pack.js";

export function filterOf(state, head) {
  return {
    metric: head.metric(state.by)?.name ?? paneMetrics(state, head)[1],
    lo: readNumber(state.lo),
    hi: readNumber(state.hi),
    search: queryOf(state.q, state.regex, state.case),
  };
}

// The metrics of the panes: as chosen where the step has them; the third where it is shown.
export function paneMetrics(state, head) {
  const names = head.metrics.map((metric) => metric.name);
  const left = names.includes(state.left) ? state.left : names[0];
  const right = names.includes(state.right) ? state.right : (names.find((name) => name !== left) ?? left);
  return [left, right, thirdMetric(state, head)].filter((name) => name !== null);
}

// What a token was paid is known where token credit weighed the step; elsewhere there is no third pane.
export function hasThird(head) {
  return head.metric("paid") !== null;
}

// The metric of the third pane, null where it is hidden or the step has none.
export function thirdMetric(state, head) {
  if (!hasThird(head) || state.third === "") return null;
  return head.metric(state.third)?.name ?? "paid";
}

// What a group's strips are drawn from: the panes' metrics and that of the range, or all with the text.
export function stripTokens(source, head, group, state) {
  if (state.q !== "" || state.grain !== "token") return source.group(head, group, null, true);
  const names = new Set([...paneMetrics(state, head), filterOf(state, head).metric]);
  return source.group(head, group, Array.from(names).filter((name) => head.metric(name)), false);
}

export function filters(filter) {
  return filter.lo !== null || filter.hi !== null || (filter.search !== null && !filter.search.error);
}

export function countMatches(responses, query) {
  let edges = 0;
  if (query && !query.error) for (const response of responses) edges += matchesOf(query, response).length;
  return edges / 2;
}

// One byte a token: 1 where it is valid and passes range and search.
export function passing(response, filter) {
  const keep = response.mask.slice();
  const values = response.values[filter.metric];
  if (filter.lo !== null || filter.hi !== null) {
    const lo = filter.lo ?? -Infinity;
    const hi = filter.hi ?? Infinity;
    for (let index = 0; index < keep.length; index += 1) {
      if (!(values && values[index] >= lo && values[index] <= hi)) keep[index] = 0;
    }
  }
  if (filter.search && !filter.search.error && response.text !== undefined) {
    const { flags } = matchTokens(response, filter.search);
    for (let index = 0; index < keep.length; index += 1) keep[index] &= flags[index];
  }
  return keep;
}

// Tokens of several responses that pass, as parallel arrays; `valued` leaves out those without a value.
export function gather(responses, filter, metric, valued) {
  let size = 0;
  for (const response of responses) size += response.span;
  const owner = new Uint32Array(size);
  const position = new Uint32Array(size);
  const value = new Float32Array(size);
  let used = 0;
  responses.forEach((response, number) => {
    const keep = passing(response, filter);
    const values = response.values[metric];
    for (let index = 0; index < keep.length; index += 1) {
      if (!keep[index] || (valued && !(values && values[index] === values[index]))) continue;
      owner[used] = number;
      position[used] = index;
      value[used] = values ? values[index] : NaN;
      used += 1;
    }
  });
  return { owner, position, value, size: used };
}

// The first k in the wanted order; equal values stay in reading order, missing ones come last.
export function ordered(found, order, k) {
  const places = candidates(found, order, k);
  if (order !== "position") {
    const sign = order === "ascending" ? 1 : -1;
    const { value } = found;
    places.sort((a, b) => {
      const x = value[a];
      const y = value[b];
      if (x !== x) return y !== y ? a - b : 1;
      if (y !== y) return -1;
      return sign * (x - y) || a - b;
    });
  }
  return Array.from(places.subarray(0, k), (place) => ({ owner: found.owner[place], position: found.position[place] }));
}

// Places among which the first k are: all of them, or those up to the k-th value, which a plain sort finds fast.
function candidates(found, order, k) {
  const { size, value } = found;
  const places = new Uint32Array(size);
  let limit = NaN;
  if (order !== "position" && k > 0 && 4 * k < size) {
    const sorted = value.slice(0, size).sort(); // NaN last
    let finite = size;
    while (finite > 0 && sorted[finite - 1] !== sorted[finite - 1]) finite -= 1;
    if (k <= finite) limit = order === "ascending" ? sorted[k - 1] : sorted[finite - k];
  }
  let used = 0;
  for (let index = 0; index < size; index += 1) {
    if (limit === limit && !(order === "ascending" ? value[index] <= limit : value[index] >= limit)) continue;
    places[used++] = index;
  }
  return places.subarray(0, used);
}

// [{id, text, count, mean, meanAbs, min, max}] by distinct token id.
export function distinct(responses, found) {
  const byId = new Map();
  for (let index = 0; index < found.size; index += 1) {
    const response = responses[found.owner[index]];
    const id = response.ids[found.position[index]];
    let entry = byId.get(id);
    if (!entry) {
      entry = { id, text: tokenText(response, found.position[index]), count: 0, sum: 0, sumAbs: 0, min: Infinity, max: -Infinity };
      byId.set(id, entry);
    }
    const value = found.value[index];
    entry.count += 1;
    entry.sum += value;
    entry.sumAbs += Math.abs(value);
    entry.min = Math.min(entry.min, value);
    entry.max = Math.max(entry.max, value);
  }
  return Array.from(byId.values(), (entry) => ({ ...entry, mean: entry.sum / entry.count, meanAbs: entry.sumAbs / entry.count }));
}

// Summary statistics of one metric over some responses.
export function spread(responses, metric) {
  let size = 0;
  for (const response of responses) size += response.span;
  const finite = new Float64Array(size);
  let used = 0;
  let missing = 0;
  let sum = 0;
  let sumAbs = 0;
  let positive = 0;
  for (const response of responses) {
    const values = response.values[metric];
    for (let index = 0; index < response.span; index += 1) {
      if (!response.mask[index]) continue;
      const value = values ? values[index] : NaN;
      if (value !== value) {
        missing += 1;
        continue;
      }
      finite[used++] = value;
      sum += value;
      sumAbs += Math.abs(value);
      if (value > 0) positive += 1;
    }
  }
  if (!used) return { count: 0, missing };
  const sorted = finite.subarray(0, used).sort();
  const at = (share) => {
    const place = share * (used - 1);
    const low = Math.floor(place);
    return sorted[low] + (sorted[Math.min(low + 1, used - 1)] - sorted[low]) * (place - low);
  };
  const mean = sum / used;
  let squares = 0;
  for (let index = 0; index < used; index += 1) squares += (sorted[index] - mean) ** 2;
  return {
    count: used,
    missing,
    mean,
    std: Math.sqrt(squares / used),
    mean_abs: sumAbs / used,
    min: sorted[0],
    p01: at(0.01),
    median: at(0.5),
    p99: at(0.99),
    max: sorted[used - 1],
    positive_share: positive / used,
  };
}
