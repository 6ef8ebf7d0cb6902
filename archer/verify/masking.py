"""Counterfactual: what one real optimizer step loses when some tokens are left out of its loss."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from archer.config import default_config
from archer.influence import Group, InfluenceConfig
from archer.verify.capture import (
    baselines,
    capture_update,
    exact_token_scores,
    grpo_loss,
    joined,
    token_log_probs,
)
from archer.verify.report import CheckResult, Figure, reported
from archer.verify.sample import VerificationSample, permuted
from archer.verify.statistics import pearson

# One step moves all prompts at once, so a token is scored against the responses of all of them.
TRAINING_LOSS = InfluenceConfig(enable=True, projection_dim_factor=4, accepted_rejected_scope="all_selected")
LOG_PROB = replace(TRAINING_LOSS, output_function="log_prob")
SHARE = 5  # one token in five is left out
PERMUTATIONS = 5
Optimizers = dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]


def optimizers(recipe_rate: float) -> Optimizers:
    """The steps that are made, by name; each starts without history."""
    return {"SGD, lr 0.01": partial(torch.optim.SGD, lr=0.01)} | {
        f"AdamW, lr {written(rate)}": partial(torch.optim.AdamW, lr=rate, weight_decay=0.0)
        for rate in (1e-5, recipe_rate)
    }


def written(rate: float) -> str:
    """2e-4 for 0.0002."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def check_masking(model: PreTrainedModel, sample: VerificationSample, subsets: int, seed: int) -> CheckResult:
    """Correlate the contrast a step loses without some tokens with the summed scores of those tokens.

    The loss is the GRPO loss, whose token gradients are A_t times those of log pi_t; so a log_prob score
    times the advantage of its response predicts the change to first order. All subsets have one size, which
    makes the token-mean's normaliser the same for all of them.
    """
    tokens = sum(sample.lengths)
    generator = torch.Generator().manual_seed(seed)
    left_out = torch.zeros(subsets, tokens, dtype=torch.bool)
    for line in left_out:
        line[torch.randperm(tokens, generator=generator)[: tokens // SHARE]] = True
    rate = default_config().actor_rollout_ref.actor.optim.lr
    steps = optimizers(rate)
    lost = _contrast_lost(model, sample, left_out, steps)
    figures = []
    for what, scores in _predictors(model, sample, seed).items():
        summed = [left_out.double() @ values for values in scores]
        means = (sum(pearson(s, lost[name]) for s in summed) / len(summed) for name in steps)
        figures.append(Figure(what, tuple(means)))
    return reported(
        "counterfactual token masking",
        f"Pearson r of the summed scores of {subsets} random token subsets with what one real optimizer step "
        "from the same weights loses in (accepted - rejected) log-prob without them.",
        f"|r| below {2 / subsets**0.5:.2f} is noise. Scores are first-order slopes: they foresee a short "
        "step of SGD; the first step of AdamW follows the sign of each gradient entry instead, and at the "
        f"recipe's rate of {written(rate)} it is long. Token-loss scores are exact slopes of each "
        "token's own loss; the tracer's position gradients also carry later losses.",
        tuple(steps),
        figures,
    )


def _predictors(model: PreTrainedModel, sample: VerificationSample, seed: int) -> dict[str, list[Tensor]]:
    """Token values [T] under test; several for a null, whose correlations are averaged."""
    captured = capture_update(model, sample, LOG_PROB)
    every = dict(model.named_parameters())
    traced = {name: p for name, p in every.items() if name.removesuffix(".weight") in captured.factors.u}
    advantage = torch.repeat_interleave(sample.advantages.double(), torch.tensor(sample.lengths))

    def token_loss(weights: dict[str, nn.Parameter]) -> list[Tensor]:
        return [exact_token_scores(model, sample, weights)[1].double() * advantage]

    def influence(*groupings: tuple[Group, ...], **knobs: Any) -> list[Tensor]:
        return [joined(captured.scores(groups, **knobs)) * advantage for groups in groupings]

    true, shuffled = sample.groups, [permuted(sample.groups, seed + i) for i in range(PERMUTATIONS)]
    as_traced = capture_update(model, sample, TRAINING_LOSS)
    return {
        "exact token-loss score, all parameters, x advantage": token_loss(every),
        "exact token-loss score, traced modules, x advantage": token_loss(traced),
        "tracer (position gradients), identity, x advantage": influence(true, hessian_mode="identity"),
        "tracer, inverse, x advantage": influence(true),
        "tracer, inverse, own response excluded, x advantage": influence(true, exclude_self_response=True),
        "tracer, defaults (training_loss, inverse), as traced": [joined(as_traced.scores(true))],
        "null: identity, labels permuted, x advantage": influence(*shuffled, hessian_mode="identity"),
        "null: inverse, labels permuted, x advantage": influence(*shuffled),
        **{name: [joined(scores)] for name, scores in baselines(model, sample, seed).items()},
    }


def _contrast_lost(
    model: PreTrainedModel, sample: VerificationSample, left_out: Tensor, steps: Optimizers
) -> dict[str, Tensor]:
    """Contrast after a step with all tokens minus the contrast after a step without some, [subsets]."""
    batch = sample.batch
    policy = deepcopy(model)
    start = [parameter.detach().clone() for parameter in policy.parameters()]
    after: dict[str, list[Tensor]] = {name: [] for name in steps}
    nothing = torch.zeros(1, left_out.shape[1], dtype=torch.bool)
    for subset in torch.cat([nothing, left_out]):
        mask = batch.mask.masked_scatter(batch.mask, ~subset)
        loss = grpo_loss(token_log_probs(policy, batch), sample.advantages, mask)
        gradients = torch.autograd.grad(loss, list(policy.parameters()))
        for name, optimizer in steps.items():
            for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer(list(policy.parameters())).step()
            after[name].append(_contrast(policy, sample))
            with torch.no_grad():
                for parameter, value in zip(policy.parameters(), start, strict=True):
                    parameter.copy_(value)
    return {name: values[0] - torch.stack(values[1:]) for name, values in after.items()}


@torch.no_grad()
def _contrast(model: PreTrainedModel, sample: VerificationSample) -> Tensor:
    """sum over accepted of mean log pi - sum over rejected of the same."""
    batch = sample.batch
    means = token_log_probs(model, batch).double().sum(1) / batch.mask.sum(1)
    return torch.where(sample.rewards.bool(), means, -means).sum()
