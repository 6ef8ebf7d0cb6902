"""Score statistics and rank correlation against plain loops."""

import math

import numpy as np
import pytest

from archer.ablation.statistics import QUANTILES, ScoreStatistics, centred_ranks, rank_correlations


def plain_ranks(values: list[float]) -> list[float]:
    """Rank from 1 by counting; equal values share the mean of their places."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]


def plain_spearman(x: list[float], y: list[float]) -> float | None:
    """Pearson's correlation of the ranks; None where one side has no order."""
    rx, ry = plain_ranks(x), plain_ranks(y)
    mx, my = sum(rx) / len(rx), sum(ry) / len(ry)
    xy = sum((a - mx) * (b - my) for a, b in zip(rx, ry, strict=True))
    xx, yy = sum((a - mx) ** 2 for a in rx), sum((b - my) ** 2 for b in ry)
    return xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else None


def test_statistics_are_those_of_a_plain_loop_over_the_finite_scores() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=101).astype(np.float32)
    values[[3, 50]] = np.nan
    found = ScoreStatistics.of(values)
    finite = sorted(float(v) for v in values if not math.isnan(v))
    mean = sum(finite) / len(finite)
    assert found is not None and found.tokens == 99
    assert found.mean == pytest.approx(mean, rel=1e-12)
    assert found.std == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in finite) / 99), rel=1e-12)
    assert found.share_positive == sum(v > 0 for v in finite) / 99
    for quantile, value in zip(QUANTILES, found.quantiles, strict=True):
        place = quantile * 98
        below = math.floor(place)
        above = min(below + 1, 98)
        expected = finite[below] + (finite[above] - finite[below]) * (place - below)
        assert value == pytest.approx(expected, rel=1e-9)


def test_no_finite_score_has_no_statistics() -> None:
    assert ScoreStatistics.of(np.full(3, np.nan, np.float32)) is None


@pytest.mark.parametrize("seed", range(4))
def test_rank_correlation_of_each_group_is_that_of_a_plain_loop_ties_included(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, 60).astype(np.float32)  # many ties
    y = (x + rng.normal(size=60) * 2).round().astype(np.float32)
    groups = rng.integers(0, 5, 60)
    x[groups == 3] = 1.0  # no order in this group: it has no correlation
    found = rank_correlations(centred_ranks(x, groups), centred_ranks(y, groups), groups)
    expected = [plain_spearman(list(x[groups == g]), list(y[groups == g])) for g in range(5)]
    np.testing.assert_allclose(found, [e for e in expected if e is not None], atol=1e-12)
    assert len(found) == 4


def test_a_reversed_order_is_minus_one_and_nothing_has_no_correlation() -> None:
    x, one = np.array([3.0, 1.0, 2.0]), np.zeros(3, int)
    assert rank_correlations(centred_ranks(x, one), centred_ranks(-x, one), one) == [-1.0]
    empty, none = np.empty(0), np.empty(0, int)
    assert len(rank_correlations(centred_ranks(empty, none), centred_ranks(empty, none), none)) == 0
