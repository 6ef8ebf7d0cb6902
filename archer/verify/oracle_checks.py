"""Exact checks of the whole: the tracer against brute force, and against small steps of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.generation.batch import MicroBatch
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.config import OutputFunction
from archer.influence.oracle import Gradients, brute_force_scores, explicit_gradients, position_factors
from archer.verify.capture import (
    capture_objective,
    capture_update,
    every_position,
    exact_token_scores,
    grpo_loss,
    joined,
    token_log_probs,
)
from archer.verify.report import CheckResult, Figure, at_least, at_most, exact
from archer.verify.sample import VerificationSample
from archer.verify.statistics import pearson, relative_error

DEFAULT = InfluenceConfig(enable=True, projection_dim_factor=16, output_function="training_loss")
LOG_PROB = replace(DEFAULT, output_function="log_prob")
EXCLUDED = replace(LOG_PROB, exclude_self_response=True)
MODES: dict[str, InfluenceConfig] = {
    "defaults (inverse, response, training_loss)": DEFAULT,
    "identity": replace(DEFAULT, hessian_mode="identity"),
    "inverse, token": replace(DEFAULT, hessian_source="token"),
    "log_prob": LOG_PROB,
    "log_prob, own response excluded": EXCLUDED,
    "log_prob, own response excluded, mean": replace(EXCLUDED, contrastive_agg="mean"),
    "log_prob, own response excluded, identity": replace(EXCLUDED, hessian_mode="identity"),
    "log_prob, token_norm": replace(LOG_PROB, score_normalization="token_norm"),
    "log_prob, kernel_trace": replace(LOG_PROB, reg_rule="kernel_trace"),
    "log_prob, reg_lambda=0.01": replace(LOG_PROB, reg_lambda=0.01),
    "log_prob, all_selected": replace(LOG_PROB, accepted_rejected_scope="all_selected"),
    "log_prob_advantage": replace(DEFAULT, output_function="log_prob_advantage"),
    "log_prob_reward": replace(DEFAULT, output_function="log_prob_reward"),
}


def check_brute_force(model: PreTrainedModel, sample: VerificationSample) -> CheckResult:
    """Every mode of MODES; each objective is captured once, in one real backward of the GRPO loss."""
    captured, gradients = {}, {}
    for objective in sorted({config.output_function for config in MODES.values()}):
        captured[objective] = capture_update(model, sample, replace(DEFAULT, output_function=objective))
        gradients[objective] = _explicit(model, sample, objective)
    figures: list[Figure] = []
    for what, config in MODES.items():
        objective = config.output_function
        found = replace(captured[objective], config=config).scores(sample.groups)
        expected = {
            row: scores
            for group in _compared(sample, config)
            for row, scores in brute_force_scores(gradients[objective], group, config).items()
        }
        error = relative_error(joined(found), joined(expected))
        figures.append(at_most(f"{what}: relative error", error, 1e-8))
    return exact(
        "tracer against brute force",
        "Hooks, projections, damping, solve and contrast together give what the definitions say.",
        figures,
    )


def _compared(sample: VerificationSample, config: InfluenceConfig) -> tuple[Group, ...]:
    if config.accepted_rejected_scope == "per_prompt":
        return sample.groups
    rows = tuple(row for group in sample.groups for row in group.rows)
    return (Group("all", rows, tuple(flag for group in sample.groups for flag in group.accepted)),)


def _explicit(model: PreTrainedModel, sample: VerificationSample, objective: OutputFunction) -> Gradients:
    batch = sample.batch

    def value() -> Tensor:
        log_probs = token_log_probs(model, batch)
        if objective == "training_loss":
            return grpo_loss(log_probs, sample.advantages, batch.mask)
        weights = {
            "log_prob": torch.ones_like(sample.advantages),
            "log_prob_advantage": sample.advantages,
            "log_prob_reward": sample.rewards,
        }[objective]
        return (weights.to(log_probs)[:, None] * log_probs).sum()

    modules = InfluenceTracer(model, DEFAULT).modules
    return explicit_gradients(modules, position_factors(modules, value), _emitting_positions(batch))


def _emitting_positions(batch: MicroBatch) -> Layout:
    """Token t of a response is emitted at `prompt length + t - 1`, written out once more by a plain loop."""
    n, width = batch.input_ids.shape
    row, token = torch.full((n * width,), -1), torch.zeros(n * width, dtype=torch.int64)
    for i in range(n):
        for t in range(int(batch.mask[i].sum())):
            position = i * width + int(batch.prompt_lengths[i]) + t - 1
            row[position], token[position] = int(batch.rows[i]), t
    return Layout(row, token)


IDENTITY = InfluenceConfig(enable=True, projection="none", hessian_mode="identity")
STEP = 1e-5  # length of a step, in the parameters' own units


def check_finite_differences(model: PreTrainedModel, sample: VerificationSample, tokens: int) -> CheckResult:
    """Central differences in float64, along q for all tokens and along -g_t for `tokens` of them.

    q is the gradient of the contrast C = sum over accepted of mean log pi - sum over rejected of the same.
    Along q the measured change of each log pi_t is compared with the exact token-loss score. Along -g_t the
    measured change of C is compared with the tracer's identity score: captured at every position with
    J = sum_r mean_t log pi_t, G_r is the whole gradient of response r divided by the width of the batch, so
    the score times that width is <q, g_t>.
    """
    batch, group = sample.batch, sample.groups[0]

    def log_probs() -> Tensor:
        return token_log_probs(model, batch)[batch.mask]

    def means() -> Tensor:
        return torch.stack([lp.mean() for lp in log_probs().split(sample.lengths)])

    def contrast() -> Tensor:
        return (means() * (2 * sample.rewards - 1)).sum()

    modules = InfluenceTracer(model, IDENTITY).modules
    named = {f"{traced.name}.weight": traced.module.get_parameter("weight") for traced in modules}
    weights = list(named.values())
    q, predicted = exact_token_scores(model, sample, named)
    measured = _change(weights, q, log_probs)

    captured = capture_objective(model, every_position(batch), IDENTITY, lambda: means().sum())
    model.zero_grad(set_to_none=True)
    scores = captured.scores((group,))
    factors, width = captured.factors, batch.input_ids.shape[1]
    told, seen = [], []
    for row, position in _spread(sample, batch.prompt_lengths, tokens):
        line = factors.positions[row][position]
        step = [-torch.outer(factors.u[t.name][line], factors.v[t.name][line]) for t in modules]
        told.append(-width * scores[row][position])
        seen.append(_change(weights, step, contrast))
    return exact(
        "finite differences",
        "Scores are slopes: small steps of the real parameters change log-probs and contrast as they say.",
        [
            at_least("along q, exact token-loss scores: Pearson r", pearson(predicted, measured), 0.999),
            at_most("along q: relative error", relative_error(measured, predicted), 1e-5),
            at_most(
                f"along -g_t, tracer scores of {tokens} tokens: relative error",
                relative_error(torch.stack(seen), torch.stack(told)),
                1e-5,
            ),
        ],
    )


@torch.no_grad()
def _change(weights: Sequence[Tensor], direction: Sequence[Tensor], measure: Callable[[], Tensor]) -> Tensor:
    """Slope of `measure` along d: (m(theta + eps d) - m(theta - eps d)) / (2 eps) with |eps d| = STEP."""
    eps = STEP / float(torch.stack([d.norm() for d in direction]).norm())
    before = [weight.clone() for weight in weights]
    sides = []
    for sign in (eps, -eps):
        for weight, start, d in zip(weights, before, direction, strict=True):
            weight.copy_(start + sign * d)
        sides.append(measure())
    for weight, start in zip(weights, before, strict=True):
        weight.copy_(start)
    return (sides[0] - sides[1]) / (2 * eps)


def _spread(sample: VerificationSample, prompt_lengths: Tensor, tokens: int) -> list[tuple[int, int]]:
    """(row, position in its sequence) of `tokens` response tokens, evenly over all of them."""
    every = [
        (row, int(prompt_lengths[row]) + t - 1)
        for row, length in enumerate(sample.lengths)
        for t in range(length)
    ]
    return [every[i * len(every) // tokens] for i in range(tokens)]
