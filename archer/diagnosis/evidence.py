"""What the rules read and what they say."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlencode

Severity = Literal["critical", "warning"]
"""critical: what follows is not worth its compute; warning: it still learns, but badly."""


@dataclass(frozen=True)
class ViewerPlace:
    """Where in the viewer a finding is seen."""

    step: int
    group: int | None = None
    response: int | None = None

    def link(self, run: str) -> str:
        """The address of the place within the viewer: `#step/group/response?run=name`."""
        path = [self.step]
        for part in (self.group, self.response):
            if part is None:
                break
            path.append(part)
        return f"#{'/'.join(map(str, path))}?{urlencode({'run': run})}"


@dataclass(frozen=True)
class TraceFacts:
    """What one traced step tells beyond single numbers."""

    metrics: Mapping[str, float]  # figures in the names of `metrics.jsonl`, and `trace/...` of their own
    places: Mapping[str, ViewerPlace]  # name of a figure -> a response that shows it
    entropy_of: Mapping[str, float]  # token -> its part of the mean entropy, the largest ones


@dataclass(frozen=True)
class StepEvidence:
    """All that is known of a step."""

    step: int
    metrics: Mapping[str, float | None]
    trace: TraceFacts | None = None


@dataclass(frozen=True)
class Point:
    """A figure at a step."""

    step: int
    value: float


@dataclass(frozen=True)
class RunFinding:
    """One thing that is wrong, in words, with its evidence."""

    name: str
    severity: Severity
    since: int  # step at which it began, as far as can be told
    step: int  # step at which it could first be said
    what: str
    advice: str
    figures: Mapping[str, float] = field(default_factory=dict)
    place: ViewerPlace | None = None
    tokens: tuple[str, ...] = ()  # those that carry it, the most telling first
    until: int = 0  # last step at which it held


class History:
    """The steps so far as columns: name -> points in the order of steps.

    A logged metric counts before the same figure out of the trace: it covers all responses and epochs.
    """

    def __init__(self) -> None:
        self.step = -1
        self.columns: dict[str, list[Point]] = {}
        self.traces: dict[int, TraceFacts] = {}

    def append(self, evidence: StepEvidence) -> None:
        """Add the next step."""
        self.step = evidence.step
        figures: dict[str, float | None] = {}
        if evidence.trace is not None:
            self.traces[evidence.step] = evidence.trace
            figures |= evidence.trace.metrics
        figures |= {name: value for name, value in evidence.metrics.items() if value is not None}
        for name, value in figures.items():
            if value is not None and math.isfinite(value):
                self.columns.setdefault(name, []).append(Point(evidence.step, float(value)))

    def all(self, name: str) -> list[Point]:
        """All points of a column."""
        return self.columns.get(name, [])

    def last(self, name: str, count: int) -> list[Point]:
        """The newest `count` points; none where the newest step lacks the figure, or there are too few."""
        points = self.all(name)
        current = len(points) >= count and points[-1].step == self.step
        return points[-count:] if current else []

    def at(self, name: str, step: int) -> Point | None:
        """The point of a step."""
        points = self.all(name)
        place = bisect_left(points, step, key=lambda point: point.step)
        return points[place] if place < len(points) and points[place].step == step else None

    def now(self, name: str) -> float | None:
        """The figure of the newest step."""
        points = self.last(name, 1)
        return points[0].value if points else None

    def place(self, name: str) -> ViewerPlace | None:
        """A response of the newest step that shows a figure; the step alone where it is traced at all."""
        facts = self.traces.get(self.step)
        return None if facts is None else facts.places.get(name, ViewerPlace(self.step))


def mean(points: list[Point]) -> float:
    """Mean value of some points."""
    return sum(point.value for point in points) / len(points)
