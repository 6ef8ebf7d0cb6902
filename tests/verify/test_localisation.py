"""Mistakes in made-up responses where the answer is known, and the intervals of their means."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from archer.trace.vocab import decode_bytes
from archer.verify.bootstrap import interval, is_first, place_of
from archer.verify.equations import numbers
from archer.verify.localisation import CHOSEN, Label, MistakeCase, label_of, localisation


def test_the_place_of_a_token_is_its_auc_among_the_others():
    values = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0])
    assert place_of(values, 1) == 1.0
    assert place_of(values, 4) == 0.0
    assert place_of(values, 2) == (2 + 0.5) / 4  # a tie counts half
    assert math.isnan(place_of(values[:1], 0))


def test_a_shared_first_place_is_divided():
    values = torch.tensor([1.0, 3.0, 3.0])
    assert [is_first(values, token) for token in range(3)] == [0.0, 0.5, 0.5]


def test_the_interval_of_many_coins_is_that_of_the_normal_distribution():
    coins = (torch.arange(400) % 2).double()
    found = interval(coins, seed=0, resamples=4000)
    half = 1.96 * 0.5 / 400**0.5
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.5 - half, abs=0.006)
    assert found.high == pytest.approx(0.5 + half, abs=0.006)
    assert interval(coins, seed=0) == interval(coins, seed=0)
    assert interval(coins, seed=1) != interval(coins, seed=0)


def test_responses_of_one_prompt_are_drawn_together():
    """Ten times the same four values are no more certain than the four."""
    few = torch.tensor([0.0, 0.2, 0.9, 1.0])
    prompts = [name for name in "abcd" for _ in range(10)]
    many = few.repeat_interleave(10)
    assert interval(many, seed=0, prompts=prompts) == pytest.approx(interval(few, seed=0))
    apart = interval(many, seed=0)
    assert apart.high - apart.low < 0.5 * (interval(few, seed=0).high - interval(few, seed=0).low)


def test_equal_values_leave_no_doubt_and_none_leave_nothing_but_it():
    same = interval(torch.full((7,), 0.25), seed=0)
    assert (same.mean, same.low, same.high) == (0.25, 0.25, 0.25)
    assert math.isnan(interval(torch.empty(0), seed=0).mean)


def tokens_of(*pieces: str):
    return decode_bytes([piece.encode() for piece in pieces])


@pytest.mark.parametrize(
    ("pieces", "token", "results"),
    [
        (("1", "+", "1", "=", "3", "."), 4, {4}),
        (("1+1", "=2", ", ", "2+2=", "5", "0"), 4, {1, 4, 5}),
        (("10*10=", "1", "0", "0", "0", " eggs"), 4, {1, 2, 3, 4}),
        (("10*100=", "1", "0", "0", " eggs"), 4, {1, 2, 3, 4}),  # a digit was due
    ],
)
def test_the_label_is_the_token_at_which_the_first_equation_becomes_false(pieces, token, results):
    label = label_of(tokens_of(*pieces), len(pieces) + 1)
    assert label == Label(token, frozenset(results))


def test_a_response_whose_equations_hold_has_no_label():
    assert label_of(tokens_of("1+1", "=2"), 3) is None


def case(prompt: int, token: int, **values: list[float]) -> MistakeCase:
    length = len(next(iter(values.values())))
    entropy = torch.tensor([0.01] + [1.0] * (length - 1))
    label = Label(token, frozenset({token, length - 1}))
    return MistakeCase(
        str(prompt), label, entropy, {name: torch.tensor(line) for name, line in values.items()}
    )


def figures(result) -> dict[str, tuple[float, ...]]:
    return {figure.what: figure.values for figure in result.figures}


def test_tables_of_made_up_cases_hold_what_can_be_counted():
    found = localisation(
        [case(i, 2, good=[9.0, 0.0, 3.0, 1.0], bad=[0.0, 3.0, 1.0, 2.0]) for i in range(5)], (), 0.05, seed=0
    )
    every, unsure, results, *_ = (figures(result) for result in found)
    assert every["good"][0] == pytest.approx(2 / 3) and every["good"][3] == 0.0
    assert every["bad"][0] == pytest.approx(1 / 3)
    assert unsure["good"] == (1.0,) * 6  # the first token is sure, and left out
    assert results["bad"][0] == 0.0  # only the last token is another result


def test_a_mistake_outside_the_population_is_no_case_of_it():
    sure = case(0, 0, good=[9.0, 0.0, 3.0])
    _, unsure, *_ = localisation([sure], (), 0.05, seed=0)
    assert unsure.meaning.startswith("0 rejected")
    assert math.isnan(figures(unsure)["good"][0])


def test_knobs_are_chosen_on_one_half_and_reported_on_the_other():
    cases = [case(i, 1, a=[0.0, 1.0, 0.0], b=[1.0, 0.0, 1.0]) for i in range(40)]
    halves = [one.chooses for one in cases]
    assert 8 < sum(halves) < 32
    # On the half that chooses, b is the better one; on the other, a.
    swapped = [
        MistakeCase(one.prompt, one.label, one.entropy, {"a": one.values["b"], "b": one.values["a"]})
        if chooses
        else one
        for one, chooses in zip(cases, halves, strict=True)
    ]
    table = localisation(swapped, ("a", "b"), 0.05, seed=0)[0]
    assert f"Chosen on {sum(halves)} other responses" in table.note and table.note.count(": b.") == 1
    assert figures(table)[CHOSEN][0] == figures(table)["b"][0] == 0.0
    assert figures(table)["a"][0] == 1.0
    assert table.meaning.startswith(f"{40 - sum(halves)} rejected")


def test_nulls_stand_beside_and_methods_that_see_no_labels_repeat_their_figure():
    one = case(0, 1, scored=[0.0, 1.0, 0.5], plain=[0.0, 1.0, 0.5])
    nulls = {"scored": [torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])]}
    (table, *_) = localisation(
        [MistakeCase(one.prompt, one.label, one.entropy, one.values, nulls)], (), 0.05, 0
    )
    assert table.columns[-2:] == ("null AUC", "null top-1")
    assert figures(table)["scored"][-2:] == (0.5, 0.5)  # AUC: the mean of 0 and 1; top-1: of 0 and 1
    assert figures(table)["plain"][-2:] == (figures(table)["plain"][0], figures(table)["plain"][3])


def test_cases_are_told_apart_by_whether_an_accepted_response_knows_better():
    one, other = (case(i, 2, a=[0.0, 1.0, 3.0, 2.0]) for i in range(2))
    other = replace(other, values={"a": torch.tensor([3.0, 2.0, 0.0, 1.0])})
    known = [replace(one, answered=True), replace(other, answered=False), replace(one, answered=None)]
    tables = localisation(known, (), 0.05, seed=0)
    assert [figures(table)["a"][0] for table in tables[-2:]] == [1.0, 0.0]
    assert [table.meaning.split()[0] for table in tables] == ["3", "3", "3", "1", "1"]


def test_a_label_knows_what_the_result_should_have_been():
    label = label_of(tokens_of("5", " - 7", " = ", "3"), 5)
    assert label is not None and label.true == {Fraction(2)}
    assert numbers("then 2,000 / 4 = 500.50; `7`") == {Fraction(2000), Fraction(4), Fraction("500.5")}
