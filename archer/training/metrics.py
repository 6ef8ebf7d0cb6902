"""What is measured of a step, in verl's metric names, the same for both engines."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.groups import GroupCounts
from archer.algorithms.rollout_correction import rollout_mismatch
from archer.generation.judge import failures_of
from archer.rewards import RewardResult
from archer.rewards.rules import NO_OPINION


@dataclass(frozen=True)
class Sampled:
    """Everything sampled for a step, kept or not: dynamic sampling keeps mixed groups alone."""

    results: tuple[RewardResult, ...]  # of every response
    counts: GroupCounts  # of every group
    generations: int
    tokens: int  # of all responses
    warning: str | None = None  # what the user should know about it

    @property
    def notes(self) -> list[str]:
        """What the user should know: too few groups, responses that could not be judged."""
        notes = [self.warning] if self.warning else []
        failures = [failure for failure in failures_of(self.results) if failure != NO_OPINION]
        if failures:
            notes.append(
                f"{len(failures)} of {len(self.results)} responses could not be judged and are left out; "
                f"the first: {failures[0]}"
            )
        return notes


OWN_FIGURES = ("accuracy", "unjudged", "timeouts", "no_opinion", "crashes")


def sampling_metrics(sampled: Sampled) -> dict[str, float]:
    """Accuracy, failures and group counts of everything sampled; of what is kept they would say nothing."""
    results, groups = sampled.results, sampled.counts
    failures = failures_of(results)
    verdicts = [float(result.correct) for result in results if not result.unjudged]
    total = groups.degenerate + groups.mixed
    # Of one response a prompt there is nothing to contrast, and no group is worse for it.
    share = {"groups/degenerate_share": groups.degenerate / total} if len(results) != total else {}
    return {
        **_extras(results),
        "reward/accuracy": _mean(torch.tensor(verdicts)),
        "reward/unjudged": float(len(failures)),
        "reward/timeouts": float(failures.count("timeout")),
        "reward/no_opinion": float(failures.count(NO_OPINION)),
        "reward/crashes": float(sum(failure not in ("timeout", NO_OPINION) for failure in failures)),
        "groups/mixed": float(groups.mixed),
        "groups/all_correct": float(groups.all_correct),
        "groups/all_wrong": float(groups.all_wrong),
        "groups/unjudged": float(groups.unjudged),
        **share,
        "train/num_gen_batches": float(sampled.generations),
    }


def response_metrics(
    scores: Tensor,  # [N] as judged and shaped
    rewards: Tensor,  # [N] scores less the KL in the reward
    lengths: Tensor,  # [N]
    finished: Tensor,  # [N] bool
    correct: Tensor,  # [N] bool
    judged: Tensor,  # [N] bool: the others have no reward and no verdict
) -> dict[str, float]:
    """Rewards and lengths of the responses that a step trains on, all and by the raw verdict."""
    lengths = lengths.float()
    return {
        **spread("critic/score", scores[judged]),
        **spread("critic/rewards", rewards[judged]),
        **spread("response_length", lengths),
        **_by_verdict("critic/rewards", rewards[judged], correct[judged]),
        **_by_verdict("response_length", lengths[judged], correct[judged]),
        "response_length/clip_ratio": _mean((~finished).float()),
    }


def _extras(results: Sequence[RewardResult]) -> dict[str, float]:
    """Means of the further figures that a custom reward function returned; its texts have none."""
    figures: dict[str, list[float]] = {}
    for result in results:
        for name, value in result.extra.items():
            if not isinstance(value, str):
                figures.setdefault(name, []).append(value)
    return {_metric_of(name): _mean(torch.tensor(figures[name])) for name in sorted(figures)}


def _metric_of(extra: str) -> str:
    """A function's own figures never stand in for Archer's."""
    return f"reward/extra_{extra}" if not extra or extra in OWN_FIGURES else f"reward/{extra}"


def rollout_difference(rollout_log_probs: Tensor, log_probs: Tensor, mask: Tensor) -> dict[str, float]:
    """How far the sampler is from the training forward, token by token, over all response tokens of a step.

    `training/...` are absolute differences of the sampled tokens' probabilities and log-probs, and the
    correlation of the former; `rollout_corr/...` the divergences of `rollout_mismatch`.

    rollout_log_probs: [N, L] as sampled
    log_probs:         [N, L] of the training forward, before any update
    mask:              [N, L]
    """
    if not mask.any():
        return {}
    sampled, trained = rollout_log_probs[mask].double(), log_probs[mask].double()
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
    mismatch = rollout_mismatch(log_probs, rollout_log_probs, mask)
    return metrics | {f"rollout_corr/{name}": value for name, value in mismatch.items()}


def _by_verdict(name: str, values: Tensor, correct: Tensor) -> dict[str, float]:
    """Spread of [N] values over the right and over the wrong responses."""
    return spread(f"{name}/correct", values[correct]) | spread(f"{name}/wrong", values[~correct])


def spread(name: str, values: Tensor) -> dict[str, float]:
    """Mean, largest and smallest of some values; nothing where there are none."""
    if not len(values):
        return {}
    return {
        f"{name}/mean": _mean(values),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0


class TokenSums:
    """Adds per-token values over micro-batches; the mean is over every token seen, not over micro-batches.

    Sums stay on the device until they are asked for: reading each would make the host wait for it.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # [2] float64: sum of values, number of tokens

    @torch.no_grad()
    def add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add an [n, L] tensor at the True positions of its mask."""
        added = torch.stack((torch.where(mask, values, 0).double().sum(), mask.sum().double()))
        self._sums[name] = self._sums[name] + added if name in self._sums else added

    def means(self) -> dict[str, float]:
        """Return name -> mean over all tokens added; a name without any token is left out."""
        read = {name: sums.tolist() for name, sums in self._sums.items()}
        return {name: total / tokens for name, (total, tokens) in read.items() if tokens}


class Timings:
    """`with timings("gen"): ...` adds to the seconds of that phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase; on CUDA its queued work counts too."""
        started = time.perf_counter()
        yield
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Return the phases in verl's names."""
        return {f"timing_s/{name}": value for name, value in self.seconds.items()}
