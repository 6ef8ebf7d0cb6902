"""`archer trace check`, `archer trace show` and `archer trace convert`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from archer.errors import ArcherError, visible
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader, all_traces, find_traces
from archer.trace.show import Metric, render_step

app = typer.Typer(help="Check and show the traces of a run.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="A trace folder, or the output folder of a run.", metavar="DIR")]


@app.command()
def check(folder: Folder) -> None:
    """Say whether a trace is whole: steps, rows, tokens, NaNs, damaged files.

    Exits with 0 when every trace in DIR is whole, 1 when one is damaged, 2 when there is none to read.
    """
    with _user_errors():
        reports = [check_trace(path) for path in all_traces(folder)]
    for report in reports:
        # Reasons may quote names out of the files, so they are as untrusted as the rest.
        typer.echo("\n".join(visible(line) for line in report.render().split("\n")))
    raise typer.Exit(0 if all(report.whole for report in reports) else 1)


@app.command()
def show(
    folder: Folder,
    step: Annotated[int, typer.Option(help="The training step to show.")],
    metric: Annotated[
        Metric | None,
        typer.Option(help="Colour tokens by this; by default influence where there is any."),
    ] = None,
    response: Annotated[
        int | None, typer.Option(help="The number of the response in its step, as in the viewer.")
    ] = None,
    group: Annotated[int | None, typer.Option(help="List this group's responses, show its first.")] = None,
    top: Annotated[int, typer.Option(help="How many of the highest and lowest tokens to list.")] = 10,
) -> None:
    """Print the tokens of a response coloured by a metric, and its most extreme tokens."""
    with _user_errors():
        readers = [TraceReader(path) for path in find_traces(folder)]
        # The entropy trace has all rows, the influence trace the selected ones with both metrics.
        preferred = metric or "influence"
        reader = next((reader for reader in readers if reader.summary.kind == preferred), readers[0])
        chosen = metric or reader.summary.kind
        render_step(
            Console(emoji=False), reader, step, metric=chosen, response=response, group=group, top=top
        )


@app.command()
def convert(
    old: Annotated[
        Path, typer.Argument(help="A trace of the first system, or one to stand alone.", metavar="OLD")
    ],
    new: Annotated[Path, typer.Argument(help="The folder to make.", metavar="NEW")],
) -> None:
    """Write a trace again, in today's format and with all its arrays; OLD is not changed.

    For traces of the first system, and to make an influence trace stand alone that refers to the entropy
    trace beside it (trainer.influence_trace.self_contained).
    """
    from archer.trace.convert import convert_trace

    with _user_errors():
        found = find_traces(old)
        results = {path: convert_trace(path, new if path == old else new / path.name) for path in found}
    for path, result in results.items():
        typer.echo(f"{visible(str(path))}: {result.steps} steps")
        for line in (*result.notes, *map(str, result.problems)):
            typer.echo(f"  {visible(line)}")
    raise typer.Exit(1 if any(result.problems for result in results.values()) else 0)


@contextmanager
def _user_errors() -> Iterator[None]:
    try:
        yield
    except ArcherError as error:
        # Unlike other errors these may quote what stands in a stranger's file.
        message = Text.assemble(("error:", "bold red"), " ", visible(str(error)))
        Console(stderr=True, emoji=False).print(message, highlight=False)
        raise typer.Exit(2) from error
