"""Per-token metrics of a step: what they are called, how they are coloured, and their summary statistics."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from archer.trace.schema import SPECS

Ramp = Literal["sequential", "diverging"]

NAMES = {"entropies": "entropy", "log_probs": "log_prob"}
"""Array names of a step file that the viewer calls otherwise; every other array keeps its name."""
LABELS = {
    "entropy": "entropy (nats)",
    "log_prob": "log-prob",
    "influence": "influence",
    "advantage": "advantage",
}
SIGNED = ("influence", "advantage")
"""Metrics that are centred on zero whatever the values of a step happen to be."""
ORDER = ("entropy", "influence", "log_prob", "advantage")
BOUND_PERCENTILE = 99.0


@dataclass(frozen=True, eq=False)
class TokenMetric:
    """One value per token of a step; NaN inside the mask means that it was not computed."""

    name: str
    values: np.ndarray  # [N, L]

    @property
    def label(self) -> str:
        """What the legend says."""
        return LABELS.get(self.name, self.name)


@dataclass(frozen=True)
class Spread:
    """Summary statistics of the finite values of some tokens, in float64; None where there are none."""

    count: int
    missing: int
    mean: float | None
    std: float | None
    mean_abs: float | None
    min: float | None
    p01: float | None
    median: float | None
    p99: float | None
    max: float | None
    positive_share: float | None

    @classmethod
    def of(cls, values: np.ndarray) -> "Spread":
        """Of the values inside the mask, NaN and infinite ones counted as missing."""
        finite = values[np.isfinite(values)].astype(np.float64)
        missing = int(values.size - finite.size)
        if not finite.size:
            return cls(0, missing, None, None, None, None, None, None, None, None, None)
        p01, median, p99 = np.percentile(finite, (1, 50, 99))
        return cls(
            count=int(finite.size),
            missing=missing,
            mean=float(finite.mean()),
            std=float(finite.std()),
            mean_abs=float(np.abs(finite).mean()),
            min=float(finite.min()),
            p01=float(p01),
            median=float(median),
            p99=float(p99),
            max=float(finite.max()),
            positive_share=float((finite > 0).mean()),
        )


def viewer_name(array: str) -> str:
    """The name of a metric from the name of its array."""
    return NAMES.get(array, array)


def sorted_metrics(metrics: list[TokenMetric]) -> tuple[TokenMetric, ...]:
    """The known metrics in reading order, then the others by name."""
    rank = {name: index for index, name in enumerate(ORDER)}
    return tuple(sorted(metrics, key=lambda metric: (rank.get(metric.name, len(ORDER)), metric.name)))


def is_known_array(name: str) -> bool:
    """Whether the trace's contract already says what this array is."""
    return name in SPECS


def ramp_of(name: str, spread: Spread) -> Ramp:
    """Diverging for what has two signs; a metric of one sign is coloured by its distance from zero."""
    two_signs = spread.min is not None and spread.max is not None and spread.min < 0 < spread.max
    return "diverging" if name in SIGNED or two_signs else "sequential"


def bound_of(values: np.ndarray) -> float:
    """99th percentile of |value|, so that one outlier does not bleach the rest; 1 where all are zero."""
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    bound = float(np.percentile(finite, BOUND_PERCENTILE)) if finite.size else 0.0
    return bound if bound > 0 else 1.0
