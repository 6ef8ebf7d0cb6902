"""pass@k against every way of drawing k responses; the mean's standard error."""

import statistics
from itertools import combinations

import pytest

from archer.evaluation.summary import pass_at_k, pass_ks, standard_error


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_all_draws_of_k_responses_that_hold_a_right_one(n):
    for c in range(n + 1):
        responses = [i < c for i in range(n)]
        for k in range(1, n + 1):
            draws = list(combinations(responses, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_pass_at_1_is_the_share_of_right_responses_and_pass_at_n_whether_there_is_one():
    assert [pass_at_k(16, c, 1) for c in range(17)] == pytest.approx([c / 16 for c in range(17)])
    assert [pass_at_k(16, c, 16) for c in range(17)] == [0.0] + [1.0] * 16


def test_pass_at_k_of_thousands_of_responses_neither_overflows_nor_leaves_its_range():
    assert 0 < pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    assert pass_at_k(100_000, 99_999, 1) < 1


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def test_k_runs_over_powers_of_two_and_n():
    assert {n: pass_ks(n) for n in (1, 2, 3, 4, 6, 16)} == {
        1: (1,),
        2: (1, 2),
        3: (1, 2, 3),
        4: (1, 2, 4),
        6: (1, 2, 4, 6),
        16: (1, 2, 4, 8, 16),
    }


def test_the_standard_error_is_the_sample_deviation_over_the_root_of_the_count():
    values = [0.0, 0.25, 1.0, 0.5, 0.5]
    assert standard_error(values) == pytest.approx(statistics.stdev(values) / 5**0.5)
    assert standard_error([1.0]) is None
