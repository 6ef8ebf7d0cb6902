"""The group of a run to look at first: one whose responses disagree, and whose tokens say why."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.viewer.nearest import nearest_pair
from archer.viewer.runs import TimelineStep, TracedRun
from archer.viewer.steps import StepCache, StepData

TRIED = 6
"""Steps that are opened at most to find one."""


@dataclass(frozen=True)
class Telling:
    """A group, one of its responses, and the response beside it."""

    step: int
    group: int
    row: int
    beside: int | None
    token: int | None  # the token of `row` that stands out most
    metric: str  # by which it stands out
    why: str

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def telling_group(run: TracedRun, number: int, cache: StepCache) -> Telling | None:
    """The most telling group of the newest step that has one; None for a run without responses.

    Steps with influence come first, newest first. A step's groups are ranked by 4 p (1 - p) of the accepted
    share p, times the mean |influence| (without influence: the mean entropy) over the group's tokens
    where it was computed.
    """
    sound = [step for step in run.timeline() if not step.problems and step.statistics.rows != 0]
    scored = [step for step in sound if step.statistics.influence_tokens]
    fallback: Telling | None = None
    for step in _newest(scored, sound):
        try:
            data = cache.get(number, step.step)
            if not data.arrays.rows:
                continue
            found = _of_step(data)
        except ArcherError:
            continue  # damaged: another step tells
        if found is not None:
            return found
        fallback = fallback or _any_group(data)
    return fallback


def _newest(scored: list[TimelineStep], sound: list[TimelineStep]) -> list[TimelineStep]:
    first = scored[::-1][:TRIED]
    rest = [step for step in sound[::-1] if step not in first]
    return (first + rest)[:TRIED]


def _of_step(data: StepData) -> Telling | None:
    """The mixed group of a step with the highest rank."""
    accepted, judged = data.arrays.accepted, data.arrays.judged
    if accepted is None:
        return None
    metric = "influence" if _has(data, "influence") else "entropy"
    computed = _has(data, metric)
    best: tuple[float, int, float] | None = None
    for group in np.unique(data.groups).tolist():
        rows = data.rows_of_group(group)
        rows = rows[judged[rows]]
        share = float(accepted[rows].mean()) if rows.size else 0.0
        if not 0 < share < 1:
            continue
        values = np.abs(_valid(data, metric, rows))
        size = (float(values.mean()) if values.size else 0.0) if computed else 1.0
        rank = 4 * share * (1 - share) * size
        if best is None or rank > best[0]:
            best = (rank, group, share)
    if best is None:
        return None
    _, group, share = best
    rows = data.rows_of_group(group)
    rejected = rows[judged[rows] & ~accepted[rows]]
    row = max(rejected.tolist(), key=lambda each: _peak(data, metric, each)[0])
    size = len(rows)
    good = round(share * int(judged[rows].sum()))
    why = f"{good} of {size} accepted; of the mixed groups of step {data.step} "
    why += f"its tokens have the largest {metric} for their disagreement" if computed else "it disagrees most"
    pair = nearest_pair(data, group, row)
    return Telling(data.step, group, row, pair.beside, _peak(data, metric, row)[1], metric, why)


def _any_group(data: StepData) -> Telling:
    """The first group of a step in which no group is mixed."""
    group = data.first_group
    pair = nearest_pair(data, group)
    why = f"no group of step {data.step} has both accepted and rejected responses; this is the first one"
    return Telling(data.step, group, pair.row, pair.beside, None, "entropy", why)


def _has(data: StepData, metric: str) -> bool:
    return metric in data.metrics and _valid(data, metric, np.arange(data.arrays.rows)).size > 0


def _valid(data: StepData, metric: str, rows: NDArray[np.int64]) -> np.ndarray:
    values = data.metric(metric)[rows][data.arrays.response_mask[rows]].astype(np.float64)
    return values[np.isfinite(values)]


def _peak(data: StepData, metric: str, row: int) -> tuple[float, int | None]:
    """How far the token that stands out most stands out, and which it is: for influence the most negative."""
    values = data.metric(metric)[row].astype(np.float64)
    usable = data.arrays.response_mask[row] & np.isfinite(values)
    if not usable.any():
        return -np.inf, None
    signed = -values if metric == "influence" else values
    token = int(np.argmax(np.where(usable, signed, -np.inf)))
    return float(signed[token]), token
