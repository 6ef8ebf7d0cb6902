"""What a check hands back, and its tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One line of a check: the thing measured, and one number for each of the check's columns."""

    what: str
    values: tuple[float, ...]
    holds: bool | None = None  # within its limit; None for a figure that is only reported


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    meaning: str  # what a reader may conclude, in one sentence
    columns: tuple[str, ...]  # names of the numbers in each figure
    figures: tuple[Figure, ...]
    passed: bool | None  # whether all figures of an exact check hold; None for a check that only reports
    note: str = ""  # how to read the figures, where that is not plain
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values by name, the numbers of a figure by column; NaN becomes None."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "note": self.note,
            "passed": self.passed,
            "figures": [
                {"what": figure.what, "holds": figure.holds}
                | {c: None if isnan(v) else v for c, v in zip(self.columns, figure.values, strict=True)}
                for figure in self.figures
            ],
            "seconds": round(self.seconds, 3),
        }


def at_most(what: str, value: float, limit: float) -> Figure:
    """An exact figure that holds up to `limit`; NaN never does."""
    return Figure(what, (value, limit), holds=value <= limit)


def at_least(what: str, value: float, limit: float) -> Figure:
    """An exact figure that holds from `limit` on; NaN never does."""
    return Figure(what, (value, limit), holds=value >= limit)


def exact(name: str, meaning: str, figures: list[Figure]) -> CheckResult:
    """A check that decides the verdict: every figure has to hold, and there has to be one."""
    passed = bool(figures) and all(figure.holds is True for figure in figures)
    return CheckResult(name, meaning, ("measured", "allowed"), tuple(figures), passed)


def reported(
    name: str, meaning: str, note: str, columns: tuple[str, ...], figures: list[Figure]
) -> CheckResult:
    """A check that shows how good something is and decides nothing."""
    return CheckResult(name, meaning, columns, tuple(figures), None, note)


VERDICTS = {True: "holds", False: "FAILS", None: "reported"}
NUMBER_WIDTH = 6  # of -0.123
STYLES = {True: "green", False: "bold red", None: "cyan"}


def progress_line(result: CheckResult) -> str:
    """One line for a check that has just ended."""
    return f"{_mark(result.passed, width=8)}  {escape(result.name)}  [dim]{result.seconds:.1f} s[/dim]"


def print_report(console: Console, results: Sequence[CheckResult], precision: str = "in float64") -> None:
    """The exact checks in one table, if there are any, then one table for each reported check.

    precision: what the exact checks compute in, where that is one for all
    """
    exact = [result for result in results if result.passed is not None]
    tables = [_exact_table(exact, precision)] if exact else []
    for table in (*tables, *(_reported_table(result) for result in results if result.passed is None)):
        console.print()
        console.print(table)
    console.print()


def verdict(results: Sequence[CheckResult], seconds: float) -> str:
    """The last line."""
    exact = [result for result in results if result.passed is not None]
    failed = [result.name for result in exact if not result.passed]
    if not exact:
        return "[bold red]No exact check ran.[/bold red]"
    if failed:
        names = escape(", ".join(failed))
        return f"[bold red]{len(failed)} of {len(exact)} exact checks fail[/bold red]: {names}."
    return f"[bold green]All {len(exact)} exact checks hold[/bold green] ({seconds:.0f} s)."


def all_hold(results: Sequence[CheckResult]) -> bool:
    """Whether there are exact checks and none of them failed."""
    exact = [result.passed for result in results if result.passed is not None]
    return bool(exact) and all(exact)


def _exact_table(results: list[CheckResult], precision: str) -> Table:
    title = f"Exact checks, {precision}" if precision else "Exact checks"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("measured", "allowed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for result in results:
        name = f"[bold]{escape(result.name)}[/bold]\n[dim]{escape(result.meaning)}[/dim]"
        table.add_row(name, "", "", _mark(result.passed))
        for figure in result.figures:
            table.add_row(f"- {escape(figure.what)}", *map(_exact_number, figure.values), _mark(figure.holds))
        table.add_section()
    return table


def _reported_table(result: CheckResult) -> Table:
    table = Table(title=result.name.capitalize(), title_justify="left", title_style="bold")
    table.caption, table.caption_justify = escape(f"{result.meaning} {result.note}"), "left"
    table.add_column("")
    for column in result.columns:
        # long headings in two lines, so that the names before the figures have room
        widest = max(NUMBER_WIDTH, (len(column) + 2) // 2, *map(len, column.split()))
        table.add_column(column, justify="right", max_width=widest)
    for figure in result.figures:
        numbers = ("-" if isnan(value) else f"{value:.3f}" for value in figure.values)
        table.add_row(escape(figure.what), *numbers)
    return table


def _mark(passed: bool | None, width: int = 0) -> str:
    return f"[{STYLES[passed]}]{VERDICTS[passed]:<{width}}[/{STYLES[passed]}]"


def _exact_number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1e}" if value < 0.1 else f"{value:.6f}"
