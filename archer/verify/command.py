"""`archer verify`: options, progress, tables and exit code."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archer.errors import ArcherError
from archer.files import plain_file, write_atomically
from archer.verify.report import CheckResult, all_hold, print_report, progress_line, verdict

FULL_PROMPTS, QUICK_PROMPTS = 24, 4


def verify(
    seed: Annotated[int, typer.Option(help="Seed of prompts, responses, subsets and permutations.")] = 0,
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Prompts with both right and wrong answers (default {FULL_PROMPTS}, with --quick "
            f"{QUICK_PROMPTS}).",
            show_default=False,
        ),
    ] = None,
    responses: Annotated[int, typer.Option(min=2, help="Responses per prompt.")] = 8,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file, too.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: exact checks as strict, reported figures coarse.")
    ] = False,
) -> None:
    """Prove on the embedded model that influence scores are right, and report how good they are.

    Exits with 0 only when every exact check holds, with 1 otherwise.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ArcherError(
            f"--json {json_file}: there is no folder {json_file.absolute().parent}; make it first."
        )
    if json_file is not None:
        plain_file(json_file)
    begin = time.perf_counter()
    count = prompts or (QUICK_PROMPTS if quick else FULL_PROMPTS)
    console = Console()
    results = _run(console, seed, count, responses, quick)
    seconds = time.perf_counter() - begin
    print_report(console, results)
    if json_file is not None:
        settings = {"seed": seed, "prompts": count, "responses": responses, "quick": quick}
        checks = [result.to_json() for result in results]
        document = {"passed": all_hold(results), **settings, "seconds": round(seconds, 3), "checks": checks}
        write_atomically(json_file, json.dumps(document, indent=2, allow_nan=False) + "\n")
    console.print(verdict(results, seconds), highlight=False)
    raise typer.Exit(0 if all_hold(results) else 1)


def _run(console: Console, seed: int, prompts: int, responses: int, quick: bool) -> list[CheckResult]:
    """Run everything with a line of progress for each check."""
    with console.status("loading torch"):
        # Here, because torch and transformers take seconds that --help should not.
        from transformers.utils import logging as transformers_logging

        from archer.verify import suite
        from archer.verify.sample import draw_sample

        transformers_logging.disable_progress_bar()
    results = []
    with suite.one_thread():
        with console.status(f"sampling {prompts} x {responses} responses"):
            model, sample = draw_sample(prompts, responses, seed)
        console.print(
            f"{len(sample.rewards)} responses of the embedded model to {prompts} held-out problems, "
            f"{int(sample.rewards.sum())} accepted, {sum(sample.lengths)} tokens (seed {seed})",
            highlight=False,
        )
        for check in suite.checks(model, sample, suite.QUICK if quick else suite.FULL, seed):
            with console.status(check.name):
                results.append(suite.run(check))
            console.print(progress_line(results[-1]), highlight=False)
    return results
