"""What a person sees of an evaluation: the head, the progress, the table."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from archer.config.root import TrainConfig
from archer.evaluation.summary import ALL, Figures, Sample, Summary, mean, pass_ks


def describe_sampling(config: TrainConfig) -> str:
    """The sampling in one line."""
    rollout = config.actor_rollout_ref.rollout
    options = rollout.val_kwargs
    how = "greedy"
    if options.do_sample:
        how = f"temperature {options.temperature:g}, top-p {options.top_p:g}"
        how += f", top-k {options.top_k}" if options.top_k > 0 else ""
        how += f", seed {rollout.seed}"
    responses = f"{options.n} response{'' if options.n == 1 else 's'} a prompt"
    return f"{responses}, {how}, at most {config.data.max_response_length:,} tokens"


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[int, Sequence[Sample]], None]]:
    """A function that shows where the evaluation stands: prompts done and accuracy so far.

    On a terminal it is a progress bar with the time left, elsewhere about ten lines in all.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    tenths = 0

    def show(done: int, samples: Sequence[Sample]) -> None:
        nonlocal tenths
        verdicts = [float(s.correct) for s in samples if s.failure is None]
        accuracy = mean(verdicts) if verdicts else 0.0
        bar.update(task, completed=done, description=f"accuracy so far {accuracy:.1%}")
        if bar.disable and done * 10 // total > tenths:
            tenths = done * 10 // total
            console.print(f"{done}/{total} prompts  accuracy {accuracy:.1%}", highlight=False)

    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield show


def summary_table(summary: Summary) -> Table:
    """One column per data source, and one for all when there are several."""
    columns = dict(summary.sources)
    if len(columns) > 1:
        columns[ALL] = summary.overall
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for source in columns:
        table.add_column(escape(source), justify="right", no_wrap=True, style="bold" if source == ALL else "")
    cells = [_cells(figures, summary.overall.failures > 0) for figures in columns.values()]
    for name in cells[0]:
        table.add_row(name, *(one[name] for one in cells))
    return table


def _cells(figures: Figures, unjudged: bool) -> dict[str, str]:
    error = "" if figures.stderr is None else f" ±{figures.stderr:.1%}"
    cells = {"prompts": f"{figures.prompts:,}", f"avg@{figures.n}": _percent(figures.avg) + error}
    cells |= {f"pass@{k}": _percent(figures.pass_at.get(k)) for k in pass_ks(figures.n) if k > 1}
    if figures.n > 1:
        cells[f"maj@{figures.n}"] = _percent(figures.majority)
    if unjudged:
        cells["unjudged"] = f"{figures.failures:,}"
    return cells | {"tokens": f"{figures.tokens:,.1f}", "truncated": f"{figures.truncated:.1%}"}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain JSON: figures of all, of each source, and verl's metric names."""

    def plain(figures: Figures) -> dict[str, Any]:
        fields, n = asdict(figures), figures.n
        fields |= {f"avg@{n}": fields.pop("avg"), f"maj@{n}": fields.pop("majority")}
        return fields | {f"pass@{k}": value for k, value in fields.pop("pass_at").items()}

    return {
        "overall": plain(summary.overall),
        "sources": {source: plain(figures) for source, figures in summary.sources.items()},
        "metrics": summary.metrics(),
    }
