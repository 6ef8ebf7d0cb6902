"""Per-token metrics of a step: what they are called, how they are coloured, and their summary statistics."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

NAMES = {"entropies": "entropy", "log_probs": "log_prob", "rollout_log_probs": "rollout_log_prob"}
"""Array names of a step file that the viewer calls otherwise; every other array keeps its name."""
LABELS = {
    "entropy": "entropy (nats)",
    "influence": "influence",
    "log_prob": "log-prob",
    "advantage": "advantage",
    "credit": "credit weight",
    "paid": "paid",
    "credit_score": "credit score",
    "rollout_log_prob": "rollout log-prob",
    "log_prob_difference": "training - rollout log-prob",
    "ratio_change": "ratio - 1",
    "clipped": "clipped (-1 low, +1 high)",
    "loss_weight": "loss weight",
}
"""What the legend says of known metrics; the others go by their name."""
SIGNED = (
    "influence",
    "advantage",
    "paid",
    "credit_score",
    "log_prob_difference",
    "ratio_change",
    "clipped",
)
"""Metrics that are centred on zero whatever the values of a step happen to be."""
UNSIGNED = ("entropy", "credit")
"""Metrics that are never below zero but by rounding; a value of -4e-5 does not make them signed."""
MAY_BE_MISSING = ("influence", "credit_score")
"""Metrics whose NaN says that nothing was computed; in any other, NaN inside the mask is a failure."""


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


def with_derived(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adds log pi_train - log pi_rollout; in place of the ratio puts ratio - 1, whose zero means unchanged.

    Where both log-probs are infinite their difference is NaN, as it must be.
    """
    found = dict(metrics)
    with np.errstate(invalid="ignore"):
        if "log_prob" in found and "rollout_log_prob" in found:
            pair = found["log_prob"], found["rollout_log_prob"]
            found["log_prob_difference"] = pair[0].astype(np.float32) - pair[1].astype(np.float32)
        if "ratio" in found:
            found["ratio_change"] = found.pop("ratio").astype(np.float32) - 1
    return found


FAILURES = {"NaN": 1, "+inf": 2, "-inf": 3}


def failures(name: str, values: np.ndarray, mask: np.ndarray, covered: np.ndarray) -> np.ndarray:
    """Uint8 [N, L]: 0, or which of FAILURES stands inside the mask where a number should; `covered` [N]."""
    failed = np.zeros(values.shape, np.uint8)
    failed[np.isposinf(values)] = FAILURES["+inf"]
    failed[np.isneginf(values)] = FAILURES["-inf"]
    if name not in MAY_BE_MISSING:
        failed[np.isnan(values)] = FAILURES["NaN"]
    failed[~mask] = 0
    failed[~covered] = 0
    return failed


def in_reading_order(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The known metrics in the order of LABELS, then the others by name."""
    known = {name: metrics[name] for name in LABELS if name in metrics}
    return known | dict(sorted(metrics.items(), key=lambda item: item[0]))


def ramp_of(name: str, spread: Mapping[str, float | None]) -> Literal["sequential", "diverging"]:
    """Diverging for what has two signs; a metric of one sign is coloured by its distance from zero."""
    two_signs = (spread["min"] or 0) < 0 < (spread["max"] or 0)
    if name in UNSIGNED:
        return "sequential"
    return "diverging" if name in SIGNED or two_signs else "sequential"
