"""The scores of cases: their spread, which tokens of two cases are compared, and their rank correlation."""

import math

import numpy as np
import pytest

from archer.ablation.scores import (
    QUANTILES,
    agreements,
    centred_ranks,
    rank_correlations,
    score_statistics,
    scored_step,
    shared_tokens,
)

MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]], bool)
GROUP = [0, 0, 1, 1]


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
    found = score_statistics(values)
    finite = sorted(float(v) for v in values if not math.isnan(v))
    mean = sum(finite) / len(finite)
    assert found["tokens_scored"] == 99
    assert found["score_mean"] == pytest.approx(mean, rel=1e-12)
    assert found["score_std"] == pytest.approx(
        math.sqrt(sum((v - mean) ** 2 for v in finite) / 99), rel=1e-12
    )
    assert found["score_share_positive"] == sum(v > 0 for v in finite) / 99
    for quantile in QUANTILES:
        place = quantile * 98
        below = math.floor(place)
        above = min(below + 1, 98)
        expected = finite[below] + (finite[above] - finite[below]) * (place - below)
        assert found[f"score_q{100 * quantile:02.0f}"] == pytest.approx(expected, rel=1e-9)


def test_no_finite_score_has_no_statistics() -> None:
    assert score_statistics(np.full(3, np.nan, np.float32)) == {}


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


def scores(seed: int) -> np.ndarray:
    return np.where(MASK, np.random.default_rng(seed).normal(size=MASK.shape), np.nan)


def test_tokens_are_paired_by_row_and_position_whatever_order_the_rows_were_written_in(make_step) -> None:
    values, order = scores(0), [2, 0, 3, 1]
    straight = scored_step(make_step(values, MASK, GROUP))
    tokens = np.arange(MASK.size).reshape(MASK.shape)
    mixed = scored_step(
        make_step(values[order], MASK[order], [GROUP[i] for i in order], order, tokens[order])
    )
    shared = shared_tokens(straight, mixed)
    assert shared is not None
    np.testing.assert_array_equal(shared.scores[0], shared.scores[1])
    assert shared.group.tolist() == [0] * 5 + [1] * 4


def test_rollouts_that_differ_in_one_token_are_not_compared(make_step) -> None:
    tokens = np.arange(MASK.size).reshape(MASK.shape)
    other = tokens.copy()
    other[2, 1] += 1
    one = scored_step(make_step(scores(0), MASK, GROUP, tokens=tokens))
    two = scored_step(make_step(scores(1), MASK, GROUP, tokens=other))
    assert shared_tokens(one, two) is None
    (found,) = agreements(["one", "two"], [{"one": one, "two": two}, {"one": one, "two": one}])
    assert (found.steps, found.steps_with_different_rollouts, found.tokens) == (1, 1, 9)
    assert found.spearman_per_step == pytest.approx(1.0)


def test_tokens_outside_the_mask_do_not_count_as_a_difference(make_step) -> None:
    tokens = np.arange(MASK.size).reshape(MASK.shape)
    one = scored_step(make_step(scores(0), MASK, GROUP, tokens=tokens))
    two = scored_step(make_step(scores(0), MASK, GROUP, tokens=np.where(MASK, tokens, -5)))
    assert shared_tokens(one, two) is not None


def test_a_case_that_scored_fewer_rows_is_compared_on_those(make_step) -> None:
    values, tokens = scores(0), np.arange(MASK.size).reshape(MASK.shape)
    whole = scored_step(make_step(values, MASK, GROUP))
    part = scored_step(make_step(values[2:], MASK[2:], [1, 1], [2, 3], tokens[2:]))
    shared = shared_tokens(whole, part)
    assert shared is not None and shared.group.tolist() == [1] * 4
    np.testing.assert_array_equal(shared.scores[0], shared.scores[1])
    elsewhere = scored_step(make_step(values[2:], MASK[2:], [1, 1], [7, 8], tokens[2:]))
    assert shared_tokens(whole, elsewhere) is None


def test_tokens_without_a_score_in_one_case_are_left_out(make_step) -> None:
    values = scores(0)
    values[0, 0] = np.nan
    one, two = (scored_step(make_step(v, MASK, GROUP)) for v in (values, scores(1)))
    shared = shared_tokens(one, two)
    assert shared is not None and len(shared.group) == 8 and np.isfinite(shared.scores).all()


def test_correlations_are_means_over_steps_and_over_prompts(make_step) -> None:
    """Three cases, two steps: each pair against ranks counted in a plain loop."""
    both = [
        {name: scored_step(make_step(scores(10 * n + step), MASK, GROUP)) for n, name in enumerate("abc")}
        for step in (1, 2)
    ]

    def rho(x: list[float], y: list[float]) -> float:
        places = [[sum(v < w for v in side) for w in side] for side in (x, y)]
        return float(np.corrcoef(places)[0, 1])

    compared = agreements("abc", both)
    for found in compared:
        steps, prompts = [], []
        for step in both:
            one, other = (step[name].values() for name in (found.case, found.other))
            steps.append(rho(*([v for r in side for v in r.scores] for side in (one, other))))
            for prompt in (0, 1):
                of_prompt = (
                    [v for r in side if r.group == prompt for v in r.scores] for side in (one, other)
                )
                prompts.append(rho(*of_prompt))
        assert found.spearman_per_step == pytest.approx(sum(steps) / 2, abs=1e-12)
        assert found.spearman_per_step_min == pytest.approx(min(steps), abs=1e-12)
        assert found.spearman_per_step_max == pytest.approx(max(steps), abs=1e-12)
        assert found.spearman_per_prompt == pytest.approx(sum(prompts) / 4, abs=1e-12)
        assert (found.steps, found.tokens, found.prompts) == (2, 18, 4)
    assert len(compared) == 3
