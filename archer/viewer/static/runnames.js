// Links name runs: in the address a run is its name, inside the page its number.

// The number of a run that an address names: by its name, its own name where one run alone has it, or, in older
// links, its place.
export function runNumber(runs, wanted) {
  const exact = runs.findIndex((run) => run.name === wanted);
  if (exact >= 0) return exact;
  const own = runs.filter((run) => run.own_name === wanted);
  if (own.length) return own.length === 1 ? runs.indexOf(own[0]) : -1;
  return /^\d{1,4}$/.test(wanted) && runs[Number(wanted)] ? Number(wanted) : -1;
}

// "name:step/group/response" <-> "number:step/group/response"; a name may hold colons, what follows may not.
export function otherInside(runs, text) {
  const at = text.lastIndexOf(":");
  return at < 0 ? text : `${runNumber(runs, text.slice(0, at))}${text.slice(at)}`;
}

export function otherOutside(runs, text) {
  const at = text.lastIndexOf(":");
  const run = runs[Number(text.slice(0, at))];
  return at < 0 || !run ? text : `${run.name}${text.slice(at)}`;
}

// The runs drawn over each other: names one after the other, each with its own escapes.
export function listInside(runs, text) {
  return text === "" || text === "-" ? text : text.split(",").map((part) => runNumber(runs, unescaped(part))).filter((run) => run >= 0).join(",") || "-";
}

export function listOutside(runs, text) {
  return text === "" || text === "-" ? text : text.split(",").map((part) => encodeURIComponent(wellFormed(runs[Number(part)]?.name ?? part))).join(",");
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function wellFormed(text) {
  return text.replace(/[\ud800-\udfff]/gu, "\ufffd");
}
