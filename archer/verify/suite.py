"""All checks in their order, with the sizes they run at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from archer.errors import ArcherError
from archer.verify.capture import exact_copy
from archer.verify.exact_checks import check_alignment, check_factors, check_objectives, check_solvers
from archer.verify.masking import check_masking
from archer.verify.oracle_checks import check_brute_force, check_finite_differences
from archer.verify.quality_checks import check_mistakes, check_projection
from archer.verify.report import CheckResult
from archer.verify.sample import VerificationSample


@dataclass(frozen=True)
class Sizes:
    """How much of the sample each check works on."""

    exact_prompts: int = 2
    exact_responses: int = 4  # per prompt
    stepped_tokens: int = 8  # tokens whose -g_t is stepped along
    projection_prompts: int = 6
    masking_prompts: int = 4
    masked_subsets: int = 100
    permutations: int = 8


FULL = Sizes()
QUICK = Sizes(
    exact_prompts=1,
    exact_responses=2,
    stepped_tokens=2,
    projection_prompts=1,
    masking_prompts=1,
    masked_subsets=8,
    permutations=1,
)


@dataclass(frozen=True)
class Check:
    """A check that has not run yet."""

    name: str
    run: Callable[[], CheckResult]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: small products gain little from more, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def checks(model: PreTrainedModel, sample: VerificationSample, sizes: Sizes, seed: int) -> Iterator[Check]:
    """The exact checks on a float64 copy of the model, then the reported ones on the model itself."""
    precise = exact_copy(model)
    responses = max(len(group.rows) for group in sample.groups)
    small = sample.narrowed(sizes.exact_prompts, sizes.exact_responses)
    one = sample.narrowed(1, responses)
    yield Check("captured factors", lambda: check_factors(precise, small))
    yield Check("alignment", lambda: check_alignment(precise, one))
    yield Check("dual and primal", lambda: check_solvers(precise, small))
    yield Check("brute force", lambda: check_brute_force(precise, small))
    yield Check("objectives", lambda: check_objectives(precise, small))
    yield Check("finite differences", lambda: check_finite_differences(precise, one, sizes.stepped_tokens))
    few = sample.narrowed(sizes.projection_prompts, responses)
    yield Check("projection fidelity", lambda: check_projection(model, few))
    batch = sample.narrowed(sizes.masking_prompts, responses)
    yield Check("token masking", lambda: check_masking(model, batch, sizes.masked_subsets, seed))
    yield Check("first wrong step", lambda: check_mistakes(model, sample, sizes.permutations, seed))


def run(check: Check) -> CheckResult:
    """The result with the seconds it took; a check that Archer itself refuses has failed."""
    begin = time.perf_counter()
    try:
        result = check.run()
    except ArcherError as error:
        result = CheckResult(check.name, f"could not run: {error}", (), (), passed=False)
    return replace(result, seconds=time.perf_counter() - begin)
