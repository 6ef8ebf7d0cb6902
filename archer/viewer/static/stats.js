// Summary statistics of metrics as one table, accepted and rejected responses beside each other.

import { h } from "./dom.js";
import { count, number, percent } from "./format.js";

const FIGURES = [
  ["count", "tokens", count],
  ["missing", "no value", count],
  ["mean", "mean", number],
  ["mean_abs", "mean |x|", number],
  ["std", "std", number],
  ["min", "min", number],
  ["p01", "1 %", number],
  ["median", "median", number],
  ["p99", "99 %", number],
  ["max", "max", number],
  ["positive_share", "> 0", percent],
];

// `metrics`: [[label, {all, accepted?, rejected?}], ...]
export function statsTable(metrics) {
  const lines = metrics.flatMap(([label, parts]) =>
    Object.entries(parts)
      .filter(([name, figures]) => name === "all" || figures.count)
      .map(([name, figures]) =>
        h(
          "tr",
          { class: name === "all" ? "major" : "minor" },
          h("th", { scope: "row", class: "text" }, name === "all" ? label : h("span", { class: `verdictname ${name}` }, name)),
          FIGURES.map(([key, , format]) => h("td", { class: "num" }, format(figures[key] ?? null))),
        ),
      ),
  );
  return h(
    "div",
    { class: "tablescroll" },
    h(
      "table",
      { class: "stats" },
      h("caption", { class: "unseen" }, "Summary statistics"),
      h("thead", {}, h("tr", {}, h("th", {}), FIGURES.map(([, label]) => h("th", { scope: "col", class: "num" }, label)))),
      h("tbody", {}, lines),
    ),
  );
}
