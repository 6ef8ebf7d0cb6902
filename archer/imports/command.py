"""`archer trace import`: what other trainers wrote, as a trace that the viewer opens."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from archer.errors import ArcherError, visible
from archer.imports import prime_rl, trl, verl
from archer.imports.build import Imported, import_steps
from archer.imports.rows import ImportedRow, StepFiles
from archer.imports.tokens import ModelTokenizer, NoTokenizer, TextTokenizer, WordTokenizer

Format = Literal["auto", "verl", "trl", "prime-rl"]
FINDERS: dict[str, Callable[[Path], list[StepFiles]]] = {
    "verl": verl.find,
    "trl": trl.find,
    "prime-rl": prime_rl.find,
}
EXPECTED = {
    "verl": "<step>.jsonl (trainer.rollout_data_dir)",
    "trl": "completions_<step>.parquet (log_completions)",
    "prime-rl": "token_exports/step_<step>/rank_<rank>.jsonl (enable_token_export)",
}


def import_command(
    source: Annotated[
        Path,
        typer.Argument(help="What a trainer wrote: a folder, or one of its files.", metavar="SOURCE"),
    ],
    out: Annotated[Path, typer.Argument(help="The run folder to make.", metavar="OUT")],
    format: Annotated[
        Format, typer.Option(help="What wrote it: verl, trl or prime-rl; auto tells by the names.")
    ] = "auto",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="The model's folder, for its tokenizer. Without it: texts cut into words, ids as ids."
        ),
    ] = None,
    accepted_above: Annotated[
        float | None,
        typer.Option(
            help="A response is accepted where its reward is above this; by default where the source says so "
            "(verl's acc), or above 0."
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="trl: a column whose value is (part of) the reward; default: all columns of floats."
        ),
    ] = None,
) -> None:
    """Import the responses that verl, TRL or prime-rl wrote down, for `archer view`; SOURCE is not changed.

    verl: the folder of trainer.rollout_data_dir or validation_data_dir. TRL: the output folder of a run with
    log_completions, or its completions. prime-rl: the output folder of a run with enable_token_export, or its
    token_exports. Entropies and log-probs are taken over where the source has them (prime-rl).
    """
    try:
        made, notes = import_source(source, out, format, tokenizer, accepted_above, reward or [])
    except ArcherError as error:
        raise ArcherError(visible(str(error))) from error  # it may quote what stands in a stranger's file
    typer.echo(f"{visible(str(made.folder))}: {made.steps} steps, {made.rows:,} responses")
    for note in notes:
        typer.echo(f"  {visible(note)}")
    typer.echo(f"next: archer view {visible(str(made.folder))}")


def import_source(
    source: Path,
    out: Path,
    format: Format = "auto",
    tokenizer: Path | None = None,
    accepted_above: float | None = None,
    rewards: list[str] | None = None,
) -> tuple[Imported, list[str]]:
    """Import, and say what a reader of the trace should know of it."""
    name, steps = find_steps(source, format)
    if rewards and name != "trl":
        raise ArcherError(f"--reward names columns of TRL's files, and {source} is {name}'s. Leave it out.")
    notes: list[str] = []
    read: Callable[[StepFiles], Iterator[ImportedRow]]
    if name == "verl":
        read = verl.read
    elif name == "trl":
        read = partial(trl.read, rewards=rewards or [])
        notes.append(_reward_note(steps[0], rewards or []))
    else:
        read = prime_rl.read
        notes += [
            f"step {step.step} is not marked STABLE: it may be incomplete"
            for step in steps
            if prime_rl.unfinished(step)
        ]
    tokens = _tokenizer(tokenizer, name)
    with Console(stderr=True, emoji=False).status("importing") as status:
        made = import_steps(
            steps,
            read,
            out,
            tokenizer=tokens,
            accepted_above=accepted_above,
            metadata={"imported_from": name, "source": source.name, "experiment": out.name},
            progress=lambda step: status.update(f"importing, step {step}"),
        )
    if isinstance(tokens, WordTokenizer):
        notes.append("texts are cut into words, not a model's tokens; --tokenizer gives those")
    if isinstance(tokens, NoTokenizer):
        notes.append("tokens are shown by their ids; --tokenizer gives the texts")
    had = ", ".join(made.arrays) or "none"
    notes.append(f"per-token values in the source: {had}")
    if "entropies" not in made.arrays:
        notes.append("entropies were not written by the trainer: the trace holds NaN, not computed")
    return made, notes


def find_steps(source: Path, format: Format) -> tuple[str, list[StepFiles]]:
    """Return the format and the step files of a source."""
    if not source.exists():
        raise ArcherError(f"{source} does not exist; expected a folder or file that a trainer wrote.")
    tried = list(FINDERS) if format == "auto" else [format]
    found = {name: steps for name in tried if (steps := FINDERS[name](source))}
    if not found:
        expected = "; ".join(f"{name}: {EXPECTED[name]}" for name in tried)
        raise ArcherError(f"{source} holds nothing to import. Expected of {expected}.")
    if len(found) > 1:
        raise ArcherError(f"{source} holds files of {' and '.join(found)}; choose one with --format.")
    return next(iter(found.items()))


def _reward_note(step: StepFiles, chosen: list[str]) -> str:
    columns = trl.columns_of(step, chosen)
    return f"reward: {' + '.join(columns)}" if columns else "no column of floats: all responses are unjudged"


def _tokenizer(folder: Path | None, name: str) -> TextTokenizer:
    if folder is not None:
        from archer.generation.model import read_tokenizer

        return ModelTokenizer(read_tokenizer(str(folder)), folder.name)
    return NoTokenizer() if name == "prime-rl" else WordTokenizer()
