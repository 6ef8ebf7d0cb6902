"""The few numbers of a step that a timeline needs: they stand in the manifest, so no step file is opened
for them.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from archer.trace.schema import TraceStep

_COUNTS = ("rows", "tokens", "groups", "max_response_length", "influence_tokens")


@dataclass(frozen=True)
class StepStatistics:
    """Means are over valid tokens or over responses; None where the step has nothing to average or is from
    an older trace.
    """

    rows: int | None = None
    tokens: int | None = None
    groups: int | None = None
    mean_response_length: float | None = None
    max_response_length: int | None = None
    mean_entropy: float | None = None
    mean_log_prob: float | None = None
    mean_reward: float | None = None
    accepted_share: float | None = None
    mean_abs_influence: float | None = None
    influence_tokens: int | None = None
    """Tokens whose influence was computed."""

    @classmethod
    def of(cls, step: TraceStep) -> "StepStatistics":
        """Compute them, in float64, skipping NaN."""
        lengths, mask = step.lengths, step.response_mask
        influence = None if step.influence is None else np.abs(step.influence[mask])
        return cls(
            rows=step.rows,
            tokens=int(lengths.sum()),
            groups=None if step.group_id is None else int(np.unique(step.group_id).size),
            mean_response_length=_mean(lengths),
            max_response_length=int(lengths.max(initial=0)),
            mean_entropy=_mean(step.entropies[mask]),
            mean_log_prob=None if step.log_probs is None else _mean(step.log_probs[mask]),
            mean_reward=None if step.reward is None else _mean(step.reward),
            accepted_share=None if step.accepted is None else _mean(step.accepted),
            mean_abs_influence=None if influence is None else _mean(influence),
            influence_tokens=None if influence is None else int(np.isfinite(influence).sum()),
        )

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> "StepStatistics":
        """Read what a manifest line holds; unknown keys are left, values that are no finite number become
        None.
        """
        counts = {name: whole_number(line.get(name)) for name in _COUNTS}
        means = {f.name: finite_number(line.get(f.name)) for f in fields(cls) if f.name not in _COUNTS}
        return cls(**counts, **means)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and None, by field name."""
        return asdict(self)


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=np.float64)) if finite.size else None


def finite_number(value: object) -> float | None:
    """A JSON value as a number that is safe to plot, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return (
        value if -1e300 < value < 1e300 else None
    )  # comparisons, because a JSON integer may overflow a float


def whole_number(value: object) -> int | None:
    """A JSON value as a count, None for anything else."""
    number = finite_number(value)
    return None if number is None else int(number)
