"""Reported checks measure what they say they measure."""

import math

import pytest
import torch

from archer.config import default_config
from archer.influence import Group
from archer.verify.masking import check_masking, written
from archer.verify.quality_checks import (
    FACTORS,
    _advantages,
    _found,
    _told_apart,
    check_mistakes,
    check_projection,
)
from archer.verify.sample import permuted


def row_of(result, what: str) -> dict[str, float]:
    figure = next(figure for figure in result.figures if figure.what.startswith(what))
    return dict(zip(result.columns, figure.values, strict=True))


@pytest.fixture(scope="module")
def mistakes(model, sample):
    return check_mistakes(model, sample, permutations=2, seed=0)


@pytest.fixture(scope="module")
def masking(model, sample):
    weights = [parameter.clone() for parameter in model.parameters()]
    result = check_masking(model, sample.narrowed(1, 4), subsets=8, seed=0)
    return result, weights


def test_a_perfect_detector_scores_one_and_its_opposite_zero(sample):
    perfect = {
        row: torch.tensor([float(t in sample.mistakes[row]) for t in range(length)])
        for row, length in enumerate(sample.lengths)
    }
    opposite = {row: -values for row, values in perfect.items()}
    for steps_only in (False, True):
        assert _found(perfect, sample, steps_only) == 1.0
        assert _found(opposite, sample, steps_only) == 0.0


def test_scores_that_are_the_labels_tell_them_apart_and_others_do_not(sample):
    labels = {
        row: torch.full((sample.lengths[row],), -float(flag))
        for group in sample.groups
        for row, flag in zip(group.rows, group.accepted, strict=True)
    }
    equal = {row: torch.zeros(length) for row, length in enumerate(sample.lengths)}
    assert _told_apart(labels, sample.groups, sample) == 1.0
    assert _told_apart(equal, sample.groups, sample) == 0.5


def test_identical_responses_do_not_count_as_told_apart(sample):
    right = [row for row in range(len(sample.lengths)) if sample.rewards[row]]
    twins = next((a, b) for a in right for b in right if a < b and same(sample, a, b))
    group = Group("twins", twins, (True, False))
    scores = {twins[0]: torch.tensor([0.0]), twins[1]: torch.tensor([1.0])}
    assert math.isnan(_told_apart(scores, (group,), sample))


def same(sample, a: int, b: int) -> bool:
    return torch.equal(sample.responses.tokens[a], sample.responses.tokens[b])


def test_advantages_follow_the_labels_given(sample):
    group = sample.groups[0]
    swapped = Group(group.uid, group.rows, tuple(not flag for flag in group.accepted))
    true = _advantages(sample, sample.groups)
    relabelled = _advantages(sample, (swapped, *sample.groups[1:]))
    accepted = next(row for row, flag in zip(group.rows, group.accepted, strict=True) if flag)
    rejected = next(row for row, flag in zip(group.rows, group.accepted, strict=True) if not flag)
    assert relabelled[accepted][0] == true[rejected][0]
    assert true[accepted][0] == sample.advantages[accepted].abs().double()


def test_permuted_labels_keep_rows_and_numbers(sample):
    shuffled = [permuted(sample.groups, seed) for seed in range(8)]
    for groups in shuffled:
        for true, other in zip(sample.groups, groups, strict=True):
            assert other.rows == true.rows
            assert sum(other.accepted) == sum(true.accepted)
    assert len(set(shuffled)) > 1
    assert permuted(sample.groups, 3) == shuffled[3]


def test_the_own_response_leaks_its_label_and_excluding_it_does_not(mistakes):
    leaking = row_of(mistakes, "inverse, own response included")["label leak"]
    assert leaking > 0.9
    assert row_of(mistakes, "inverse, own response excluded")["label leak"] < leaking - 0.2


def test_methods_without_labels_equal_their_null(mistakes):
    for what in ("entropy", "-log-prob", "random"):
        row = row_of(mistakes, what)
        assert row["all tokens"] == row["null"] and row["written sums"] == row["null (sums)"]
    assert mistakes.passed is None


def test_exact_scores_foresee_what_a_short_step_of_sgd_loses(masking):
    result, _ = masking
    assert row_of(result, "exact token-loss score, all parameters")["SGD, lr 0.01"] > 0.95
    assert all(-1 <= value <= 1 for figure in result.figures for value in figure.values if value == value)


def test_the_long_step_has_the_rate_that_the_embedded_default_trains_with(masking):
    result, _ = masking
    rate = default_config().actor_rollout_ref.actor.optim.lr
    assert float(result.columns[-1].removeprefix("AdamW, lr ")) == rate
    assert f"recipe's rate of {written(rate)} " in result.note
    assert [written(value) for value in (2e-4, 1e-5, 0.00025)] == ["2e-4", "1e-5", "2.5e-4"]


def test_counterfactual_steps_leave_the_model_as_it_was(masking, model):
    _, weights = masking
    for before, after in zip(weights, model.parameters(), strict=True):
        assert torch.equal(before, after)


def test_a_larger_projection_keeps_more_of_the_ranking(model, sample):
    result = check_projection(model, sample.narrowed(1, 4))
    assert result.columns == tuple(f"1/{factor}" for factor in FACTORS)
    for figure in result.figures:
        assert figure.values[-1] > figure.values[0]
        line = [value for value in figure.values if value is not None]
        assert ("not monotone" in figure.what) == (line != sorted(line))
