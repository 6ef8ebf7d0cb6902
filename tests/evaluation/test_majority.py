"""Majority voting by equivalence, against a count that compares everything with everything."""

import random
from fractions import Fraction

import pytest

from archer.evaluation.majority import Ballot, class_sizes, majority
from archer.rewards import RewardConfig, RewardScorer


def equal(pairs):
    return [Fraction(a) == Fraction(b) for a, b in pairs]


def counted(answers, truth) -> float:
    """The value of a vote by plain counting of exact values."""
    votes: dict[Fraction, int] = {}
    for answer in answers:
        if answer is not None:
            votes[Fraction(answer)] = votes.get(Fraction(answer), 0) + 1
    leaders = [value for value in votes if votes[value] == max(votes.values())]
    return (Fraction(truth) in leaders) / len(leaders) if leaders else 0.0


def ballot(answers, truth) -> Ballot:
    return Ballot(tuple(answers), tuple(a is not None and Fraction(a) == Fraction(truth) for a in answers))


def test_votes_agree_with_counting_exact_values_however_they_are_written():
    rng = random.Random(0)
    written = ["1/2", "0.5", "2/4", "1", "1.0", "2/2", "3", None]
    polls = [[rng.choice(written) for _ in range(rng.randint(1, 8))] for _ in range(500)]
    values = majority([ballot(answers, "1/2") for answers in polls], equal)
    assert values == pytest.approx([counted(answers, "1/2") for answers in polls])
    assert set(values) >= {0.0, 0.5, 1.0}


def test_a_shared_lead_is_worth_its_share():
    polls = [["1", "2"], ["1", "2", "3"], ["1", "1", "2", "2", "3"], ["1", "2", "2"], ["1", None, None]]
    assert majority([ballot(p, "1") for p in polls], equal) == [1 / 2, 1 / 3, 1 / 2, 0.0, 1.0]


def test_answers_are_only_compared_where_the_comparison_can_change_the_vote():
    compared = []

    def noted(pairs):
        compared.extend(pairs)
        return equal(pairs)

    nothing_right, right_leads, nobody_votes = ["2", "3"], ["1", "1", "2"], [None, None]
    polls = [ballot(p, "1") for p in (nothing_right, right_leads, nobody_votes)]
    assert majority(polls, noted) == [0.0, 1.0, 0.0]
    assert not compared
    assert majority([ballot(["1", "2", "3"], "1")], noted) == [pytest.approx(1 / 3)]
    assert compared == [("3", "2")]


def test_the_comparisons_of_all_prompts_go_out_together_round_by_round():
    rounds = []

    def noted(pairs):
        rounds.append(list(pairs))
        return equal(pairs)

    assert class_sizes([["1", "2", "2/2", "2"], ["3", "4"]], noted) == [[2, 2], [1, 1]]
    assert rounds == [[("2", "1"), ("2/2", "1"), ("4", "3")]]


def test_the_scorers_comparison_knows_numbers_and_algebra_and_survives_nonsense():
    pairs = [("0.5", "\\frac{1}{2}"), ("x+1", "1+x"), ("7", "8"), ("((((", "{{"), ("", "1")]
    with RewardScorer(RewardConfig(num_workers=1)) as scorer:
        assert scorer.same_answers("math", pairs) == [True, True, False, False, False]
        assert scorer.same_answers("arithmetic", pairs[:2]) == [True, False]  # no algebra for plain sums
        assert scorer.counters.total == 0
