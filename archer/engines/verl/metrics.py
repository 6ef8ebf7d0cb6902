"""Metrics of a step in the local engine's names, put together from what ranks and rewards report."""

from collections.abc import Sequence

from archer.engines.verl.buffer import Sampled
from archer.engines.verl.worker import RankUpdate
from archer.influence import Selection

LARGEST = ("timing_s/", "influence_trace/debug_weight_versions", "influence_trace/debug_portions")
"""Metrics of which the ranks' largest counts; all others add up."""


def update_metrics(updates: Sequence[RankUpdate], optimizer_steps: int) -> dict[str, float]:
    """Means over all tokens of the step, and loss terms averaged over its optimizer steps."""
    names = dict.fromkeys(name for update in updates for name in update.sums)
    metrics = {}
    for name in names:
        pairs = [update.sums[name] for update in updates if name in update.sums]
        tokens = sum(count for _, count in pairs)
        if tokens:
            metrics[f"actor/{name}"] = sum(total for total, _ in pairs) / tokens
    for name in dict.fromkeys(name for update in updates for name in update.terms):
        total = sum(update.terms.get(name, 0.0) for update in updates)
        metrics[f"actor/{name}"] = total / max(1, optimizer_steps)
    metrics["actor/skipped_updates"] = float(max(update.skipped for update in updates))
    return metrics


def influence_metrics(updates: Sequence[RankUpdate], selection: Selection) -> dict[str, float]:
    """Counts of all ranks together, times of the slowest."""
    metrics: dict[str, float] = {}
    for update in updates:
        for name, value in update.trace.metrics.items():
            before = metrics.get(name, 0.0)
            metrics[name] = max(before, value) if name.startswith(LARGEST) else before + value
    return metrics | {
        "influence_trace/selected_prompts": float(len(selection.groups)),
        "influence_trace/selected_responses": float(len(selection.rows)),
        "influence_trace/skipped_all_accepted": float(selection.skipped_all_accepted),
        "influence_trace/skipped_all_rejected": float(selection.skipped_all_rejected),
        "influence_trace/debug_skipped_by_cap": float(selection.skipped_by_cap),
    }


def reward_metrics(sampled: Sampled) -> dict[str, float]:
    """Accuracy, failures and group counts of everything sampled, kept or not."""
    verdicts, groups = sampled.verdicts, sampled.counts
    degenerate = groups.all_correct + groups.all_wrong
    names = sorted({name for verdict in verdicts for name in verdict.extra})
    return {
        **{f"reward/{name}": _mean([v.extra[name] for v in verdicts if name in v.extra]) for name in names},
        "reward/accuracy": _mean([float(verdict.correct) for verdict in verdicts]),
        "reward/timeouts": float(sum(verdict.timeout for verdict in verdicts)),
        "reward/crashes": float(sum(verdict.crash for verdict in verdicts)),
        "groups/mixed": float(groups.mixed),
        "groups/all_correct": float(groups.all_correct),
        "groups/all_wrong": float(groups.all_wrong),
        "groups/degenerate_share": degenerate / max(1, degenerate + groups.mixed),
        "train/num_gen_batches": float(sampled.generations),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
