"""The options of `archer verify` that are of --model or --from-trace alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from archer.errors import ArcherError

CASES, MAX_PROMPTS, MAX_TOKENS, TEMPERATURE = 300, 1000, 512, 1.0
THRESHOLD, FACTOR, PERMUTATIONS, BATCH, BUDGET = 0.05, 32, 3, 16, 8192

Model = Annotated[
    str | None,
    typer.Option(
        help="Instead of the embedded model: a Hugging Face folder or hub id, checked in float32 and "
        "bfloat16.",
        show_default=False,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(help="With --model: prompts in verl's schema; may be repeated.", show_default=False),
]
FromTrace = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Instead of sampling: find the mistakes in a trace or a run's folder, by the values that it "
        "holds.",
        show_default=False,
    ),
]
Cases = Annotated[
    int | None,
    typer.Option(min=1, help=f"With --model: cases to find ({CASES}).", show_default=False),
]
MaxPrompts = Annotated[
    int | None,
    typer.Option(min=1, help=f"With --model: prompts to try at most ({MAX_PROMPTS}).", show_default=False),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help=f"With --model: longest response ({MAX_TOKENS}).", show_default=False),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        metavar="NUMBER",
        help=f"With --model: sampling temperature ({TEMPERATURE:g}).",
        show_default=False,
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="NUMBER",
        help="With --model or --from-trace: entropy in nats above which a token counts as unsure "
        f"({THRESHOLD:g}).",
        show_default=False,
    ),
]
Factor = Annotated[
    int | None,
    typer.Option(
        "--projection-dim-factor",
        min=1,
        help=f"With --model: as in trainer.influence_trace ({FACTOR}).",
        show_default=False,
    ),
]
Permutations = Annotated[
    int | None,
    typer.Option(
        min=0,
        help=f"With --model: permutations of the labels for each null ({PERMUTATIONS}).",
        show_default=False,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"With --model: prompts that are sampled together ({BATCH}).", show_default=False
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(help="With --model: where to compute (auto).", show_default=False),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"] | None,
    typer.Option(
        metavar="FORMAT",
        help="With --model: number format that responses are sampled and scored in: auto (as the device "
        "has it), float32 or bfloat16.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="With --model: CPU threads (all cores).", show_default=False),
]
LastNumber = Annotated[
    bool,
    typer.Option(
        "--last-number", help="With --model: take the last number for an answer where none is boxed."
    ),
]

OF_BOTH = frozenset({"threshold"})


def check_choice(model: str | None, trace: Path | None, credit: bool, given: Mapping[str, Any]) -> None:
    """Refuse modes that exclude each other, and options that mean nothing in the mode.

    given: what was said of each option of this file, by its name on the command line; None: nothing
    """
    chosen = [name for name, on in (("--model", model), ("--from-trace", trace), ("--credit", credit)) if on]
    if len(chosen) > 1:
        raise ArcherError(f"{' and '.join(chosen)} exclude each other; leave one of them.")
    said = {name for name, value in given.items() if value not in (None, False, [])}
    if model is not None:
        if "data" not in said:
            raise ArcherError("--model needs --data FILE: the prompts that it is sampled on.")
        return
    idle = said - OF_BOTH if trace is not None else said
    if idle:
        of = "--model" if trace is not None or not idle & OF_BOTH else "--model or --from-trace"
        raise ArcherError(f"--{sorted(idle)[0]} is of {of}; add it, or leave the option out.")
