// A table that sorts by its columns, shows as many rows as is bearable and exports what it shows.

import { button, download, fill, h } from "./dom.js";
import { count } from "./format.js";
import { csv } from "./csv.js";

const PAGE = 100;

// `columns`: [{key, label, title, text, value(row), cell(row) -> string | Node, sortable}]
export class DataTable {
  constructor(caption, columns, options = {}) {
    Object.assign(this, { caption, columns, options });
    this.shown = options.page ?? PAGE;
    this.sort = options.sort ?? null;
    this.body = h("tbody");
    this.headRow = h("tr");
    this.more = h("div", { class: "more" });
    this.table = h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, this.headRow), this.body);
    this.node = h("div", { class: "datatable" }, h("div", { class: "tablescroll" }, this.table), this.more);
  }

  setColumns(columns) {
    this.columns = columns;
  }

  show(rows) {
    this.rows = rows;
    this.shown = this.options.page ?? PAGE;
    this.render();
  }

  visibleRows() {
    const rows = this.sort ? this.sorted() : this.rows;
    return rows.slice(0, this.shown);
  }

  sorted() {
    const column = this.columns.find((candidate) => candidate.key === this.sort.key);
    if (!column) return this.rows;
    const sign = this.sort.descending ? -1 : 1;
    const keyed = this.rows.map((row, index) => [column.value(row), index, row]);
    keyed.sort(([a, i], [b, j]) => {
      if (a === null || a === undefined || a !== a) return b === null || b === undefined || b !== b ? i - j : 1;
      if (b === null || b === undefined || b !== b) return -1;
      return (a < b ? -sign : a > b ? sign : 0) || i - j;
    });
    return keyed.map(([, , row]) => row);
  }

  render() {
    fill(this.headRow, this.columns.map((column) => this.heading(column)));
    fill(this.body, this.visibleRows().map((row) => this.line(row)));
    const left = this.rows.length - this.shown;
    fill(
      this.more,
      left > 0 && button(left > 1000 ? `Show 1,000 of ${count(left)} more` : `Show ${count(left)} more`, () => {
        this.shown += 1000;
        this.render();
      }, { class: "quiet" }),
      !this.rows.length && h("p", { class: "empty" }, this.options.empty ?? "Nothing passes the filters."),
    );
  }

  heading(column) {
    const sorted = this.sort?.key === column.key ? (this.sort.descending ? "descending" : "ascending") : null;
    const props = { class: column.text ? "text" : "num", scope: "col", title: column.title, "aria-sort": sorted };
    if (column.sortable === false || this.options.sortable === false) return h("th", props, column.label);
    const arrow = sorted ? (this.sort.descending ? " ↓" : " ↑") : "";
    return h("th", props, button(column.label + arrow, () => {
      this.sort = { key: column.key, descending: this.sort?.key === column.key ? !this.sort.descending : !column.text };
      this.render();
      this.headRow.querySelector(`[data-column="${CSS.escape(column.key)}"]`)?.focus();
    }, { "data-column": column.key }));
  }

  line(row) {
    const { pick, current } = this.options;
    const cells = this.columns.map((column, index) => {
      const content = column.cell ? column.cell(row) : String(column.value(row) ?? "–");
      const first = index === 0 && pick ? button(content, () => pick(row), { class: "rowlink" }) : content;
      return h("td", { class: `${column.text ? "text" : "num"}${column.wide ? " wide" : ""}` }, first);
    });
    const line = h("tr", { class: current?.(row) ? "current" : null, "data-clickable": Boolean(pick) }, cells);
    if (pick) {
      line.addEventListener("click", (event) => {
        if (!event.target.closest("button") && document.getSelection().isCollapsed) pick(row);
      });
    }
    return line;
  }

  csv() {
    return csv(this.columns.filter((column) => column.value).map((column) => [column.csv ?? column.key, column.value]), this.visibleRows());
  }

  csvButton(name) {
    return button("CSV", () => download(name(), this.csv(), "text/csv;charset=utf-8"), { class: "quiet", title: "Download the rows shown here" });
  }
}
