// Search over the joined text of responses; matches are mapped back to the tokens they touch.
//
// Plain text is looked for at once. A regular expression can take for ever on the wrong text, so it runs in a
// worker (searchworker.js): `prepare` waits for it, and everything after that only looks matches up.

import { tokenAt } from "./pack.js";

export const MAX_MATCHES = 100000;
const NONE = new Int32Array(0);
let latest = { key: null };

// {key, source, flags, regex, error, found} or null when there is nothing to look for. The same question gets
// the same object, and with it the matches found so far.
export function queryOf(text, regex, caseSensitive) {
  if (!text) return null;
  const key = JSON.stringify([text, Boolean(regex), Boolean(caseSensitive)]);
  if (latest.key === key) return latest;
  const source = regex ? text : text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
  const flags = `gu${caseSensitive ? "" : "i"}`;
  latest = { key, source, flags, regex: Boolean(regex), error: null, found: new WeakMap() };
  try {
    latest.pattern = new RegExp(source, flags);
  } catch (error) {
    latest.error = error.message.replace(/^Invalid regular expression: /, "");
  }
  return latest;
}

// The responses whose matches only the worker can tell and has not told yet.
export function unsearched(query, responses) {
  if (!query || query.error || !query.regex) return [];
  return responses.filter((response) => response?.text !== undefined && !query.found.has(response));
}

// Resolves when the matches of all responses are known, or the query's error says why they are not.
export async function prepare(query, responses, worker) {
  const missing = unsearched(query, responses);
  if (!missing.length) return;
  const answer = await worker.find(query, missing.map((response) => response.text));
  if (answer.error) query.error = answer.error;
  answer.found?.forEach((edges, index) => query.found.set(missing[index], edges));
}

// Start and end of every match, one after the other, in characters of the response's text.
export function matchesOf(query, response) {
  const known = query.found.get(response);
  if (known) return known;
  if (query.regex || query.error || response.text === undefined) return NONE;
  const edges = [];
  for (const match of response.text.matchAll(query.pattern)) {
    edges.push(match.index, match.index + match[0].length);
    if (edges.length >= 2 * MAX_MATCHES) break;
  }
  const found = Int32Array.from(edges);
  query.found.set(response, found);
  return found;
}

// {flags: Uint8Array per token, starts: first token of every match}
export function matchTokens(response, query) {
  const flags = new Uint8Array(response.span);
  const starts = [];
  if (!response.span) return { flags, starts };
  const edges = matchesOf(query, response);
  for (let match = 0; match < edges.length; match += 2) {
    const to = edges[match + 1];
    const first = tokenAt(response, edges[match]);
    let token = first;
    for (; token < response.span && response.starts[token] < to; token += 1) flags[token] = 1;
    // Tokens that only continue the match's last character have no text of their own but belong to it.
    for (; token + 1 < response.span && response.starts[token + 1] === to; token += 1) flags[token] = 1;
    starts.push(first);
  }
  return { flags, starts };
}
