// Tables as CSV. Text cells are JSON strings: blanks and line breaks survive, and no spreadsheet takes one for a formula.

export function csvCell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return value ? "true" : "false";
  return `"${JSON.stringify(String(value)).replaceAll('"', '""')}"`;
}

// `columns`: [[heading, row => value], ...]
export function csv(columns, rows) {
  const heading = columns.map(([name]) => `"${name.replaceAll('"', '""')}"`).join(",");
  const lines = rows.map((row) => columns.map(([, value]) => csvCell(value(row))).join(","));
  return `${[heading, ...lines].join("\r\n")}\r\n`;
}
