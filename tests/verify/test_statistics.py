"""Every statistic equals its definition, written as plain loops."""

import math

import pytest
import torch

from archer.verify.statistics import auc, pearson, ranks, relative_error, spearman


def drawn(n: int, seed: int, distinct: int = 5) -> torch.Tensor:
    """Few distinct values, so that there are ties."""
    return torch.randint(0, distinct, (n,), generator=torch.Generator().manual_seed(seed)).double()


def looped_ranks(values: list[float]) -> list[float]:
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def looped_pearson(x: list[float], y: list[float]) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


@pytest.mark.parametrize("seed", range(5))
def test_ranks_share_the_mean_of_tied_places(seed):
    values = drawn(17, seed)
    assert ranks(values).tolist() == looped_ranks(values.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_auc_is_the_share_of_pairs_in_order_with_ties_counted_half(seed):
    positive, negative = drawn(11, seed) + 1, drawn(19, 100 + seed)
    pairs = [(p > n) + (p == n) / 2 for p in positive.tolist() for n in negative.tolist()]
    assert auc(positive, negative) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_auc_knows_order_reversal_and_nothing():
    low, high = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert (auc(high, low), auc(low, high), auc(low, low)) == (1.0, 0.0, 0.5)
    assert math.isnan(auc(torch.tensor([]), low))


@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_loops(seed):
    x, y = drawn(13, seed), drawn(13, 50 + seed)
    assert pearson(x, y) == pytest.approx(looped_pearson(x.tolist(), y.tolist()), abs=1e-12)
    expected = looped_pearson(looped_ranks(x.tolist()), looped_ranks(y.tolist()))
    assert spearman(x, y) == pytest.approx(expected, abs=1e-12)


def test_correlation_with_a_constant_is_undefined():
    assert math.isnan(pearson(torch.ones(4), torch.arange(4.0)))


def test_relative_error_is_measured_against_the_largest_expected_value():
    assert relative_error(torch.tensor([1.0, 4.5]), torch.tensor([1.0, 5.0])) == pytest.approx(0.1)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.ones(2), torch.zeros(2)) == math.inf
    assert math.isnan(relative_error(torch.tensor([math.nan]), torch.ones(1)))
