// What two sides of a comparison have in figures: the steps' means, the prompts in common, the distinct tokens.

import { count, number, percent } from "./format.js";
import { distinct, gather } from "./tokens.js";
import { h } from "./dom.js";
import { promptLine } from "./promptline.js";
import { tokenCell } from "./tokencells.js";

const FIGURES = [
  ["rows", "responses", count],
  ["tokens", "tokens", count],
  ["mean_reward", "mean reward", number],
  ["accepted_share", "accepted", percent],
  ["mean_response_length", "mean length", number],
  ["mean_entropy", "mean entropy", number],
  ["mean_log_prob", "mean log-prob", number],
  ["mean_abs_influence", "mean |influence|", number],
];

function signed(value, format) {
  return value === null ? "–" : `${value > 0 ? "+" : ""}${format(value)}`;
}

// `names`: what to call the two sides
export function figuresTable(heads, names) {
  const shown = FIGURES.filter(([key]) => heads.every((head) => head.manifest[key] !== null));
  const difference = ([key, , format]) => {
    const [a, b] = heads.map((head) => head.manifest[key]);
    return format === percent ? signed(100 * (b - a), (value) => `${number(value)} pt`) : signed(b - a, format);
  };
  const line = (name, cell, props = {}) => h("tr", props, h("th", { scope: "row", class: "text" }, name), shown.map((figure) => h("td", { class: "num" }, cell(figure))));
  return h(
    "div",
    { class: "tablescroll" },
    h(
      "table",
      { class: "figures" },
      h("caption", { class: "unseen" }, "Figures of both sides"),
      h("thead", {}, h("tr", {}, h("td"), shown.map(([, label]) => h("th", { class: "num", scope: "col" }, label)))),
      h(
        "tbody",
        {},
        heads.map((head, side) => line(names[side], ([key, , format]) => format(head.manifest[key]))),
        line("B − A", difference, { class: "delta" }),
      ),
    ),
  );
}

function groupFacts(head, group) {
  const rows = head.rowsOf(group);
  const mean = (get) => {
    const known = rows.map(get).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  };
  const accepted = (row) => (head.fact(row, "accepted") === null ? null : Number(head.fact(row, "accepted")));
  return { accepted: mean(accepted), reward: mean((row) => head.fact(row, "reward")), length: mean((row) => head.fact(row, "length")) };
}

// Columns and rows of the table of prompts that both sides answered; `shared` as align.js gives it.
export function promptRows(heads, shared) {
  const rows = shared.map((entry) => ({ ...entry, sides: [groupFacts(heads[0], entry.a), groupFacts(heads[1], entry.b)] }));
  const side = (name, index, key, format) => ({ key: `${key}_${name.toLowerCase()}`, label: `${key} ${name}`, value: (row) => row.sides[index][key], cell: (row) => format(row.sides[index][key]) });
  const change = (key, format) => {
    const get = ({ sides: [a, b] }) => (a[key] === null || b[key] === null ? null : b[key] - a[key]);
    return { key: `${key}_change`, label: "B − A", value: get, cell: (row) => signed(get(row), format) };
  };
  const points = (value) => `${number(100 * value)} pt`;
  const columns = [
    { key: "prompt", label: "Prompt in both", text: true, value: (row) => row.prompt, cell: (row) => h("span", { class: "promptline" }, promptLine(row, 110) || "–") },
    side("A", 0, "accepted", percent),
    side("B", 1, "accepted", percent),
    change("accepted", points),
    side("A", 0, "reward", number),
    side("B", 1, "reward", number),
    change("reward", number),
    side("A", 0, "length", number),
    side("B", 1, "length", number),
  ];
  return { columns, rows };
}

// Columns and rows of the table of distinct tokens; `sides`: [{responses}], `filter` as on the page.
export function distinctRows(sides, metric, filter) {
  const [a, b] = sides.map(({ responses }) => new Map(distinct(responses, gather(responses, filter, metric, true)).map((entry) => [entry.text, entry])));
  const rows = Array.from(new Set([...a.keys(), ...b.keys()]), (text) => ({ text, a: a.get(text) ?? null, b: b.get(text) ?? null }));
  const difference = (row) => (row.a && row.b ? row.b.mean - row.a.mean : null);
  const figure = (key, label, get, format = (value) => number(value, 4)) => ({ key, label, value: get, cell: (row) => format(get(row)) });
  const columns = [
    { key: "token", label: "Token", text: true, value: (row) => row.text, cell: (row) => tokenCell(row.text) },
    figure("count_a", "Count A", (row) => row.a?.count ?? 0, count),
    figure("count_b", "Count B", (row) => row.b?.count ?? 0, count),
    figure("mean_a", `Mean ${metric} A`, (row) => row.a?.mean ?? null),
    figure("mean_b", `Mean ${metric} B`, (row) => row.b?.mean ?? null),
    figure("difference", "B − A", difference),
    figure("size", "|B − A|", (row) => (difference(row) === null ? null : Math.abs(difference(row)))),
  ];
  return { columns, rows };
}
