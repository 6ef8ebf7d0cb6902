"""Which tokens of two cases are compared, and what comes of it."""

import numpy as np
import pytest

from archer.ablation.agreement import agreements
from archer.ablation.rollouts import ScoredStep, shared_tokens

MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]], bool)
GROUP = [0, 0, 1, 1]


def scores(seed: int) -> np.ndarray:
    return np.where(MASK, np.random.default_rng(seed).normal(size=MASK.shape), np.nan)


def test_tokens_are_paired_by_row_and_position_whatever_order_the_rows_were_written_in(make_step) -> None:
    values, order = scores(0), [2, 0, 3, 1]
    straight = ScoredStep.of(make_step(values, MASK, GROUP))
    tokens = np.arange(MASK.size).reshape(MASK.shape)
    mixed = ScoredStep.of(
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
    one = ScoredStep.of(make_step(scores(0), MASK, GROUP, tokens=tokens))
    two = ScoredStep.of(make_step(scores(1), MASK, GROUP, tokens=other))
    assert shared_tokens(one, two) is None
    (found,) = agreements({"one": {1: one, 2: one}, "two": {1: two, 2: one}})
    assert (found.steps, found.different_steps, found.tokens) == (1, 1, 9)
    assert found.per_step == pytest.approx(1.0)


def test_tokens_outside_the_mask_do_not_count_as_a_difference(make_step) -> None:
    tokens = np.arange(MASK.size).reshape(MASK.shape)
    one = ScoredStep.of(make_step(scores(0), MASK, GROUP, tokens=tokens))
    two = ScoredStep.of(make_step(scores(0), MASK, GROUP, tokens=np.where(MASK, tokens, -5)))
    assert shared_tokens(one, two) is not None


def test_a_case_that_scored_fewer_rows_is_compared_on_those(make_step) -> None:
    values, tokens = scores(0), np.arange(MASK.size).reshape(MASK.shape)
    whole = ScoredStep.of(make_step(values, MASK, GROUP))
    part = ScoredStep.of(make_step(values[2:], MASK[2:], [1, 1], [2, 3], tokens[2:]))
    shared = shared_tokens(whole, part)
    assert shared is not None and shared.group.tolist() == [1] * 4
    np.testing.assert_array_equal(shared.scores[0], shared.scores[1])
    elsewhere = ScoredStep.of(make_step(values[2:], MASK[2:], [1, 1], [7, 8], tokens[2:]))
    assert shared_tokens(whole, elsewhere) is None


def test_tokens_without_a_score_in_one_case_are_left_out(make_step) -> None:
    values = scores(0)
    values[0, 0] = np.nan
    one, two = (ScoredStep.of(make_step(v, MASK, GROUP)) for v in (values, scores(1)))
    shared = shared_tokens(one, two)
    assert shared is not None and len(shared.group) == 8 and np.isfinite(shared.scores).all()


def test_correlations_are_means_over_steps_and_over_prompts(make_step) -> None:
    """Three cases, two steps: each pair against ranks counted in a plain loop."""
    cases = {
        name: {step: ScoredStep.of(make_step(scores(10 * n + step), MASK, GROUP)) for step in (1, 2)}
        for n, name in enumerate("abc")
    }

    def rho(x: list[float], y: list[float]) -> float:
        places = [[sum(v < w for v in side) for w in side] for side in (x, y)]
        return float(np.corrcoef(places)[0, 1])

    for found in agreements(cases):
        steps, prompts = [], []
        for step in (1, 2):
            one, other = (cases[name][step] for name in (found.one, found.other))
            steps.append(rho(one.scores.tolist(), other.scores.tolist()))
            for prompt in (0, 1):
                chosen = one.group == prompt
                prompts.append(rho(one.scores[chosen].tolist(), other.scores[chosen].tolist()))
        assert found.per_step == pytest.approx(sum(steps) / 2, abs=1e-12)
        assert found.per_step_range == pytest.approx((min(steps), max(steps)), abs=1e-12)
        assert found.per_prompt == pytest.approx(sum(prompts) / 4, abs=1e-12)
        assert (found.steps, found.tokens, found.prompts) == (2, 18, 4)
    assert len(agreements(cases)) == 3
