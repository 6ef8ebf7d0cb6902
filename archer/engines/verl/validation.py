"""Accuracy on held-out prompts, from verl's validation rollout in the figures of Archer's evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

from archer.evaluation.samples import Sample
from archer.evaluation.summary import Summary, summarise


def validation_summary(
    sources: Sequence[str],
    uids: Sequence[str],
    infos: Mapping[str, Sequence[Any]],
    expected: Mapping[tuple[str, str], int],
) -> Summary:
    """Return the figures of a validation.

    sources, uids: data source and prompt of every response
    infos:         what the reward manager said of every response, by name
    expected:      responses that each (source, prompt) should have; one that failed counts as wrong
    """
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(uid for _, uid in expected))}
    found: dict[str, list[Sample]] = {uid: [] for uid in numbers}
    for position, uid in enumerate(uids):
        info = {name: values[position] for name, values in infos.items()}
        found[uid].append(_sample(numbers[uid], len(found[uid]), sources[position], info))
    for (source, uid), count in expected.items():
        while len(found[uid]) < count:
            found[uid].append(_sample(numbers[uid], len(found[uid]), source, FAILED))
    return summarise(sample for samples in found.values() for sample in samples)


FAILED = {"acc": 0.0, "score": 0.0, "tokens": 0.0, "finished": 0.0, "timeout": 0.0, "crash": 1.0}


def _sample(prompt: int, number: int, source: str, info: Mapping[str, Any]) -> Sample:
    failure = "timeout" if info["timeout"] else "crash" if info["crash"] else None
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
        failure=failure,
        majority=None,
    )
