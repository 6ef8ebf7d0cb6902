"""Per-token metrics of a step: what they are called, how they are coloured, and their summary statistics."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

NAMES = {"entropies": "entropy", "log_probs": "log_prob"}
"""Array names of a step file that the viewer calls otherwise; every other array keeps its name."""
LABELS = {
    "entropy": "entropy (nats)",
    "influence": "influence",
    "log_prob": "log-prob",
    "advantage": "advantage",
}
"""What the legend says of known metrics; the others go by their name."""
SIGNED = ("influence", "advantage")
"""Metrics that are centred on zero whatever the values of a step happen to be."""
ALWAYS_COMPUTED = ("entropy", "log_prob", "rollout_log_probs")
"""Metrics that every valid token of a traced step has; NaN there is a failure, not an absence."""


def failed_tokens(name: str, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """[N, L], True at valid tokens whose value is infinite, or NaN where there must be one.

    NaN of influence and the like says that it was not computed for the token.
    """
    return mask & (~np.isfinite(values) if name in ALWAYS_COMPUTED else np.isinf(values))


STATISTICS: dict[str, Callable[[np.ndarray], np.floating]] = {
    "mean": np.mean,
    "std": np.std,
    "mean_abs": lambda values: np.abs(values).mean(),
    "min": np.min,
    "p01": lambda values: np.percentile(values, 1),
    "median": lambda values: np.percentile(values, 50),
    "p99": lambda values: np.percentile(values, 99),
    "max": np.max,
    "positive_share": lambda values: (values > 0).mean(),
}


def spread_of(values: np.ndarray) -> dict[str, float | None]:
    """`count`, `missing` (NaN or infinite) and STATISTICS of the finite ones in float64; None without any."""
    finite = values[np.isfinite(values)].astype(np.float64)
    figures = {name: float(of(finite)) if finite.size else None for name, of in STATISTICS.items()}
    return {"count": finite.size, "missing": values.size - finite.size} | figures


def in_reading_order(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The known metrics in the order of LABELS, then the others by name."""
    known = {name: metrics[name] for name in LABELS if name in metrics}
    return known | dict(sorted(metrics.items(), key=lambda item: item[0]))


def ramp_of(name: str, spread: Mapping[str, float | None]) -> Literal["sequential", "diverging"]:
    """Diverging for what has two signs; a metric of one sign is coloured by its distance from zero."""
    two_signs = (spread["min"] or 0) < 0 < (spread["max"] or 0)
    return "diverging" if name in SIGNED or two_signs else "sequential"
