// Search over the joined text of a response; matches are mapped back to the tokens they touch.

import { tokenAt } from "./pack.js";

const MAX_MATCHES = 100000;

// {find: text => [[start, end], ...]} or {error: sentence}; null when there is nothing to look for.
export function matcher(query, regex, caseSensitive) {
  if (!query) return null;
  const source = regex ? query : query.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
  let pattern;
  try {
    pattern = new RegExp(source, `gu${caseSensitive ? "" : "i"}`);
  } catch (error) {
    return { error: error.message.replace(/^Invalid regular expression: /, "") };
  }
  return {
    find(text) {
      const found = [];
      for (const match of text.matchAll(pattern)) {
        if (match[0].length) found.push([match.index, match.index + match[0].length]);
        if (found.length >= MAX_MATCHES) break;
      }
      return found;
    },
  };
}

// {flags: Uint8Array per token, starts: first token of every match}
export function matchTokens(response, search) {
  const flags = new Uint8Array(response.span);
  const starts = [];
  if (!response.span) return { flags, starts };
  for (const [from, to] of search.find(response.text)) {
    const first = tokenAt(response, from);
    let token = first;
    for (; token < response.span && response.starts[token] < to; token += 1) flags[token] = 1;
    // Tokens that only continue the match's last character have no text of their own but belong to it.
    for (; token + 1 < response.span && response.starts[token + 1] === to; token += 1) flags[token] = 1;
    starts.push(first);
  }
  return { flags, starts };
}
