"""What a check before training found."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archer.errors import ArcherError, masked


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what was found, and what to do about it.

    `ok` is as it should be, a `note` worth knowing, and with a `problem` the run cannot start here.
    """

    level: Literal["ok", "note", "problem"]
    subject: str
    text: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """Finding and way out, for a message."""
        return f"{self.text} {self.remedy}".strip()


ok, note, problem = partial(Finding, "ok"), partial(Finding, "note"), partial(Finding, "problem")


def problems(findings: list[Finding]) -> list[Finding]:
    """Those that keep the run from starting."""
    return [finding for finding in findings if finding.level == "problem"]


@contextmanager
def as_problem(subject: str, found: list[Finding]) -> Iterator[None]:
    """Turn an ArcherError inside into a problem among `found`."""
    try:
        yield
    except ArcherError as error:
        found.append(problem(subject, str(error)))


MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[yellow]note[/yellow]",
    "problem": "[bold red]problem[/bold red]",
}


def print_report(console: Console, findings: list[Finding], overrides: list[str]) -> bool:
    """Print one line a finding and what follows from them; return whether the run could start."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "what", "found, and what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        todo = f"\n[bold]{escape(masked(finding.remedy))}[/bold]" if finding.remedy else ""
        table.add_row(MARKS[finding.level], escape(finding.subject), escape(masked(finding.text)) + todo)
    console.print(table)
    if wrong := len(problems(findings)):
        told = f"{wrong} problem{'' if wrong == 1 else 's'}"
        console.print(f"\nThis run cannot start here: {told}.", style="bold")
        return False
    console.print("\nThis run could start here:", style="bold")
    command = shlex.join(["archer", "train", *overrides])
    console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    return True
