import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archer.rewards.code.grade import outputs_agree
from archer.rewards.sandbox.agreement import values_agree


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("1 2\n3", "1 2\n3\n"),
        ("1 2 \n3\n\n\n", "1 2\n3"),
        ("\n1  2\n\t3 ", "1 2\n3"),
        ("1\r\n2\r\n", "1\n2"),
        ("", "\n"),
        ("0.3333333333", "0.333333"),
        ("1000000.4", "1000000.0"),
        ("1e-7", "0.0"),
        ("3", "3.0"),
        ("3.00", "3"),
        ("2.5e3", "2500.0"),
        ("a 0.5000001 b", "a 0.5 b"),
        ("NaN inf", "NaN inf"),
        ("١", "١"),
    ],
)
def test_what_differs_in_spacing_or_in_the_last_digits_agrees(printed, expected):
    assert outputs_agree(printed, expected)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("1", "2"),
        ("1 2", "1\n2"),
        ("12", "1 2"),
        ("", "0"),
        ("1\n\n2", "1\n2"),
        ("Yes", "YES"),
        ("007", "7"),
        ("0011", "11"),
        ("1e0", "1"),
        ("10", "10.5"),
        ("1000001", "1000000"),
        ("3.0000001", "3"),
        ("0.334", "0.333"),
        ("nan", "0.5"),
        ("1e999", "2e999"),
        ("x" * 10, "0.5"),
        ("0x10", "16.0"),
        ("1_0.0", "10.0"),
        ("٣.٥", "3.5"),
    ],
)
def test_everything_else_differs(printed, expected):
    assert not outputs_agree(printed, expected)


def test_a_very_long_number_costs_no_time():
    assert not outputs_agree("1" * 10**6 + ".5", "0.5")
    assert not outputs_agree("9" * 10**6, "1" * 10**6)


@given(st.lists(st.lists(st.text("ab01.-e", min_size=1, max_size=5), min_size=1, max_size=4), max_size=4))
def test_an_output_agrees_with_itself_however_it_is_spaced(lines):
    plain = "\n".join(" ".join(words) for words in lines)
    spaced = "\n".join("  " + "\t ".join(words) + " " for words in lines) + "\n\n"
    assert outputs_agree(spaced, plain)
    assert not outputs_agree(plain + "\nmore", plain) or not lines


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        ((1, (2,)), [1, [2]]),
        (0.1 + 0.2, 0.3),
        (3, 3.0),
        (3.0, 3),
        ([0.3333333], [1 / 3]),
        ({1: "a"}, {"1": "a"}),
        ({"k": (1, 2)}, {"k": [1, 2]}),
        (math.inf, math.inf),
        (math.nan, math.nan),
        (None, None),
        (True, True),
    ],
)
def test_values_agree_as_json_can_say_it(value, expected):
    assert values_agree(value, expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, 1),
        ([1, 2], [2, 1]),
        ([1], [1, 2]),
        ("1", 1),
        ({1, 2}, [1, 2]),
        ("ab", ["a", "b"]),
        (0.334, 1 / 3),
        (3.0000001, 3),
        (10**400, 1.5),
        (math.nan, 0.5),
        ({"k": 1}, {"k": 1, "l": 2}),
        (None, 0.0),
        ([], None),
    ],
)
def test_other_values_do_not(value, expected):
    assert not values_agree(value, expected)
