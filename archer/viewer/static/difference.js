// Where two token sequences part: an alignment by fewest insertions and deletions, bounded in time.
//
// Myers' greedy method is exact and fast while few tokens differ. Beyond that, runs of tokens that occur once in
// both sequences and in the same order are taken as matched, and only what lies between them is compared.

const EXACT = 700; // most insertions and deletions that are searched for whole sequences
const BETWEEN = 150; // and between two anchors
const RUN = 4; // tokens of an anchor

// {differs: [Uint8Array, Uint8Array], partner: [Int32Array, Int32Array], parts}: flags of the tokens without a
// counterpart, the counterpart of each token (-1: none), and the number of tokens that both begin with.
export function difference(a, b) {
  const match = [new Int32Array(a.length).fill(-1), new Int32Array(b.length).fill(-1)];
  const pair = (i, j) => {
    match[0][i] = j;
    match[1][j] = i;
  };
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) pair(start, start++);
  let [endA, endB] = [a.length, b.length];
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) pair(--endA, --endB);
  if (!myers(a, start, endA, b, start, endB, EXACT, pair)) between(a, start, endA, b, start, endB, pair);
  return { differs: match.map((of) => Uint8Array.from(of, (other) => (other < 0 ? 1 : 0))), partner: match, parts: start };
}

// Calls `pair` for the matched tokens of a[a0, a1) and b[b0, b1); false when more than `cap` edits are needed.
function myers(a, a0, a1, b, b0, b1, cap, pair) {
  const [n, m] = [a1 - a0, b1 - b0];
  const most = Math.min(n + m, cap);
  const reach = new Int32Array(2 * most + 3); // furthest x on diagonal k = x - y, at k + most + 1
  const kept = [];
  for (let edits = 0; edits <= most; edits += 1) {
    kept.push(reach.slice(most + 1 - edits - 1, most + 1 + edits + 2));
    for (let k = -edits; k <= edits; k += 2) {
      const at = k + most + 1;
      const down = k === -edits || (k !== edits && reach[at - 1] < reach[at + 1]);
      let x = down ? reach[at + 1] : reach[at - 1] + 1;
      while (x < n && x - k < m && a[a0 + x] === b[b0 + x - k]) x += 1;
      reach[at] = x;
      if (x >= n && x - k >= m) {
        trace(kept, edits, n, m, (i, j) => pair(a0 + i, b0 + j));
        return true;
      }
    }
  }
  return false;
}

// The way back: from the end to the start, one edit at a time.
function trace(kept, edits, n, m, pair) {
  let [x, y] = [n, m];
  for (let d = edits; d >= 0; d -= 1) {
    const reach = (k) => kept[d][k + d + 1];
    const k = x - y;
    const down = k === -d || (k !== d && reach(k - 1) < reach(k + 1));
    const fromX = d === 0 ? 0 : down ? reach(k + 1) : reach(k - 1) + 1;
    while (x > fromX) pair(--x, --y);
    if (d === 0) return;
    if (down) y -= 1;
    else x -= 1;
  }
}

// Where each run of RUN tokens begins that occurs exactly once.
function single(tokens, from, to) {
  const found = new Map();
  for (let at = from; at + RUN <= to; at += 1) {
    const key = tokens.slice(at, at + RUN).join();
    found.set(key, found.has(key) ? -1 : at);
  }
  return found;
}

function between(a, a0, a1, b, b0, b1, pair) {
  const inB = single(b, b0, b1);
  const anchors = [];
  for (const [key, i] of single(a, a0, a1)) {
    const j = inB.get(key);
    if (i >= 0 && j !== undefined && j >= 0) anchors.push([i, j]);
  }
  let [i0, j0] = [a0, b0];
  for (const [i, j] of rising(anchors)) {
    if (i < i0 || j < j0) continue; // inside the run before
    myers(a, i0, i, b, j0, j, BETWEEN, pair);
    for (let k = 0; k < RUN; k += 1) pair(i + k, j + k);
    [i0, j0] = [i + RUN, j + RUN];
  }
  myers(a, i0, a1, b, j0, b1, BETWEEN, pair);
}

// The longest part of some [i, j], given by rising i, in which j rises as well.
function rising(anchors) {
  const tails = []; // place of the smallest last j of a chain of each length
  const before = new Int32Array(anchors.length).fill(-1);
  anchors.forEach(([, j], place) => {
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (anchors[tails[middle]][1] < j) low = middle + 1;
      else high = middle;
    }
    if (low) before[place] = tails[low - 1];
    tails[low] = place;
  });
  const chain = [];
  for (let place = tails.length ? tails[tails.length - 1] : -1; place >= 0; place = before[place]) chain.push(anchors[place]);
  return chain.reverse();
}
