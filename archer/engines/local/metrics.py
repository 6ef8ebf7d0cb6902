"""Metrics of a step in verl's names."""

from collections.abc import Sequence

import torch
from torch import Tensor

from archer.engines.local.batch import Responses
from archer.engines.local.collect import Collected
from archer.rewards.types import RewardResult


def data_metrics(collected: Collected, token_rewards: Tensor, advantages: Tensor) -> dict[str, float]:
    """Rewards and lengths of the responses a step trains on.

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
    return {
        **_spread("critic/score", judged.scores),
        **_spread("critic/rewards", token_rewards.sum(-1)),
        **_spread("critic/advantages", advantages[mask]),
        **_spread("response_length", lengths),
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
    """How far the sampler's token probabilities are from the training forward's, |p_rollout - p_train|."""
    mask = responses.mask
    difference = (responses.log_probs[mask].exp() - log_probs[mask].exp()).abs()
    logs = (responses.log_probs[mask] - log_probs[mask]).abs()
    if not len(difference):
        return {}
    return {
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_log_probs_diff_mean": float(logs.mean()),
        "training/rollout_log_probs_diff_max": float(logs.max()),
    }


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
