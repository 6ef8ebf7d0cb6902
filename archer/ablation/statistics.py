"""The mathematics of the comparison: how scores are spread, and how alike two cases order the same tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class ScoreStatistics:
    """The spread of the finite scores of a case, in float64."""

    tokens: int
    mean: float
    std: float
    """sqrt(Σ (x - mean)² / n)"""
    quantiles: tuple[float, ...]
    """At `QUANTILES`, linear between neighbours."""
    share_positive: float
    """Σ [x > 0] / n"""

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> "ScoreStatistics | None":
        """Of [n] scores, NaN left out; None where there is none."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return None
        return cls(
            tokens=int(finite.size),
            mean=float(finite.mean()),
            std=float(finite.std()),
            quantiles=tuple(float(q) for q in np.quantile(finite, QUANTILES)),
            share_positive=float((finite > 0).mean()),
        )


def centred_ranks(values: NDArray[np.floating], groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """Rank of each of [n] values within its group, less the group's mean rank; equal values share their mean.

    groups: [n] numbers of the groups, in any order.
    """
    order = np.lexsort((values, groups))
    sorted_values, sorted_groups = values[order], groups[order]
    new_group = np.r_[True, sorted_groups[1:] != sorted_groups[:-1]][: len(order)]
    new_value = new_group | np.r_[True, sorted_values[1:] != sorted_values[:-1]][: len(order)]
    positions = np.arange(len(order), dtype=np.float64)
    ranks = np.empty(len(order))
    ranks[order] = _mean_of_runs(positions, new_value) - _mean_of_runs(positions, new_group)
    return ranks


def rank_correlations(
    x: NDArray[np.float64],  # [n] centred ranks
    y: NDArray[np.float64],  # [n] centred ranks within the same groups
    groups: NDArray[np.integer],  # [n]
) -> NDArray[np.float64]:
    """Spearman's ρ = Σ x y / sqrt(Σ x² Σ y²) of each group; one where x or y is constant is left out."""
    _, number = np.unique(groups, return_inverse=True)
    xy, xx, yy = (np.bincount(number, weights=product) for product in (x * y, x * x, y * y))
    ordered = (xx > 0) & (yy > 0)
    return xy[ordered] / np.sqrt(xx[ordered] * yy[ordered])


def _mean_of_runs(positions: NDArray[np.float64], begins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Replace each position by the mean of its run; a run begins where `begins` is set."""
    run = np.cumsum(begins) - 1
    return (np.bincount(run, weights=positions) / np.bincount(run))[run] if len(run) else positions
