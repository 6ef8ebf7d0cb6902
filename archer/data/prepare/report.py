"""The closing table of a preparation."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archer.data.prepare.pipeline import Prepared

TRAIN = "train"
STARTS = {
    "fresh": "",
    "resumed": "an interrupted preparation was there: it went on from where it was",
    "restarted": "an interrupted preparation of something else was there: discarded, begun anew",
    "unchanged": "already there, made from the same source with the same options: nothing was done",
}


def print_report(console: Console, title: str, split: str, done: Prepared) -> None:
    """Print what went in, what came out, and what was left out and why, and how to use it."""
    counts = done.counts
    if STARTS[done.start]:
        console.print(STARTS[done.start], highlight=False, soft_wrap=True)
    console.print(f"[bold]{escape(title)}[/bold]", highlight=False, soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("rows in", f"{counts.read:,}", "")
    table.add_row("kept", f"[bold green]{counts.kept:,}[/bold green]", "")
    differing = f"{counts.conflicts:,} with another answer than the one kept" if counts.conflicts else ""
    table.add_row("duplicates", f"{counts.duplicates:,}", differing)
    table.add_row("invalid", f"{sum(counts.invalid.values()):,}", "")
    for reason, rows in counts.invalid.most_common():
        table.add_row("", f"{rows:,}", escape(reason))
    mean = counts.prompt_chars / counts.kept
    spread = f"mean, {counts.shortest:,} to {counts.longest:,}"
    table.add_row("prompt characters", f"{mean:,.0f}", spread)
    for number, (kind, rows) in enumerate(counts.kinds.most_common()):
        table.add_row("answers" if number == 0 else "", f"{rows:,}", kind)
    console.print(table)
    if counts.first_invalid:
        console.print("first invalid rows:")
        for line in counts.first_invalid:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"written   {done.output}  sha256 {done.sha256[:16]}…", highlight=False, soft_wrap=True)
    console.print(f"manifest  {done.manifest}", highlight=False, soft_wrap=True)
    key = "data.train_files" if split == TRAIN else "data.val_files"
    console.print(f"use it    {key}={done.output}", highlight=False, soft_wrap=True)
    console.print(f"look at   archer data show {done.output}", highlight=False, soft_wrap=True)
