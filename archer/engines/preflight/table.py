"""The report of a dry run."""

import shlex

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archer.engines.preflight.finding import Finding, problems

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
        todo = f"\n[bold]{escape(finding.remedy)}[/bold]" if finding.remedy else ""
        table.add_row(MARKS[finding.level], escape(finding.subject), escape(finding.text) + todo)
    console.print(table)
    wrong = len(problems(findings))
    if wrong:
        console.print(
            f"\nThis run cannot start here: {wrong} problem{'' if wrong == 1 else 's'}.", style="bold"
        )
        return False
    command = shlex.join(["archer", "train", *overrides])
    console.print("\nThis run could start here:", style="bold")
    console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    return True
