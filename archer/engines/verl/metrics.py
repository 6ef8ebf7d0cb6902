"""Metrics of a step in the local engine's names, put together from what ranks and rewards report."""

from collections.abc import Mapping, Sequence
from typing import Any

from archer.engines.verl.worker import RankUpdate
from archer.evaluation.summary import Sample, Summary, summarise
from archer.generation.judge import failures_of, refuse_outage
from archer.influence import Selection
from archer.rewards.config import RewardConfig

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


def validation_summary(
    sources: Sequence[str],
    uids: Sequence[str],
    infos: Mapping[str, Sequence[Any]],
    expected: Mapping[tuple[str, str], int],
    reward: RewardConfig,
    where: str,
) -> Summary:
    """Return the figures of a validation; too many unjudged responses are an error, which names `where`.

    sources, uids: data source and prompt of every response
    infos:         what the reward manager said of every response, by name
    expected:      responses that each (source, prompt) should have; those that are missing are unjudged
    """
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(uid for _, uid in expected))}
    found: dict[str, list[Sample]] = {uid: [] for uid in numbers}
    for position, uid in enumerate(uids):
        info = {name: values[position] for name, values in infos.items()}
        found[uid].append(_sample(numbers[uid], len(found[uid]), sources[position], info))
    for (source, uid), count in expected.items():
        while len(found[uid]) < count:
            found[uid].append(_sample(numbers[uid], len(found[uid]), source, FAILED))
    samples = [sample for some in found.values() for sample in some]
    refuse_outage(failures_of(samples), len(samples), reward, where)
    return summarise(samples)


MISSING = "crash: the response could not be sampled; engine.worker_logs=True shows why"
FAILED = {"acc": 0.0, "score": 0.0, "tokens": 0.0, "finished": 0.0, "failure": MISSING}


def _sample(prompt: int, number: int, source: str, info: Mapping[str, Any]) -> Sample:
    return Sample(
        prompt_index=prompt,
        sample=number,
        data_source=source,
        prompt="",
        ground_truth=None,
        response="",
        answer=None,
        correct=bool(info["acc"]),
        score=float(info["score"]),
        tokens=int(info["tokens"]),
        finished=bool(info["finished"]),
        failure=info["failure"] or None,
        majority=None,
    )
