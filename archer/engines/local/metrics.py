"""Metrics of a step in verl's names."""

from collections.abc import Sequence

import torch
from torch import Tensor

from archer.algorithms.rollout_correction import rollout_mismatch
from archer.engines.local.batch import Responses
from archer.engines.local.collect import Collected
from archer.rewards.types import RewardResult


def data_metrics(collected: Collected, token_rewards: Tensor, advantages: Tensor) -> dict[str, float]:
    """Rewards and lengths of the responses a step trains on, all and by the raw verdict.

    Accuracy, failures and group counts are those of everything sampled: dynamic sampling keeps mixed groups
    alone, whose accuracy would say nothing about the model.
    """
    judged = collected.judged
    mask = judged.responses.mask
    lengths = judged.responses.lengths.float()
    prompt_lengths = torch.tensor([float(len(prompt.token_ids)) for prompt in judged.responses.prompts])
    groups = collected.counts
    all_groups = groups.mixed + groups.all_correct + groups.all_wrong
    failures = [result.failure for result in collected.results if result.failure]
    correct = torch.tensor([float(result.correct) for result in collected.results])
    rewards = token_rewards.sum(-1)
    return {
        **_spread("critic/score", judged.scores),
        **_spread("critic/rewards", rewards),
        **_spread("critic/advantages", advantages[mask]),
        **_spread("response_length", lengths),
        **_by_verdict("critic/rewards", rewards, judged.correct),
        **_by_verdict("response_length", lengths, judged.correct),
        **_spread("prompt_length", prompt_lengths),
        "response_length/clip_ratio": _mean((~judged.responses.finished).float()),
        **_extras(collected.results),
        "reward/accuracy": _mean(correct),
        "reward/timeouts": float(sum(failure == "timeout" for failure in failures)),
        "reward/crashes": float(sum(failure != "timeout" for failure in failures)),
        "groups/mixed": float(groups.mixed),
        "groups/all_correct": float(groups.all_correct),
        "groups/all_wrong": float(groups.all_wrong),
        "groups/degenerate_share": (groups.all_correct + groups.all_wrong) / max(1, all_groups),
        "train/num_gen_batches": float(collected.generations),
    }


def _extras(results: Sequence[RewardResult]) -> dict[str, float]:
    """Means of the further figures that a reward function of one's own returned."""
    names = sorted({name for result in results for name in result.extra})
    return {
        f"reward/{name}": _mean(torch.tensor([r.extra[name] for r in results if name in r.extra]))
        for name in names
    }


def rollout_difference(responses: Responses, log_probs: Tensor) -> dict[str, float]:
    """How far the sampler is from the training forward, token by token, over all response tokens of a step.

    `training/...` are absolute differences of the sampled tokens' probabilities and log-probs, and the
    correlation of the former; `rollout_corr/...` the divergences of `rollout_mismatch`.

    log_probs: [N, L] of the training forward, before any update.
    """
    mask = responses.mask
    if not mask.any():
        return {}
    sampled, trained = responses.log_probs[mask].double(), log_probs[mask].double()
    probs = torch.stack((sampled.exp(), trained.exp()))
    difference, logs = (probs[0] - probs[1]).abs(), (sampled - trained).abs()
    metrics = {
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_log_probs_diff_mean": float(logs.mean()),
        "training/rollout_log_probs_diff_max": float(logs.max()),
    }
    if len(logs) > 1 and bool((probs.std(-1) > 0).all()):  # one token, or tokens all alike, have no spread
        metrics["training/rollout_probs_diff_std"] = float(difference.std())
        metrics["training/rollout_actor_probs_pearson_corr"] = float(torch.corrcoef(probs)[0, 1])
    mismatch = rollout_mismatch(log_probs, responses.log_probs, mask)
    return metrics | {f"rollout_corr/{name}": value for name, value in mismatch.items()}


def _by_verdict(name: str, values: Tensor, correct: Tensor) -> dict[str, float]:
    """Spread of [N] values over the right and over the wrong responses."""
    return _spread(f"{name}/correct", values[correct]) | _spread(f"{name}/wrong", values[~correct])


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{name}/mean": _mean(values),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0
