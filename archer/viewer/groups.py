"""The groups of a step in figures: how much their verdicts disagree, their tokens, what went wrong."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archer.trace.vocab import Vocab
from archer.viewer.prompts import prompt_id, prompt_key, prompt_texts, told_apart
from archer.viewer.steps import StepData


@dataclass(frozen=True)
class GroupFigures:
    """One group. Means of tokens are over all valid tokens of the group with a finite value, sign kept."""

    responses: int
    accepted: float | None
    """Share p of the judged responses; None without a judged one."""
    disagreement: float | None
    """p (1 - p): 0 where all verdicts agree, 0.25 at an even split."""
    reward: float | None
    reward_variance: float | None
    length: float | None
    entropy: float | None
    influence: float | None
    influence_abs: float | None
    unjudged: int
    truncated: int | None
    """Responses that hit the length limit; None where the trace does not say."""


def group_rows(groups: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows of every group, groups in the order of their first row."""
    if not groups.size:
        return []
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    return sorted(np.split(order, cuts), key=lambda rows: int(rows[0]))


def group_figures(data: StepData, rows: NDArray[np.int64]) -> GroupFigures:
    """The figures of one group, from the arrays of its step."""
    arrays = data.arrays
    judged = rows[arrays.judged[rows]]
    share = None if arrays.accepted is None else _mean(arrays.accepted[judged])
    rewards = None if arrays.reward is None else arrays.reward[judged]
    influence = _tokens(data, "influence", rows)
    return GroupFigures(
        responses=len(rows),
        accepted=share,
        disagreement=None if share is None else share * (1 - share),
        reward=None if rewards is None else _mean(rewards),
        reward_variance=None if rewards is None else _mean((rewards - (_mean(rewards) or 0.0)) ** 2),
        length=_mean(arrays.lengths[rows]),
        entropy=_mean(_tokens(data, "entropy", rows)),
        influence=_mean(influence),
        influence_abs=_mean(np.abs(influence)),
        unjudged=len(rows) - len(judged),
        truncated=None if arrays.truncated is None else int(arrays.truncated[rows].sum()),
    )


def groups_json(data: StepData, vocab: Vocab | None) -> list[dict[str, Any]]:
    """Every group with its prompt, what tells the prompt apart, and its figures."""
    members = group_rows(data.groups)
    first = [int(rows[0]) for rows in members]
    texts = prompt_texts(data, first, vocab)
    told = told_apart([text for text in texts if text is not None])
    previews = iter(told)
    found = []
    for row, rows, text in zip(first, members, texts, strict=True):
        prompt = data.arrays.prompt(row)
        key = None if prompt is None else prompt_key(vocab, prompt)
        found.append(
            {
                "group": int(data.groups[row]),
                "prompt": text,
                "told": None if text is None else next(previews),
                "prompt_key": key,
                "prompt_id": prompt_id(data, row, key),
                "figures": asdict(group_figures(data, rows)),
            }
        )
    return found


def _tokens(data: StepData, metric: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    if metric not in data.metrics:
        return np.empty(0)
    values = data.metrics[metric][rows][data.arrays.response_mask[rows]].astype(np.float64)
    return values[np.isfinite(values)]


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=np.float64)) if finite.size else None
