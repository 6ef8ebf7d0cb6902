"""Equations that responses write, and the character at which one becomes false."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archer.verify.equations import equations, first_false


def marked(text: str) -> str | None:
    """The text with the wrong character in <>, None where no equation is false."""
    found = first_false(text)
    if found is None or found.wrong is None:
        return None
    return f"{text[: found.wrong]}<{text[found.wrong : found.wrong + 1]}>{text[found.wrong + 1 :]}"


@pytest.mark.parametrize(
    "text",
    [
        "3 + 4 = 7",
        "3+4=7",
        "12 - 20 = -8",
        "12 − 20 = −8",
        "-5 + 3 = -2",
        "- 5 + 3 = 8",  # a list's dash
        "* 5 + 3 = 8",
        "2 x 3 = 6",
        "2x3=6",
        "2 × 3 = 6",
        "2 * 3 = 6",
        "6 ÷ 2 = 3",
        "6 / 2 = 3",
        r"2 \times 3 = 6",
        r"\frac{6}{2} = 3",
        r"\frac{3}{4} \times 8 = 6 \text{ cm}",
        "2 + 3 * 4 = 14",
        "(2 + 3) * 4 = 20",
        "(3 + 4 = 7)",
        "1,200 * 3 = 3,600",
        "1200 * 3 = 3,600 dollars",
        "$3.50 + $1.50 = $5",
        r"\$3 + \$4 = \$7",
        "5 apples + 3 pears = 8 fruits",
        "40 hours * $10/hour = $400",
        "10 (eggs) + 2 (eggs) = 12",
        "5kg + 3kg = 8kg",
        "20% * 50 = 10",
        "25/100 = 25%",
        "100% - 20% = 80%",
        "3 + 4 + 5 = 12",
        "3 + 4 = 7 = 7.0",
        "10 / 4 = 5 / 2 = 2.5",
        "5 + 3 = 8 * 2 = 16",
        "**3 + 4 = 7**",
        "3 + 4\n= 7",
        "16 - 3 - 4 = <<16-3-4=9>>9",
        "Total = 5 + 3 = 8",
        "3 + 4 = \\boxed{7}",
        "So the sum is 3 + 4 = 7 and that is all",
    ],
)
def test_a_true_equation_is_read_and_holds(text):
    assert equations(text), "nothing was read"
    assert first_false(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "3 + 4 = <8>",
        "3 + 4 = <8>.",
        "125 * 10 = 125< >dollars",  # a digit was due
        "12 * 10 = 120<0>",
        "30 * 40 = 12<,>000",  # 1,200
        "100 * 12 = 1,<3>00",
        "12 - 20 = <8>",  # a minus was due
        "20 - 12 = <->8",
        "1.5 * 3 = 4.<6>",
        "5 / 2 = 2.<6>",
        "12.5 * 10 = 12< >",
        "2 + 2 = 4 and so 3 + 3 = <7>",
        "3 + 4 = 7 = <8>",
        "3 + 4 = <8> = 7",
        "5 + 3 = 8 * 2 = 1<7>",
        "2 + 3 * 4 = <2>0",
        "$56 - $6 = $<4>0",
        r"\frac{588}{14} = 4<4>",
        r"\[18 + 16 = 3<5> \text{ sides}\]",
        "20 * 5% = <5>",
        "(7 + 1 = <9>)",
        "4.2 + 3.8 = <9>.0",
    ],
)
def test_a_false_equation_is_marked_where_no_true_value_can_follow(text):
    assert marked(text.replace("<", "").replace(">", "")) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x + 5 = 9",
        "2x + 3 = 8",
        "K - 4 + K = 5",
        "3 + 4 = 8k",
        "3 + 4 = 8x + 1",
        "2^3 + 1 = 10",
        "2**3 + 1 = 10",
        "2 1/2 + 1 = 3",
        "20% of 50 - 10 = 3",
        "100 - 20% = 80",  # of what?
        "half of 10 + 2 = 7",
        "3 dozen + 2 = 5",
        "400,000 * 3 = 1.2 million",
        "10:30 + 2 = 5",
        "3,4 + 5 = 9",
        "step 2 - 5 + 3 = 8",
        "5 times 3 + 1 = 4",
        "`3 + 4 = 8`",
        "```\na = 3 + 4 = 8\n```",
        "```\n3 + 4 = 8",
        "3 + 4 == 8",
        "3 + 4 != 8",
        "3 + 4 >= 8",
        "3 + 4 ≈ 8",
        "7 = 8",
        "8 = 3 + 4",
        "3 + 4 = ?",
        "3 / 0 = 5",
        "3 + + 4 = 8",
        "(3 + 4 * 2 = ",
        "1" * 40 + " + 1 = 2",
        "(" * 500 + "1 + 1" + ")" * 500 + " = 3",
    ],
)
def test_what_is_not_understood_for_certain_is_no_false_equation(text):
    assert first_false(text) is None


@pytest.mark.parametrize(
    ("text", "false"),
    [
        ("20 / 3 = 6.67", False),
        ("20 / 3 = 6.66", False),  # cut after a decimal
        ("20 / 3 = 6.68 ", True),
        ("20 / 3 = 7", False),
        ("20 / 3 = 6 ", True),  # neither rounded nor exact
        ("20 / 3 = 6.666...", False),
        ("20 / 3 = 6... ", False),
        ("5 / 2 = 3", False),  # halves either way
        ("5 / 2 = 2", False),
        ("7 / 2 = 3 ", True),
        ("33.33 * 3 = 100", False),
        ("-5 / 2 = -3", False),
        ("1 / 8 = 0.13", False),
        ("1 / 8 = .125", False),
        ("1 / 8 = .126 ", True),
        ("10 / 3 = 3.33 * 3 = 10", False),
    ],
)
def test_a_rounded_value_is_a_way_to_write_the_true_one(text, false):
    assert (first_false(text) is not None) == false


def test_an_equation_that_the_end_of_the_text_leaves_open_is_none():
    assert first_false("125 * 10 = 125") is None
    assert first_false("125 * 10 = 126") is not None


def test_every_number_of_a_chain_is_an_equation_of_its_own():
    text = "1 + 2 = 3, 2 + 2 = 5, 3 + 3 = 7"
    assert [text[found.start : found.end] for found in equations(text)] == ["3", "5", "7"]
    assert [found.false for found in equations(text)] == [False, True, True]


whole = st.integers(0, 10**6)
signs = st.sampled_from(["+", "-", "*", "/"])


def computed(a: int, sign: str, b: int) -> Fraction:
    return {"+": Fraction(a + b), "-": Fraction(a - b), "*": Fraction(a * b), "/": Fraction(a, b or 1)}[sign]


@given(whole, st.sampled_from(["+", "-", "*"]), whole, st.booleans())
def test_the_true_value_is_never_false(a, sign, b, separated):
    shown = f"{computed(a, sign, b).numerator:{',' if separated else ''}}"
    assert [found.false for found in equations(f"{a} {sign} {b} = {shown} eggs")] == [False]


@given(whole, st.sampled_from(["+", "*"]), whole, st.data())
def test_a_changed_digit_is_found_at_its_place(a, sign, b, data):
    true = str(computed(a, sign, b).numerator)
    place = data.draw(st.integers(0, len(true) - 1))
    digit = data.draw(st.sampled_from([d for d in "123456789" if d != true[place]]))
    text = f"{a} {sign} {b} = {true[:place]}{digit}{true[place + 1 :]} eggs"
    found = first_false(text)
    assert found is not None
    assert found.wrong == text.index("= ") + 2 + place


@given(whole, st.integers(1, 10**4), st.integers(0, 6))
def test_a_quotient_rounded_to_any_place_holds(a, b, places):
    unit = Fraction(1, 10**places)
    steps = round(Fraction(a, b) / unit)
    digits = f"{steps:0{places + 1}d}"
    shown = digits[: len(digits) - places] + (f".{digits[len(digits) - places :]}" if places else "")
    assert first_false(f"{a} / {b} = {shown} ") is None


@given(st.text("0123456789+-*/=.,()$% xab\n{}\\`<>", max_size=60))
def test_no_text_breaks_the_reader(text):
    for found in equations(text):
        assert 0 <= found.start < found.end <= len(text)
        assert found.wrong is None or found.start <= found.wrong < len(text)
