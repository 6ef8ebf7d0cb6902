// To the next or previous match of what is in the search field now, which may not be on the screen yet.

import { matchTokens, prepare, queryOf, unsearched } from "./search.js";

// `go(token)` moves to a token of `response`
export function jumpToMatch(store, source, response, direction, go) {
  const current = () => queryOf(store.state.q, store.state.regex, store.state.case);
  const search = current();
  if (!response || !search || search.error) return;
  if (unsearched(search, [response]).length) {
    prepare(search, [response], source.regexes).then(() => search === current() && jumpToMatch(store, source, response, direction, go));
    return;
  }
  const { starts } = matchTokens(response, search);
  if (!starts.length) return;
  const from = store.state.token ?? -1;
  go(
    direction > 0
      ? (starts.find((start) => start > from) ?? starts[0])
      : (starts.findLast((start) => start < from) ?? starts[starts.length - 1]),
  );
}
