"""`archer data`: prepare, show and check-gold. Heavy imports wait until a command runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from archer.errors import ArcherError

if TYPE_CHECKING:
    from archer.data.prepare.pipeline import Counts, Prepared


def data_app(load_tokenizer: Callable[[str], Any]) -> typer.Typer:
    """Return the commands; `load_tokenizer` gives a chat tokenizer by the path of its model."""
    app = typer.Typer(help="Prepare prompt files and look into them.", no_args_is_help=True)
    app.command("prepare")(prepare_command)
    app.command("check-gold")(check_gold_command)

    @app.command()
    def show(
        file: Annotated[str, typer.Argument(help="A file in verl's schema, or builtin:arithmetic/train.")],
        n: Annotated[int, typer.Option("--n", min=0, help="How many samples to print.")] = 3,
        index: Annotated[int | None, typer.Option(help="Print this row, counted from 0.")] = None,
        source: Annotated[str | None, typer.Option(help="Only rows of this data_source.")] = None,
        model_path: Annotated[
            str | None,
            typer.Option(help="Count prompts in tokens of this model's tokenizer; otherwise in characters."),
        ] = None,
    ) -> None:
        """Print samples of a prompt file and its statistics: sources, prompt lengths, kinds of answers."""
        from archer.data.show import show as print_samples

        tokenizer = None if model_path is None else load_tokenizer(model_path)
        print_samples(Console(emoji=False), file, n, index, source, tokenizer)

    return app


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
            help="What follows the question: boxed, code-stdin, code-function, none, your own text, or "
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
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only records whose field is so: level=Level 3,Level 4, or difficulty=3..5 (numbers). "
            "May be given several times; all have to hold."
        ),
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(help="Leave out the questions of this file, e.g. a held-out set. May be repeated."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N records.")] = None,
    digits: Annotated[int, typer.Option(help="arithmetic: digits of the operands.")] = 3,
    size: Annotated[int | None, typer.Option(help="arithmetic: how many problems.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Turn a data set into prompts in verl's schema, checked, without duplicates, with a manifest.

    Reads a local file or the hub. The output appears whole or not at all.
    """
    console = Console(emoji=False)
    if name == "list":
        _list(console)
        return
    from archer.data.prepare.catalogue import ARITHMETIC, find_set
    from archer.data.prepare.choice import Choice
    from archer.data.prepare.pipeline import Request, prepare
    from archer.data.prepare.sources import resolve

    data_set = find_set(name)
    if data_set.name != ARITHMETIC and size is not None:
        raise ArcherError("--size is for arithmetic, which makes its problems; use --limit for a file.")
    label = split or data_set.split
    found = resolve(data_set, source, split, config, revision, digits, size)
    request = Request(
        data_set,
        found,
        (out or Path("data") / f"{data_set.name}-{label}.parquet").expanduser(),
        label,
        instruction,
        system,
        data_source,
        question_field,
        answer_field,
        limit,
        overwrite,
        Choice.of(where or (), exclude or ()),
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(str(found)), total=1.0, rows="")

        def show_progress(share: float, counts: "Counts") -> None:
            bar.update(task, completed=share, rows=f"{counts.read:,} rows, {counts.kept:,} kept")

        done = prepare(request, show_progress)
    _print_report(console, data_set.title, label, done)


def check_gold_command(
    file: Annotated[
        Path,
        typer.Argument(help="A prepared file, or a data set's own: .parquet, .jsonl, .json, also .gz."),
    ],
    field: Annotated[
        str | None,
        typer.Option(help="The field that holds the solution. Default: solution, solutions, code, ..."),
    ] = None,
    data_source: Annotated[
        str | None, typer.Option(help="Judge as this data_source. Default: the row's, else by its tests.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Check only the first N rows.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="How many are judged at the same time.")] = 2,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one test.")] = 6.0,
    min_pass: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Exit with status 1 when a smaller share passes.")
    ] = 0.995,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write every row's verdict to this file.")
    ] = None,
) -> None:
    """Judge a data set's own solutions: whichever fails cannot be solved by any response.

    Programs run in the sandbox that training uses; the final answer of a math solution is compared with the
    row's. Lists the rows that fail or cannot be judged, and why.
    """
    from archer.data.gold import check_gold, read_gold, report_lines, write_verdicts

    console = Console(emoji=False)
    rows = read_gold(file.expanduser(), field, data_source, limit)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("judging", total=len(rows))
        verdicts = check_gold(rows, workers, timeout, lambda done: bar.update(task, completed=done))
    for line in report_lines(verdicts):
        console.out(line, highlight=False)
    if json_out is not None:
        write_verdicts(json_out, file, verdicts)
    if sum(verdict.passed for verdict in verdicts) < min_pass * len(verdicts):
        raise typer.Exit(1)


def _list(console: Console) -> None:
    from archer.data.prepare.catalogue import DATA_SETS

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "on the hub", "what"):
        table.add_column(heading, no_wrap=heading != "what")  # names are to be copied
    for one in DATA_SETS.values():
        hub = "" if one.hub is None else one.hub.repo + (f"\n({one.hub.config})" if one.hub.config else "")
        table.add_row(one.name, hub, escape(one.title))
    console.print(table)


def _print_report(console: Console, title: str, split: str, done: "Prepared") -> None:
    """Print what went in, what came out, and what was left out and why, and how to use it."""
    from archer.data.show import figure_table

    if done.unchanged:
        console.out("already there, made from the same source with the same options: nothing was done")
    console.out(title, style="bold", highlight=False)
    console.print(figure_table(_figures(done.counts)))
    if done.counts.first_invalid:
        console.out("first invalid rows:", *done.counts.first_invalid, sep="\n  ", highlight=False)
    key = "data.train_files" if split == "train" else "data.val_files"
    for line in (
        f"written   {done.output}  sha256 {done.sha256[:16]}…",
        f"manifest  {done.manifest}",
        f"use it    {key}={done.output}",
        f"look at   archer data show {done.output}",
    ):
        console.out(line, highlight=False)


def _figures(counts: "Counts") -> Iterator[tuple[str, str, str]]:
    from archer.data.show import counted

    yield "rows in", f"{counts.read:,}", ""
    yield "kept", f"[bold green]{counts.kept:,}[/bold green]", ""
    differing = f"{counts.conflicts:,} with another answer than the one kept" if counts.conflicts else ""
    yield "duplicates", f"{counts.duplicates:,}", differing
    if counts.not_chosen:
        yield "not chosen", f"{counts.not_chosen:,}", "--where does not hold"
    if counts.excluded:
        yield "held out", f"{counts.excluded:,}", "--exclude has the question"
    yield "invalid", f"{sum(counts.invalid.values()):,}", ""
    yield from counted("", counts.invalid)
    mean = counts.prompt_chars / counts.kept
    yield "prompt characters", f"{mean:,.0f}", f"mean, {counts.shortest:,} to {counts.longest:,}"
    yield from counted("answers", counts.kinds)
