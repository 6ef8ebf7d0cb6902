// Tables of tokens: the highest and lowest, sorted lists, distinct tokens; of a response, its group or the step.

import { button, download, fill, h, segmented, select } from "./dom.js";
import { contextCell, tokenCell } from "./tokencells.js";
import { count, number, percent, spoken } from "./format.js";
import { DataTable } from "./table.js";
import { countMatches, distinct, filterOf, filters, gather, ordered, spread, thirdMetric } from "./tokens.js";
import { prepare } from "./search.js";
import { statsTable } from "./stats.js";
import { failureOf } from "./tooltip.js";
import { tokenText } from "./pack.js";
import { csv } from "./csv.js";
import { UNITS, UnitTable } from "./unittable.js";

const TABLES = [["extremes", "Highest & lowest"], ["list", "All tokens"], ["units", "Sentences & lines"], ["distinct", "Distinct tokens"], ["statistics", "Statistics"]];
const ORDERS = [["position", "by position"], ["ascending", "ascending"], ["descending", "descending"]];
const AMOUNTS = [10, 20, 50, 100, 500, 2000];
const ASK_FIRST = 400000;

export class TokenPanel {
  constructor(store, source) {
    Object.assign(this, { store, source });
    this.controls = h("div", { class: "controls" });
    this.body = h("div", { class: "panelbody" });
    this.note = h("p", { class: "empty" });
    this.node = h("section", { class: "tokenpanel", "aria-label": "Token tables" }, h("div", { class: "sectionhead" }, h("h2", {}, "Tokens"), this.controls), this.note, this.body);
    this.ticket = 0;
  }

  // `context`: {state, head, scopes, found(search, matches)}; the first scope is used where the chosen one is
  // not on offer, `found` is told of a search over the tokens in scope
  async show(context) {
    const ticket = (this.ticket += 1);
    const { state, head, scopes } = context;
    const scope = scopes.includes(state.scope) ? state.scope : scopes[0];
    const metric = head.metric(state.metric)?.name ?? head.metric(state.right)?.name ?? head.metrics[0].name;
    const place = `${head.run}/${head.step}/${head.version}/${scope}/${scope === "step" ? "" : state.group}/${scope === "response" ? state.response : ""}`;
    Object.assign(this, { context, scope, metric, filter: filterOf(state, head) });
    const key = [place, metric, state.table, state.order, state.k, state.q, state.regex, state.case, state.by, state.left, state.right, state.third, state.lo, state.hi, state.unit].join("\u0000");
    if (key === this.shownKey) return;
    this.showControls();
    this.note.textContent = place === this.place ? "" : "Loading tokens …";
    if (scope === "step" && place !== this.agreed && head.rows.span.reduce((a, b) => a + b, 0) > ASK_FIRST) {
      this.shownKey = null;
      this.note.textContent = "";
      fill(this.body, this.askFirst(place));
      return;
    }
    await whenIdle(); // colours first
    if (ticket !== this.ticket) return;
    try {
      const responses = place === this.place ? this.responses : await this.load(scope, head, state);
      await prepare(this.filter.search, responses, this.source.regexes);
      if (ticket !== this.ticket) return;
      Object.assign(this, { responses, place, shownKey: key });
      this.note.textContent = "";
      this.render();
      context.found?.(this.filter.search, countMatches(responses, this.filter.search));
    } catch (error) {
      if (ticket !== this.ticket) return;
      this.note.textContent = error.message;
      fill(this.body);
    }
  }

  async load(scope, head, state) {
    if (scope === "response") return [await this.source.response(head, state.response)];
    if (scope === "group") return this.source.group(head, state.group, null, true);
    return this.source.step(head, (share) => (this.note.textContent = `Loading tokens … ${percent(share)}`));
  }

  askFirst(place) {
    const tokens = this.context.head.rows.span.reduce((a, b) => a + b, 0);
    return button(`Load the ${count(tokens)} tokens of this step`, () => {
      this.agreed = place;
      this.show(this.context);
    });
  }

  showControls() {
    const { state, head, scopes } = this.context;
    const key = JSON.stringify([state.table, scopes, this.scope, head.metrics.map((metric) => metric.label), this.metric, state.order, state.k, state.unit]);
    if (key === this.controlsKey) return;
    this.controlsKey = key;
    const go = (name) => (value) => this.store.go({ [name]: value });
    const focused = document.activeElement?.getAttribute("data-key") ?? document.activeElement?.getAttribute("aria-label");
    fill(
      this.controls,
      segmented("Table", TABLES, state.table, go("table")),
      scopes.length > 1 && segmented("Tokens of", scopes.map((name) => [name, name]), this.scope, go("scope")),
      state.table !== "statistics" && select("Metric of the table", head.metrics.map((metric) => [metric.name, metric.label]), this.metric, go("metric")),
      state.table === "units" && select("Unit", UNITS, this.grain(), go("unit")),
      state.table === "list" && select("Order", ORDERS, state.order, go("order")),
      state.table !== "statistics" && select("How many", [...new Set([...AMOUNTS, state.k])].sort((a, b) => a - b).map((amount) => [amount, `${count(amount)} rows`]), state.k, (value) => this.store.go({ k: Number(value) })),
      button("CSV", () => this.exportCsv(), { class: "quiet", title: "Download the rows shown here (e)", id: "csv" }),
    );
    const again = Array.from(this.controls.querySelectorAll("button, select")).find((node) => focused && (node.dataset.key === focused || node.getAttribute("aria-label") === focused));
    again?.focus();
  }

  render() {
    const { state } = this.context;
    if (this.filter.search?.error) this.note.textContent = this.filter.search.error;
    else if (filters(this.filter)) this.note.textContent = "Only tokens that pass the filters above.";
    if (state.table === "statistics") this.renderStatistics();
    else if (state.table === "distinct") this.renderDistinct();
    else if (state.table === "units") this.renderUnits(state);
    else if (state.table === "list") this.renderList(gather(this.responses, this.filter, this.metric, false), state);
    else this.renderExtremes(gather(this.responses, this.filter, this.metric, true), state);
  }

  grain() {
    const { unit } = this.context.state;
    return UNITS.some(([name]) => name === unit) ? unit : UNITS[0][0];
  }

  renderUnits({ k }) {
    const { head } = this.context;
    this.units ??= new UnitTable((row, token) => this.go(row, token));
    const { node, csv: written } = this.units.show({ head, responses: this.responses, metric: this.metric, grain: this.grain(), filter: this.filter, active: filters(this.filter), k });
    this.exported = written;
    fill(this.body, node);
  }

  // To a token of a response; while two responses are side by side the text stays so.
  go(row, token) {
    const { head } = this.context;
    const { state } = this.store;
    const beside = state.response === null || state.beside !== "" ? "nearest" : "";
    this.store.go({ group: head.fact(row, "group"), response: row, token, beside: state.group === null ? "" : state.response === row ? state.beside : beside });
    document.querySelector(".workview .texts")?.scrollIntoView({ block: "nearest" });
  }

  rowsOf(found, order, k) {
    return ordered(found, order, k).map(({ owner, position }) => ({ response: this.responses[owner], position }));
  }

  renderExtremes(found, state) {
    const label = this.context.head.metric(this.metric).label;
    const halves = [["highest", "descending"], ["lowest", "ascending"]].map(([name, order]) => {
      const table = this.tokenTable(`${name} ${label}`);
      table.show(this.rowsOf(found, order, state.k));
      return { name, table };
    });
    this.exported = () => {
      const columns = halves[0].table.written.map((column) => [column.csv ?? column.key, (entry) => column.value(entry.row)]);
      const rows = halves.flatMap(({ name, table }) => table.visibleRows().map((row) => ({ name, row })));
      return csv([["list", (entry) => entry.name], ...columns], rows);
    };
    fill(this.body, h("div", { class: "halves" }, halves.map(({ name, table }) => h("div", { class: name }, h("h3", {}, `${name} ${label}`), table.node))));
  }

  renderList(found, state) {
    const table = this.tokenTable("Tokens");
    table.show(this.rowsOf(found, state.order, state.k));
    this.exported = () => table.csv();
    fill(this.body, h("p", { class: "empty" }, `${count(Math.min(state.k, found.size))} of ${count(found.size)} tokens`), table.node);
  }

  renderDistinct() {
    const { state } = this.context;
    const found = gather(this.responses, this.filter, this.metric, true);
    const figure = (key, label) => ({ key, label, value: (entry) => entry[key], cell: (entry) => number(entry[key], 4) });
    const rows = distinct(this.responses, found);
    const sort = { key: "meanAbs", descending: true };
    const table = new DataTable(`Distinct tokens by ${this.metric}`, [
      { key: "token", label: "Token", text: true, value: (entry) => entry.text, cell: (entry) => tokenCell(entry.text) },
      { key: "token_id", label: "Id", value: (entry) => entry.id, cell: (entry) => String(entry.id) },
      { key: "count", label: "Count", value: (entry) => entry.count, cell: (entry) => count(entry.count) },
      figure("mean", "Mean"),
      { ...figure("meanAbs", "Mean |x|"), csv: "mean_abs" },
      figure("sum", "Sum"),
      figure("min", "Min"),
      figure("max", "Max"),
    ], { page: state.k, sort });
    table.show(rows);
    this.exported = () => table.csv();
    fill(this.body, h("p", { class: "empty" }, `${count(rows.length)} distinct tokens among ${count(found.size)}`), table.node);
  }

  renderStatistics() {
    const { head } = this.context;
    const rows = head.metrics.map((metric) => {
      const parts = { all: spread(this.responses, metric.name) };
      for (const verdict of ["accepted", "rejected"]) {
        const chosen = this.responses.filter((response) => head.verdict(response.row) === verdict);
        if (chosen.length && this.responses.length > 1) parts[verdict] = spread(chosen, metric.name);
      }
      return [metric.label, parts, metric.name];
    });
    this.note.textContent = "Of all tokens in scope; filters do not apply.";
    this.exported = () => {
      const flat = rows.flatMap(([, parts, name]) => Object.entries(parts).map(([of, figures]) => ({ metric: name, of, ...figures })));
      const keys = Object.keys(flat[0]);
      return csv(keys.map((key) => [key, (entry) => entry[key]]), flat);
    };
    fill(this.body, statsTable(rows));
  }

  tokenTable(caption) {
    const { head, state } = this.context;
    const several = this.scope !== "response";
    const fact = (key, label, get, format) => ({ key, label, value: get, cell: (row) => format(get(row)) });
    const columns = [
      fact("position", "Pos", (row) => row.position, count),
      { key: "token", label: "Token", text: true, value: (row) => tokenText(row.response, row.position), cell: (row) => tokenCell(tokenText(row.response, row.position)) },
      ...this.metricColumns(head, state.table === "list" ? null : this.columnsShown()),
      ...(several ? [fact("response", "Resp.", (row) => row.response.row, String), { key: "verdict", label: "", text: true, value: (row) => head.verdict(row.response.row), cell: (row) => ({ accepted: "✓", rejected: "✕" })[head.verdict(row.response.row)] ?? "" }] : []),
      { key: "context", label: "Context", text: true, cell: (row) => contextCell(row.response, row.position), sortable: false, wide: true, value: null },
    ];
    const hidden = [
      ["run", () => head.run],
      ["step", () => head.step],
      ["group", (row) => head.fact(row.response.row, "group")],
      ["response", (row) => row.response.row],
      ["accepted", (row) => head.fact(row.response.row, "accepted")],
      ["reward", (row) => head.fact(row.response.row, "reward")],
      ["token_id", (row) => row.response.ids[row.position]],
    ];
    const table = new DataTable(caption, columns, {
      empty: filters(this.filter) ? "Nothing passes the filters." : `No token here has a value of ${spoken(this.metric)}.`,
      sortable: false,
      page: state.k,
      pick: (row) => this.go(row.response.row, row.position),
    });
    const written = [
      ...hidden.map(([key, value]) => ({ key, value })),
      ...columns.filter((column) => column.key === "position" || column.key === "token"),
      ...this.metricColumns(head, null),
    ];
    table.csv = () => csv(written.map((column) => [column.csv ?? column.key, column.value]), table.visibleRows());
    table.written = written;
    return table;
  }

  // What the panes show; a step as a whole has none.
  columnsShown() {
    const { head, state } = this.context;
    return [this.metric, state.left, state.right, ...(state.group === null ? [] : [thirdMetric(state, head)])];
  }

  // The table's own metric first; `names` limits them, so that there is room for the context.
  metricColumns(head, names) {
    const chosen = head.metric(this.metric);
    const others = head.metrics.filter((metric) => metric !== chosen && (!names || names.includes(metric.name)));
    return [chosen, ...others].map((metric) => {
      const get = (row) => row.response.values[metric.name]?.[row.position] ?? NaN;
      return { key: metric.name, label: spoken(metric.name), value: get, cell: (row) => failureOf(row.response, metric.name, row.position)?.split(":")[0] ?? number(get(row), 4) };
    });
  }

  exportCsv() {
    if (!this.exported) return;
    const { head, state } = this.context;
    const place = this.scope === "step" ? "" : this.scope === "group" ? `-group-${state.group}` : `-response-${state.response}`;
    download(`archer-step-${head.step}${place}-${state.table}.csv`, this.exported(), "text/csv;charset=utf-8");
  }
}

function whenIdle() {
  return new Promise((resolve) => {
    if (window.requestIdleCallback) requestIdleCallback(() => resolve(), { timeout: 400 });
    else setTimeout(resolve, 60);
  });
}
