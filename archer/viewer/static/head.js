// What is known of a step without its tokens.

export class StepHead {
  constructor(run, value) {
    this.run = run;
    Object.assign(this, value);
    // An exported page holds some rows only; they keep their numbers.
    this.numbers = value.row_numbers ?? value.rows.span.map((_, row) => row);
    this.place = new Map(this.numbers.map((row, index) => [row, index]));
    this.size = this.numbers.length;
  }

  metric(name) {
    return this.metrics.find((metric) => metric.name === name) ?? null;
  }

  fact(row, name) {
    const column = this.rows[name];
    const index = this.place.get(row);
    return column && index !== undefined ? column[index] : null;
  }

  mean(row, name, absolute = false) {
    const metric = this.metric(name);
    return metric ? metric[absolute ? "row_mean_abs" : "row_mean"][this.place.get(row)] : null;
  }

  // How many values of a response are NaN or infinite though they were computed.
  failures(row, name) {
    return this.metric(name)?.row_failed?.[this.place.get(row)] ?? 0;
  }

  rowsOf(group) {
    return this.numbers.filter((_, index) => this.rows.group[index] === group);
  }

  verdict(row) {
    if (this.fact(row, "unjudged")) return "unjudged";
    const accepted = this.fact(row, "accepted");
    return accepted === null ? null : accepted ? "accepted" : "rejected";
  }

  // The rows of a group in the order the user chose.
  sortedRows(group, order, metric) {
    const rows = this.rowsOf(group);
    const key = {
      row: (row) => row,
      reward: (row) => -(this.fact(row, "reward") ?? -Infinity),
      verdict: (row) => (this.fact(row, "accepted") ? 0 : 1),
      length: (row) => -this.fact(row, "length"),
      value: (row) => -(this.mean(row, metric, true) ?? -Infinity),
      signed: (row) => this.mean(row, metric) ?? Infinity,
    }[order];
    return key ? rows.map((row) => [key(row), row]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((pair) => pair[1]) : rows;
  }
}
