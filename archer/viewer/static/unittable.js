// Sentences and lines ranked by the mean of a metric: which step of the reasoning is it?

import { count, signedNumber, spoken, visibleBlanks } from "./format.js";
import { csv } from "./csv.js";
import { DataTable } from "./table.js";
import { fill, h } from "./dom.js";
import { passing } from "./tokens.js";
import { unitsOf } from "./grain.js";

export const UNITS = [["sentence", "sentences"], ["line", "lines"], ["word", "words"]];
const SHOWN = 400; // characters

// [{response, first, end, sum, count, extreme, mean}] of the units with a value in which a token passes the filters
export function rankedUnits(responses, metric, grain, filter, active) {
  const found = [];
  for (const response of responses) {
    const keep = active ? passing(response, filter) : null;
    for (const unit of unitsOf(response, metric, grain)) {
      if (!unit.count || !textOf(response, unit).trim()) continue;
      if (keep && !keep.subarray(unit.first, unit.end).some(Boolean)) continue;
      found.push({ response, ...unit, mean: unit.sum / unit.count });
    }
  }
  return found;
}

function textOf(response, { first, end }) {
  return response.text.slice(response.starts[first], end < response.span ? response.starts[end] : response.text.length);
}

export class UnitTable {
  // `pick(row, token)`: to the unit's token furthest from zero
  constructor(pick) {
    this.pick = pick;
  }

  // `view`: {head, responses, metric, grain, filter, active, k}; returns {node, csv}
  show({ head, responses, metric, grain, filter, active, k }) {
    const units = rankedUnits(responses, metric, grain, filter, active);
    const several = responses.length > 1;
    const columns = [
      { key: "mean", label: "Mean", value: (unit) => unit.mean, cell: (unit) => signedNumber(unit.mean) },
      { key: "sum", label: "Sum", value: (unit) => unit.sum, cell: (unit) => signedNumber(unit.sum) },
      { key: "tokens", label: "Tokens", value: (unit) => unit.count, cell: (unit) => count(unit.count) },
      ...(several ? [{ key: "response", label: "Resp.", value: (unit) => unit.response.row, cell: (unit) => `${unit.response.row} ${{ accepted: "✓", rejected: "✕" }[head.verdict(unit.response.row)] ?? ""}` }] : []),
      { key: "text", label: grain === "line" ? "Line" : grain === "word" ? "Word" : "Sentence", text: true, wide: true, value: (unit) => textOf(unit.response, unit), cell: (unit) => unitCell(unit) },
    ];
    const halves = [["lowest", 1], ["highest", -1]].map(([name, sign]) => {
      const table = new DataTable(`${name} mean ${metric}`, columns, { sortable: false, page: k, empty: "Nothing here has a value.", pick: (unit) => this.pick(unit.response.row, unit.extreme) });
      table.show([...units].sort((a, b) => sign * (a.mean - b.mean)).slice(0, k));
      return { name, table };
    });
    const hidden = [["step", () => head.step], ["response", (unit) => unit.response.row], ["accepted", (unit) => head.fact(unit.response.row, "accepted")], ["first_token", (unit) => unit.first], ["end_token", (unit) => unit.end]];
    const shown = columns.filter(({ key }) => key !== "response").map(({ key, value }) => [key, value]);
    return {
      node: h("div", { class: "halves" }, halves.map(({ name, table }) => h("div", { class: name }, h("h3", {}, `${name} mean ${spoken(metric)}`), table.node))),
      csv: () => csv([["list", ({ name }) => name], ...[...hidden, ...shown].map(([key, value]) => [key, ({ unit }) => value(unit)])], halves.flatMap(({ name, table }) => table.visibleRows().map((unit) => ({ name, unit })))),
    };
  }
}

function unitCell(unit) {
  const text = textOf(unit.response, unit).trim();
  const shown = visibleBlanks(text.slice(0, SHOWN)).replaceAll("·", " ");
  return h("span", { class: "unittext", dir: "auto", title: shown }, fill(h("span"), shown));
}
