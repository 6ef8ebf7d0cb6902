"""How good scores are: what a projection keeps, and how well they find the first wrong step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import torch
from transformers import PreTrainedModel

from archer.influence import Group, InfluenceConfig
from archer.verify.capture import Captured, Scores, baselines, capture_update
from archer.verify.report import CheckResult, Figure, reported
from archer.verify.sample import VerificationSample, permuted
from archer.verify.statistics import auc, spearman

FACTORS = (32, 16, 8, 4, 2)
# Without caps, so that k really is d // factor.
UNCAPPED = InfluenceConfig(
    enable=True,
    output_function="log_prob",
    exclude_self_response=True,
    max_proj_vector_sum=0,
    max_hessian_dim=0,
)
MODES: dict[str, dict[str, Any]] = {
    "inverse": {},
    "inverse, reg_rule=kernel_trace": {"reg_rule": "kernel_trace"},
    "identity": {"hessian_mode": "identity"},
}


def check_projection(model: PreTrainedModel, sample: VerificationSample) -> CheckResult:
    """Spearman correlation of token scores with those of projection=none, the mean over groups."""
    exact = capture_update(model, sample, replace(UNCAPPED, projection="none"))
    projected = [
        capture_update(model, sample, replace(UNCAPPED, projection_dim_factor=factor)) for factor in FACTORS
    ]
    figures = []
    for what, knobs in MODES.items():
        expected = exact.scores(sample.groups, **knobs)
        line = [
            _agreement(captured.scores(sample.groups, **knobs), expected, sample) for captured in projected
        ]
        rising = all(a <= b for a, b in pairwise(line))
        figures.append(Figure(f"{what} ({'monotone' if rising else 'not monotone'})", tuple(line)))
    return reported(
        "projection fidelity",
        "How much of the ranking of tokens a projection keeps: Spearman correlation with exact scores, by "
        "projection_dim_factor.",
        "With the default reg_rule lambda shrinks as D grows, so inverse mode compares differently damped "
        "scores; kernel_trace keeps the damping. Each size is one draw, so chance may break the order.",
        tuple(f"1/{factor}" for factor in FACTORS),
        figures,
    )


def _agreement(found: Scores, expected: Scores, sample: VerificationSample) -> float:
    return _mean(
        [
            spearman(*(torch.cat([scores[row] for row in group.rows]) for scores in (found, expected)))
            for group in sample.groups
        ]
    )


Method = Callable[[tuple[Group, ...]], Scores]
"""Token values from labelled groups; high values say 'mistake'."""

LOG_PROB = InfluenceConfig(enable=True, output_function="log_prob", projection_dim_factor=4)
TRAINING_LOSS = InfluenceConfig(enable=True, output_function="training_loss", projection_dim_factor=4)
EXCLUDED: dict[str, Any] = {"exclude_self_response": True}
MEAN = EXCLUDED | {"contrastive_agg": "mean"}
VARIANTS: dict[str, tuple[InfluenceConfig, dict[str, Any]]] = {
    "inverse, own response excluded": (LOG_PROB, EXCLUDED),
    "  ... with contrastive_agg=mean": (LOG_PROB, MEAN),
    "  ... and reg_rule=kernel_trace": (LOG_PROB, MEAN | {"reg_rule": "kernel_trace"}),
    "identity, own response excluded": (LOG_PROB, EXCLUDED | {"hessian_mode": "identity"}),
    "inverse, own response included": (LOG_PROB, {}),
    "identity, own response included": (LOG_PROB, {"hessian_mode": "identity"}),
    "inverse, own response excluded, training_loss": (TRAINING_LOSS, EXCLUDED),
    "inverse, own response included, training_loss": (TRAINING_LOSS, {}),
}


def check_mistakes(
    model: PreTrainedModel, sample: VerificationSample, permutations: int, seed: int
) -> CheckResult:
    """AUC over the tokens of truly rejected responses, positive the tokens of the first mistake.

    Influence says 'mistake' by a low score: the token pulls away from the accepted responses. A null has the
    labels permuted within each group before scoring. The last column tells how well the mean score of a
    response then separates the permuted labels, which only a leak of the own label makes possible.
    """
    shuffled = [permuted(sample.groups, seed + i) for i in range(permutations)]
    figures = []
    for what, method in _methods(model, sample, seed).items():
        scores = method(sample.groups)
        nulls = [method(groups) for groups in shuffled]
        values = []
        for steps_only in (False, True):
            values.append(_found(scores, sample, steps_only))
            values.append(_mean([_found(null, sample, steps_only) for null in nulls]))
        leaks = [_told_apart(null, groups, sample) for null, groups in zip(nulls, shuffled, strict=True)]
        figures.append(Figure(what, (*values, _mean(leaks))))
    return reported(
        "first wrong step of rejected responses",
        "How well token values single out the tokens of the first mistake, as AUC beside the AUC under "
        "permuted accept / reject labels.",
        "Influence is of log_prob where nothing else is said, and a low score says 'mistake'. Most tokens "
        "leave the model no choice, and any measure of doubt tells those from the written sums, where steps "
        "are decided; among the sums the question is which one is wrong. Chance is 0.5; under sum with "
        "unequal numbers of verdicts a null need not be. A null equal to its figure belongs to a method that "
        "sees no labels. Label leak: how well mean scores of responses tell permuted labels apart.",
        ("all tokens", "null", "written sums", "null (sums)", "label leak"),
        figures,
    )


def _methods(model: PreTrainedModel, sample: VerificationSample, seed: int) -> dict[str, Method]:
    captured = {config: capture_update(model, sample, config) for config in (LOG_PROB, TRAINING_LOSS)}
    methods = {what: _influence(captured[config], knobs) for what, (config, knobs) in VARIANTS.items()}
    plain = baselines(model, sample, seed)
    return methods | {
        "entropy": lambda _: plain["entropy"],
        "-log-prob": lambda _: plain["-log-prob"],
        "|advantage|": lambda groups: _advantages(sample, groups),
        "random": lambda _: plain["random"],
    }


def _influence(captured: Captured, knobs: dict[str, Any]) -> Method:
    return lambda groups: {row: -scores for row, scores in captured.scores(groups, **knobs).items()}


def _advantages(sample: VerificationSample, groups: tuple[Group, ...]) -> Scores:
    """|advantage| at every token, under the labels given: all accepted responses of a group have the same."""
    scores = {}
    for true, given in zip(sample.groups, groups, strict=True):
        sizes = sample.advantages[list(true.rows)].abs().double()
        size = dict(zip(true.accepted, sizes, strict=True))
        for row, flag in zip(given.rows, given.accepted, strict=True):
            scores[row] = size[flag].repeat(sample.lengths[row])
    return scores


def _found(scores: Scores, sample: VerificationSample, steps_only: bool) -> float:
    """AUC of the first mistake's tokens among the tokens (of written sums only) of rejected responses."""
    positive: list[float] = []
    negative: list[float] = []
    for row in (sample.rewards == 0).nonzero()[:, 0].tolist():
        for token, value in enumerate(scores[row].tolist()):
            if not steps_only or token in sample.steps[row]:
                (positive if token in sample.mistakes[row] else negative).append(value)
    return auc(torch.tensor(positive), torch.tensor(negative))


def _told_apart(scores: Scores, groups: tuple[Group, ...], sample: VerificationSample) -> float:
    """AUC with which the mean score of a response separates the rejected from the accepted of its group.

    Pairs of responses with the same text are left out: nothing could tell those apart.
    """
    wins, pairs = 0.0, 0
    tokens = sample.responses.tokens
    for group in groups:
        mean = {row: float(scores[row].mean()) for row in group.rows}
        label = dict(zip(group.rows, group.accepted, strict=True))
        for rejected, accepted in product(group.rows, group.rows):
            if label[rejected] or not label[accepted] or torch.equal(tokens[rejected], tokens[accepted]):
                continue
            pairs += 1
            wins += (mean[rejected] > mean[accepted]) + (mean[rejected] == mean[accepted]) / 2
    return wins / pairs if pairs else float("nan")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
