"""Scores against what small steps of the parameters really do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.influence import Group, InfluenceConfig, InfluenceTracer
from archer.influence.oracle import contrast_direction, token_loss_scores
from archer.verify.captured import capture_objective, every_position
from archer.verify.forward import forward_differentiable, token_log_probs
from archer.verify.result import CheckResult, at_least, at_most, exact
from archer.verify.sample import Sample
from archer.verify.statistics import pearson, relative_error

CONFIG = InfluenceConfig(enable=True, projection="none", hessian_mode="identity")
STEP = 1e-5  # length of a step, in the parameters' own units


def check_finite_differences(model: PreTrainedModel, sample: Sample, tokens: int) -> CheckResult:
    """Central differences in float64, along q for all tokens and along -g_t for `tokens` of them.

    q is the gradient of the contrast C = sum over accepted of mean log pi - sum over rejected of the same.
    Along q the measured change of each log pi_t is compared with the exact token-loss score. Along -g_t the
    measured change of C is compared with the tracer's identity score: captured at every position with
    J = sum_r mean_t log pi_t, G_r is the whole gradient of response r divided by the width of the batch, so
    the score times that width is <q, g_t>.
    """
    batch, group = sample.batch, sample.groups[0]
    lengths = sample.lengths

    def log_probs(run: Callable[..., object] = model) -> Tensor:
        return token_log_probs(run, batch)[batch.mask]

    def contrast() -> Tensor:
        return _contrast(log_probs().split(lengths), group)

    modules = InfluenceTracer(model, CONFIG).modules
    weights = [traced.module.get_parameter("weight") for traced in modules]
    q = contrast_direction(log_probs().split(lengths), group.accepted, weights)
    names = [f"{traced.name}.weight" for traced in modules]
    with forward_differentiable():
        predicted = token_loss_scores(model, dict(zip(names, q, strict=True)), log_probs)
    measured = _change(weights, q, log_probs)

    captured = capture_objective(
        model,
        every_position(batch),
        CONFIG,
        lambda: torch.stack([lp.mean() for lp in log_probs().split(lengths)]).sum(),
    )
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


def _contrast(log_probs: Sequence[Tensor], group: Group) -> Tensor:
    means = [lp.mean() if flag else -lp.mean() for lp, flag in zip(log_probs, group.accepted, strict=True)]
    return torch.stack(means).sum()


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


def _spread(sample: Sample, prompt_lengths: Tensor, tokens: int) -> list[tuple[int, int]]:
    """(row, position in its sequence) of `tokens` response tokens, evenly over all of them."""
    every = [
        (row, int(prompt_lengths[row]) + t - 1)
        for row, length in enumerate(sample.lengths)
        for t in range(length)
    ]
    return [every[i * len(every) // tokens] for i in range(tokens)]
