"""What the rules read and what they say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode


@dataclass(frozen=True)
class ViewerPlace:
    """Where in the viewer a finding is seen."""

    step: int
    group: int | None = None
    response: int | None = None


@dataclass(frozen=True)
class TraceFacts:
    """Statistics of one traced step; None where the trace cannot tell."""

    rows: int
    unjudged: int
    accepted: int
    doubtful: int | None = None  # accepted responses without the expected number; None: no ground truths
    doubtful_place: ViewerPlace | None = None
    duplicated: float | None = None  # share of groups whose prompt another group of the step has
    duplicated_place: ViewerPlace | None = None
    looping: float = 0.0  # share of responses that end in a loop
    looping_place: ViewerPlace | None = None
    entropy_tokens: tuple[tuple[str, float], ...] = ()  # tokens that carry the entropy, and their share of it


@dataclass(frozen=True)
class StepEvidence:
    """All that is known of a step."""

    step: int
    metrics: Mapping[str, float]
    trace: TraceFacts | None = None

    def get(self, name: str) -> float | None:
        """A metric; None where the step does not have it or it was not finite."""
        value = self.metrics.get(name)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Diagnosed:
    """One thing that is wrong, in words, with its evidence."""

    name: str
    step: int  # at which it could first be said
    what: str
    advice: str
    figures: dict[str, float] = field(default_factory=dict)
    place: ViewerPlace | None = None


def viewer_link(run: str, place: ViewerPlace) -> str:
    """The address of a place within the viewer: `#step/group/response?run=name`."""
    path = [place.step]
    for part in (place.group, place.response):
        if part is None:
            break
        path.append(part)
    return f"#{'/'.join(map(str, path))}?{urlencode({'run': run})}"
