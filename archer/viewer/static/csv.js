// Tables as CSV, as any reader of CSV expects them. Text that a spreadsheet would take for a formula gets an
// apostrophe in front, as spreadsheets themselves write it.

const FORMULA = /^[=+\-@\t\r]/;

export function csvCell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return value ? "true" : "false";
  const text = String(value);
  return `"${(FORMULA.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
}

// `columns`: [[heading, row => value], ...]
export function csv(columns, rows) {
  const heading = columns.map(([name]) => `"${name.replaceAll('"', '""')}"`).join(",");
  const lines = rows.map((row) => columns.map(([, value]) => csvCell(value(row))).join(","));
  return `${[heading, ...lines].join("\r\n")}\r\n`;
}
