"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archer.verify.result import CheckResult

WORDS = {True: "holds", False: "FAILS", None: "reported"}
NUMBER_WIDTH = 6  # of -0.123
STYLES = {True: "green", False: "bold red", None: "cyan"}


def progress_line(result: CheckResult, seconds: float) -> str:
    """One line for a check that has just ended."""
    mark = _mark(result.passed, width=8)
    return f"{mark}  {escape(result.name)}  [dim]{seconds:.1f} s[/dim]"


def print_report(console: Console, results: Sequence[CheckResult]) -> None:
    """The exact checks in one table, then one table for each reported check."""
    for table in (
        _exact_table([result for result in results if result.passed is not None]),
        *(_reported_table(result) for result in results if result.passed is None),
    ):
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


def _exact_table(results: list[CheckResult]) -> Table:
    table = Table(title="Exact checks, in float64", title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("measured", "allowed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for result in results:
        name = f"[bold]{escape(result.name)}[/bold]\n[dim]{escape(result.meaning)}[/dim]"
        table.add_row(name, "", "", _mark(result.passed))
        for figure in result.figures:
            numbers = (_exact_number(value) for value in figure.values)
            table.add_row(f"- {escape(figure.what)}", *numbers, _mark(figure.holds))
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
        table.add_row(escape(figure.what), *(_reported_number(value) for value in figure.values))
    return table


def _mark(passed: bool | None, width: int = 0) -> str:
    return f"[{STYLES[passed]}]{WORDS[passed]:<{width}}[/{STYLES[passed]}]"


def _exact_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1e}" if value < 0.1 else f"{value:.6f}"


def _reported_number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3f}"
