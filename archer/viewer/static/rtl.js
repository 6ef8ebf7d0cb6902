// Runs of right-to-left tokens (Arabic, Hebrew, ...) on a line stand in their own order: the first at the right.

const STRONG = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;
const LEFT_TO_RIGHT = /[\p{L}\p{N}]/u;

export function isRtl(text) {
  return STRONG.test(text);
}

// Mirrors the places of the segments [from, to) of a line, run by run; a run begins and ends with right-to-left text
// and holds nothing of the other direction. `rtl[i]` is set for its segments.
export function mirrorRuns(layout, from, to) {
  let first = -1;
  let last = -1;
  const close = () => {
    if (first >= 0) mirror(layout, first, last + 1);
    first = -1;
  };
  for (let segment = from; segment < to; segment += 1) {
    if (layout.plain[segment] ? LEFT_TO_RIGHT.test(layout.text[segment]) : !isRtl(layout.text[segment]) && LEFT_TO_RIGHT.test(layout.text[segment])) close();
    else if (!layout.plain[segment] && isRtl(layout.text[segment])) {
      if (first < 0) first = segment;
      last = segment;
    }
  }
  close();
}

function mirror(layout, first, end) {
  const left = layout.x[first];
  const right = layout.x[end - 1] + layout.width[end - 1];
  for (let segment = first; segment < end; segment += 1) {
    layout.x[segment] = left + right - layout.x[segment] - layout.width[segment];
    layout.rtl[segment] = true;
  }
}
