"""The tracer against explicit gradients, an explicit H^-1 and a loop over (response, token)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.engines.local.batch import MicroBatch
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.config import OutputFunction
from archer.influence.oracle import Gradients, brute_force_scores, explicit_gradients, position_factors
from archer.verify.captured import capture_update, joined
from archer.verify.forward import grpo_loss, token_log_probs
from archer.verify.result import CheckResult, Figure, at_most, exact
from archer.verify.sample import Sample
from archer.verify.statistics import relative_error

BASE = InfluenceConfig(enable=True, projection_dim_factor=16)
DEFAULT = replace(BASE, output_function="training_loss")
LOG_PROB = replace(BASE, output_function="log_prob")
MODES: dict[str, InfluenceConfig] = {
    "defaults (inverse, response, training_loss)": DEFAULT,
    "identity": replace(DEFAULT, hessian_mode="identity"),
    "inverse, token": replace(DEFAULT, hessian_source="token"),
    "log_prob": LOG_PROB,
    "log_prob, own response excluded": replace(LOG_PROB, exclude_self_response=True),
    "log_prob, own response excluded, mean": replace(
        LOG_PROB, exclude_self_response=True, contrastive_agg="mean"
    ),
    "log_prob, own response excluded, identity": replace(
        LOG_PROB, exclude_self_response=True, hessian_mode="identity"
    ),
    "log_prob, token_norm": replace(LOG_PROB, score_normalization="token_norm"),
    "log_prob, kernel_trace": replace(LOG_PROB, reg_rule="kernel_trace"),
    "log_prob, reg_lambda=0.01": replace(LOG_PROB, reg_lambda=0.01),
    "log_prob, all_selected": replace(LOG_PROB, accepted_rejected_scope="all_selected"),
    "log_prob_advantage": replace(BASE, output_function="log_prob_advantage"),
    "log_prob_reward": replace(BASE, output_function="log_prob_reward"),
}


def check_brute_force(model: PreTrainedModel, sample: Sample) -> CheckResult:
    """Every mode of MODES; each objective is captured once, in one real backward of the GRPO loss."""
    captured = {}
    gradients = {}
    for objective in sorted({config.output_function for config in MODES.values()}):
        captured[objective] = capture_update(model, sample, replace(BASE, output_function=objective))
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
        figures.append(
            at_most(f"{what}: relative error", relative_error(joined(found), joined(expected)), 1e-8)
        )
    return exact(
        "tracer against brute force",
        "Hooks, projections, damping, solve and contrast together give what the definitions say.",
        figures,
    )


def _compared(sample: Sample, config: InfluenceConfig) -> tuple[Group, ...]:
    if config.accepted_rejected_scope == "per_prompt":
        return sample.groups
    rows = tuple(row for group in sample.groups for row in group.rows)
    return (Group("all", rows, tuple(flag for group in sample.groups for flag in group.accepted)),)


def _explicit(model: PreTrainedModel, sample: Sample, objective: OutputFunction) -> Gradients:
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

    modules = InfluenceTracer(model, BASE).modules
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
