"""`archer verify`: options, progress, tables and exit code."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from archer.errors import ArcherError
from archer.files import plain_file, write_atomically
from archer.verify import model_options as of_model
from archer.verify.report import CheckResult, all_hold, print_report, progress_line, verdict

FULL_PROMPTS, QUICK_PROMPTS, CREDIT_PROMPTS = 24, 4, 8
RESPONSES, CREDIT_RESPONSES = 8, 4
BATCHES, QUICK_BATCHES = 14, 2
WARMUP, QUICK_WARMUP = 10, 2


def verify(
    seed: Annotated[int, typer.Option(help="Seed of prompts, responses, subsets and permutations.")] = 0,
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Prompts with both right and wrong answers (default {FULL_PROMPTS}, with --quick "
            f"{QUICK_PROMPTS}); with --credit prompts of a batch ({CREDIT_PROMPTS}).",
            show_default=False,
        ),
    ] = None,
    responses: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Responses per prompt (default {RESPONSES}, with --credit {CREDIT_RESPONSES}).",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file, too.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: exact checks as strict, reported figures coarse.")
    ] = False,
    credit: Annotated[
        bool,
        typer.Option(
            "--credit",
            help="Instead: one optimizer step under each mode of token credit, from one state and batch.",
        ),
    ] = False,
    batches: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"With --credit: batches (default {BATCHES}, with --quick {QUICK_BATCHES}).",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"With --credit: plain steps before the state that all steps start from (default {WARMUP}, "
            f"with --quick {QUICK_WARMUP}).",
            show_default=False,
        ),
    ] = None,
    model: of_model.Model = None,
    data: of_model.Data = None,
    from_trace: of_model.FromTrace = None,
    cases: of_model.Cases = None,
    max_prompts: of_model.MaxPrompts = None,
    max_tokens: of_model.MaxTokens = None,
    temperature: of_model.Temperature = None,
    threshold: of_model.Threshold = None,
    factor: of_model.Factor = None,
    permutations: of_model.Permutations = None,
    batch: of_model.Batch = None,
    device: of_model.Device = None,
    dtype: of_model.Dtype = None,
    threads: of_model.Threads = None,
    last_number: of_model.LastNumber = False,
) -> None:
    """Prove on the embedded model that influence scores are right, and report how good they are.

    With --credit: what one step under each mode of token credit does to exact accuracy. With --model and
    --data: the same for any model and prompts, and how well token values find the first false equation of
    rejected responses. With --from-trace: the last alone, in a trace on disk.
    Exits with 0 only when every exact check holds, with 1 otherwise.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ArcherError(
            f"--json {json_file}: there is no folder {json_file.absolute().parent}; make it first."
        )
    if json_file is not None:
        plain_file(json_file)
    if not credit and (batches is not None or warmup is not None):
        raise ArcherError("--batches and --warmup are of --credit; add it, or leave them out.")
    given = {
        "data": data,
        "cases": cases,
        "max-prompts": max_prompts,
        "max-tokens": max_tokens,
        "temperature": temperature,
        "threshold": threshold,
        "projection-dim-factor": factor,
        "permutations": permutations,
        "batch": batch,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "last-number": last_number,
    }
    of_model.check_choice(model, from_trace, credit, given)
    begin = time.perf_counter()
    console = Console(emoji=False)
    settings: dict[str, Any]
    if model is not None or from_trace is not None:
        if prompts is not None:
            raise ArcherError("--prompts is of the embedded model; with --model it is --max-prompts.")
        results, settings = _run_model(console, model, from_trace, seed, responses, quick, given)
    elif credit:
        count, each = prompts or CREDIT_PROMPTS, responses or CREDIT_RESPONSES
        many = (QUICK_BATCHES if quick else BATCHES) if batches is None else batches
        before = (QUICK_WARMUP if quick else WARMUP) if warmup is None else warmup
        results = _run_credit(console, seed, count, each, many, before)
        settings = {"seed": seed, "prompts": count, "responses": each, "batches": many, "warmup": before}
    else:
        count, each = prompts or (QUICK_PROMPTS if quick else FULL_PROMPTS), responses or RESPONSES
        results = _run(console, seed, count, each, quick)
        settings = {"seed": seed, "prompts": count, "responses": each, "quick": quick}
    seconds = time.perf_counter() - begin
    print_report(console, results, "" if model is not None else "in float64")
    if json_file is not None:
        checks = [result.to_json() for result in results]
        passed = None if from_trace is not None else all_hold(results)
        document = {"passed": passed, **settings, "seconds": round(seconds, 3), "checks": checks}
        write_atomically(json_file, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if from_trace is not None:  # nothing exact is checked there
        return
    console.print(verdict(results, seconds), highlight=False)
    raise typer.Exit(0 if all_hold(results) else 1)


def _run_model(
    console: Console,
    model: str | None,
    trace: Path | None,
    seed: int,
    responses: int | None,
    quick: bool,
    given: dict[str, Any],
) -> tuple[list[CheckResult], dict[str, Any]]:
    """A model on prompts, or a trace; the results, and what the JSON file says of the run."""
    with console.status("loading torch"):
        from transformers.utils import logging as transformers_logging

        from archer.verify.gather import GatherOptions
        from archer.verify.model_command import verify_model, verify_trace

        transformers_logging.disable_progress_bar()
    threshold = of_model.THRESHOLD if given["threshold"] is None else given["threshold"]
    said = {"seed": seed, "threshold": threshold}
    if trace is not None:
        results, counts = verify_trace(console, trace, threshold, seed)
        return results, {"trace": str(trace), **said, **counts}
    assert model is not None

    def chosen(name: str, default: Any) -> Any:
        return default if given[name] is None else given[name]

    options = GatherOptions(
        model=model,
        data=tuple(given["data"]),
        cases=chosen("cases", of_model.CASES),
        max_prompts=chosen("max-prompts", of_model.MAX_PROMPTS),
        responses=responses or RESPONSES,
        max_tokens=chosen("max-tokens", of_model.MAX_TOKENS),
        temperature=chosen("temperature", of_model.TEMPERATURE),
        batch=chosen("batch", of_model.BATCH),
        seed=seed,
        device=chosen("device", "auto"),
        dtype=chosen("dtype", "auto"),
        threads=chosen("threads", 0),
        factor=chosen("projection-dim-factor", of_model.FACTOR),
        budget=of_model.BUDGET,
        permutations=chosen("permutations", of_model.PERMUTATIONS),
        last_number=given["last-number"],
    )
    results, counts = verify_model(console, options, threshold, quick)
    return results, {**asdict(options), **said, "quick": quick, **counts, "cases_wanted": options.cases}


def _run_credit(
    console: Console, seed: int, prompts: int, responses: int, batches: int, warmup: int
) -> list[CheckResult]:
    """Run the one-step test of token credit with a line of progress for each check."""
    with console.status("loading torch"):
        from transformers.utils import logging as transformers_logging

        from archer.verify import suite
        from archer.verify.credit_checks import credit_checks
        from archer.verify.one_step import OneStep

        transformers_logging.disable_progress_bar()
    results = []
    with suite.one_thread():
        with console.status(f"training {warmup} plain steps"):
            steps = OneStep(prompts, responses, seed, warmup)
        with steps:
            console.print(
                f"embedded default after {warmup} plain steps of {prompts} prompts x {responses} responses, "
                f"exact accuracy {steps.accuracy:.1%} (seed {seed})",
                highlight=False,
            )
            for check in credit_checks(steps, batches):
                with console.status(check.name):
                    results.append(suite.run(check))
                console.print(progress_line(results[-1]), highlight=False)
    return results


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
