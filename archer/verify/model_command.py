"""`archer verify --model` and `--from-trace`: what runs, its progress, and the tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from archer.errors import ArcherError
from archer.verify import suite
from archer.verify.gather import Gathered, GatherOptions, build, gather
from archer.verify.localisation import localisation
from archer.verify.model_checks import (
    CheckedGroup,
    check_factors,
    check_precision,
    check_slopes,
    check_solvers,
)
from archer.verify.model_quality import check_projection, check_step
from archer.verify.report import CheckResult, progress_line
from archer.verify.suite import Check
from archer.verify.token_methods import candidates
from archer.verify.traced_cases import cases_of_trace


@dataclass(frozen=True)
class ModelSizes:
    """How much of the first group each check works on."""

    stepped_tokens: int = 6
    subsets: int = 24


QUICK = ModelSizes(stepped_tokens=2, subsets=6)


def verify_model(
    console: Console, options: GatherOptions, threshold: float, quick: bool
) -> tuple[list[CheckResult], dict[str, Any]]:
    """Sample, check and compare; the results, and the counts for the JSON file."""
    with console.status(f"loading {options.model}"):
        generation = build(options)
    with console.status("sampling") as status:
        found = gather(generation, options, status.update, kept=1)
    console.print(found.told(), highlight=False)
    if len(found.cases) < options.cases:
        console.print(
            f"only {len(found.cases)} of {options.cases} cases: --max-prompts={options.max_prompts} "
            "were used up",
            style="yellow",
            highlight=False,
        )
    subject = CheckedGroup.of(generation.model, generation.compute.device, *found.groups[0])
    results = []
    for check in _checks(subject, QUICK if quick else ModelSizes(), options.seed):
        with console.status(check.name):
            results.append(suite.run(check))
        console.print(progress_line(results[-1]), highlight=False)
    if found.cases:
        with console.status("mistake localisation"):
            results += localisation(found.cases, candidates(), threshold, options.seed)
    return results, _counts(found)


def verify_trace(
    console: Console, path: Path, threshold: float, seed: int
) -> tuple[list[CheckResult], dict[str, Any]]:
    """Localisation alone, with the values that a trace holds."""
    with console.status(f"reading {path}"):
        found = cases_of_trace(path, seed)
    for problem in found.problems:
        console.print(f"left out: {problem}", style="yellow", markup=False, highlight=False)
    counts = {
        "steps": found.steps,
        "responses": found.responses,
        "rejected": found.rejected,
        "false": found.false,
        "cases": len(found.cases),
    }
    console.print(
        f"{found.folder}: {found.steps} steps, {found.responses} responses, {found.rejected} rejected, "
        f"{found.false} of them with a false equation, {len(found.cases)} of these with scores",
        highlight=False,
        soft_wrap=True,
    )
    if not found.cases:
        raise ArcherError(
            f"{found.folder}: no rejected response holds an equation that could be read as false."
        )
    return localisation(found.cases, (), threshold, seed), counts


def _checks(subject: CheckedGroup, sizes: ModelSizes, seed: int) -> Iterator[Check]:
    pair = subject.pair()
    for dtype in (torch.float32, torch.bfloat16):
        yield Check("captured factors", lambda d=dtype: check_factors(pair, d))  # type: ignore[misc]
    for dtype in (torch.float32, torch.bfloat16):
        yield Check("dual and primal", lambda d=dtype: check_solvers(subject, d))  # type: ignore[misc]
    yield Check("finite differences", lambda: check_slopes(pair, sizes.stepped_tokens))
    yield Check("bfloat16 and float32", lambda: check_precision(pair))
    yield Check("projection fidelity", lambda: check_projection(subject))
    yield Check("one-step counterfactual", lambda: check_step(subject, sizes.subsets, seed))


def _counts(found: Gathered) -> dict[str, Any]:
    return {
        "prompts_used": found.prompts,
        "responses_sampled": found.responses,
        "rejected": found.rejected,
        "false": found.false,
        "mixed_prompts": found.mixed,
        "cases": len(found.cases),
    }
