"""`archer data prepare`: which source is meant, progress, the closing table."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from archer.errors import ArcherError


def prepare_command(
    name: Annotated[str, typer.Argument(help="The data set, e.g. gsm8k; `list` shows all of them.")],
    source: Annotated[
        str | None,
        typer.Argument(
            help="A local file (.parquet, .jsonl, .json, the last two also .gz) or a hub id. Default: the "
            "data set's own place on the hub.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write, .parquet or .jsonl. Default: data/NAME-SPLIT.parquet."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split: which part of a hub data set, and extra_info.split.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="The configuration of a hub data set, e.g. all, en, cn.")
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of a hub data set.")] = "main",
    instruction: Annotated[
        str | None,
        typer.Option(
            help="What follows the question: boxed, code-stdin, code-function, none, a text of your own, or "
            "a template with {question}. Default: what suits the data set.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before the question.")] = None,
    data_source: Annotated[
        str | None, typer.Option(help="The data_source column, which chooses the reward.")
    ] = None,
    question_field: Annotated[str | None, typer.Option(help="The field that holds the question.")] = None,
    answer_field: Annotated[str | None, typer.Option(help="The field that holds the answer.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N records.")] = None,
    digits: Annotated[int, typer.Option(help="arithmetic: digits of the operands.")] = 3,
    size: Annotated[int | None, typer.Option(help="arithmetic: how many problems.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Turn a data set into prompts in verl's schema, checked, without duplicates, with a manifest.

    Reads a local file or the hub. A preparation that was killed goes on where it was.
    """
    console = Console()
    if name == "list":
        _list(console)
        return
    from archer.data.prepare.catalogue import ARITHMETIC, find_set
    from archer.data.prepare.pipeline import Request, prepare
    from archer.data.prepare.prompt import PromptStyle
    from archer.data.prepare.report import print_report
    from archer.data.prepare.resolve import Wanted, resolve

    data_set = find_set(name)
    if data_set.name != ARITHMETIC and size is not None:
        raise ArcherError("--size is for arithmetic, which makes its problems; use --limit for a file.")
    wanted = Wanted(data_set, source, split, config, revision, digits, size)
    label = split or data_set.split
    found = resolve(wanted)
    request = Request(
        data_set,
        found,
        (out or Path("data") / f"{data_set.name}-{label}.parquet").expanduser(),
        label,
        PromptStyle(instruction, system),
        data_source,
        question_field,
        answer_field,
        limit,
        overwrite,
    )
    with _progress(console, str(found)) as shown:
        done = prepare(request, lambda share, counts: shown(share, counts.read, counts.kept))
    print_report(console, data_set.title, label, done)


class _Shown:
    """Tells a bar how far the source has been read; silent away from a terminal."""

    def __init__(self, bar: Progress | None, source: str) -> None:
        self._bar = bar
        self._task = bar.add_task(escape(source), total=1.0, rows="") if bar is not None else None

    def __call__(self, share: float, read: int, kept: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=share, rows=f"{read:,} rows, {kept:,} kept")


@contextmanager
def _progress(console: Console, source: str) -> Iterator[_Shown]:
    if not console.is_terminal:
        yield _Shown(None, source)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"),
        console=console,
        transient=True,
    ) as bar:
        yield _Shown(bar, source)


def _list(console: Console) -> None:
    from archer.data.prepare.catalogue import DATA_SETS

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "on the hub", "what"):
        table.add_column(heading, no_wrap=heading != "what")  # names are to be copied
    for one in DATA_SETS.values():
        hub = "" if one.hub is None else one.hub.repo + (f"\n({one.hub.config})" if one.hub.config else "")
        table.add_row(one.name, hub, escape(one.title))
    console.print(table)
