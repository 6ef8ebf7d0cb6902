"""The checks of `archer verify --credit`: exact accuracy, steps that compare, and what each mode is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from archer.evaluation.summary import mean, standard_error
from archer.generation.batch import micro_batch
from archer.verify.capture import exact_copy, token_log_probs
from archer.verify.one_step import MODES, PLAIN, OneStep, Stepped
from archer.verify.report import CheckResult, Figure, at_most, exact, reported
from archer.verify.sample import COMPUTE
from archer.verify.suite import Check

COLUMNS = ("points", "minus none", "s.e.", "share higher", "weight, rejected")
PLAIN_PROMPTS = 8  # right responses that go through the float64 copy, one after the other


def credit_checks(steps: OneStep, batches: int) -> Iterator[Check]:
    """All checks in their order."""
    yield Check("exact accuracy", lambda: check_exact(steps))
    yield Check("same state, same batch", lambda: check_replay(steps))
    yield Check("one step under each mode", lambda: check_modes(steps, batches))


def check_exact(steps: OneStep) -> CheckResult:
    """exp Σ log π of right responses against one forward each, unpadded, in float64."""
    responses = steps.exact.responses
    assert responses is not None
    found = steps.exact.probabilities()[:PLAIN_PROMPTS]
    model = exact_copy(steps.trainer.policy.model)
    with torch.no_grad():
        expected = torch.stack(
            [
                token_log_probs(model, micro_batch(responses, [row], COMPUTE.device)).sum().exp()
                for row in range(len(found))
            ]
        )
    return exact(
        "exact accuracy against a plain forward",
        "What is compared is the probability of the right response, not an estimate of it.",
        [at_most("largest relative error", float(((found - expected) / expected).abs().max()), 1e-4)],
    )


def check_replay(steps: OneStep) -> CheckResult:
    """A plain step, another mode's, and the plain one again: the first and the last are the same."""
    first, _ = steps.weights_after(0, MODES[PLAIN])
    other, _ = steps.weights_after(0, MODES["spare_confident"])
    again, _ = steps.weights_after(0, MODES[PLAIN])
    same = float((first - other).abs().max()) == 0
    return exact(
        "every mode starts from the same state with the same batch",
        "Modes differ in their weights of tokens alone.",
        [
            at_most("largest difference between two plain steps", float((first - again).abs().max()), 0.0),
            at_most("modes whose step is the plain one", float(same), 0.0),
        ],
    )


def check_modes(steps: OneStep, batches: int) -> CheckResult:
    """Change of exact accuracy by one step, and its difference to that of a plain step on the same batch."""
    table = steps.table(batches, MODES)
    figures = [Figure(name, _values(table[name], table[PLAIN])) for name in MODES]
    return reported(
        "one optimizer step under each mode of token credit",
        f"Change of exact accuracy ({steps.accuracy:.1%} before) in points, the mean over {batches} batches.",
        "minus none: the mean difference to the step without credit on the same batch, with its standard "
        "error and the share of batches at which the mode is higher. weight, rejected: mean weight of the "
        "tokens of rejected responses. A mode is worth something where it is above its permuted control.",
        COLUMNS,
        figures,
    )


def _values(found: Sequence[Stepped], plain: Sequence[Stepped]) -> tuple[float, ...]:
    changes = [100 * one.change for one in found]
    differences = [100 * (one.change - other.change) for one, other in zip(found, plain, strict=True)]
    error = standard_error(differences)
    weights = [one.weight for one in found if not math.isnan(one.weight)]
    return (
        mean(changes),
        mean(differences),
        math.nan if error is None else error,
        mean([float(difference > 0) for difference in differences]),
        mean(weights) if weights else math.nan,
    )
