import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archer.data.arithmetic import Mistake, first_mistake, prompt_messages, write_steps

RIGHT = "7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxed{933}"  # 347+586

numbers = st.integers(min_value=0, max_value=10**6)


def test_the_right_response_has_one_sum_a_column_from_the_units_and_ends_in_a_box():
    assert write_steps(347, 586) == RIGHT


def test_a_last_carry_is_the_first_digit_of_the_answer():
    assert write_steps(900, 250) == "0+0+0=0\n0+5+0=5\n9+2+0=11\n\\boxed{1150}"


def test_a_shorter_number_is_filled_up_with_zeros():
    assert write_steps(7, 95) == "7+5+0=12\n0+9+1=10\n\\boxed{102}"


def test_the_prompt_is_one_user_message():
    assert prompt_messages(347, 586) == [{"role": "user", "content": "347+586="}]


@given(numbers, numbers)
def test_without_mistakes_the_box_holds_the_sum(a, b):
    assert write_steps(a, b).endswith(f"\n\\boxed{{{a + b}}}")


@given(numbers, numbers)
def test_the_right_response_has_no_mistake(a, b):
    assert first_mistake(a, b, write_steps(a, b)) is None


@given(numbers, numbers, st.randoms(use_true_random=False))
def test_a_deliberate_mistake_is_a_wrong_sum_and_is_carried_on_consistently(a, b, rng):
    text = write_steps(a, b, rng, mistake_rate=1.0)
    *steps, box = text.split("\n")
    carry, digits = 0, ""
    for step in steps:
        left, total = step.split("=")
        x, y, c = map(int, left.split("+"))
        assert c == carry
        assert 1 <= abs(int(total) - (x + y + c)) <= 2
        carry, digits = int(total) // 10, str(int(total) % 10) + digits
    assert box == f"\\boxed{{{str(carry) * (carry > 0)}{digits}}}"
    mistake = first_mistake(a, b, text)
    assert mistake is not None
    assert (mistake.kind, mistake.line) == ("sum", 0)


def test_the_share_of_wrong_sums_is_the_mistake_rate():
    rng = random.Random(0)
    wrong = total = 0
    for _ in range(2000):
        for step in write_steps(347, 586, rng, 0.25).split("\n")[:-1]:
            left, result = step.split("=")
            wrong += sum(map(int, left.split("+"))) != int(result)
            total += 1
    assert wrong / total == pytest.approx(0.25, abs=0.03)


def test_mistakes_need_a_random_generator():
    with pytest.raises(ValueError, match="rng"):
        write_steps(1, 2, mistake_rate=0.5)


@pytest.mark.parametrize(
    ("response", "kind", "line", "wrong"),
    [
        ("8+6+0=14\n", "operand", 0, "8"),
        ("7+9+0=16\n", "operand", 0, "9"),
        ("6+7+0=13\n", "operand", 0, "6"),  # the task fixes the order
        ("17+6+0=13\n", "operand", 0, "17"),
        ("77+6+0=13\n", "operand", 0, "7"),  # the first 7 is right
        ("7+6+1=14\n", "carry", 0, "1"),
        ("7+6+0=13\n4+8+0=12\n", "carry", 1, "0"),
        ("7+6+0=12\n4+8+1=13\n", "sum", 0, "2"),  # the ten is right
        ("7+6+0=9\n4+8+0=12\n", "sum", 0, "9"),
        ("7+6+0=23\n", "sum", 0, "23"),
        ("7+6+0=135\n", "sum", 0, "5"),
        ("7+6+0=1\n4+8+0=12\n", "sum", 0, "\n"),  # too short: another digit should follow
        ("7+6+0=13\n4+8+1=13\n3+5+1=10\n\\boxed{1033}", "sum", 2, "10"),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxed{943}", "answer", 3, "43"),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxed{93}", "answer", 3, "}"),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxed{0933}", "answer", 3, "0933"),
        ("7+6+0=13\n4+8+1=13\n\\boxed{133}", "missing", 2, "\\"),
        ("\\boxed{933}", "missing", 0, "\\"),
        ("", "missing", 0, ""),
        ("7+6+0=1", "missing", 0, ""),
        ("7+6+0=13", "missing", 0, ""),
        ("7+6+0=13\n4+8", "missing", 1, ""),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n", "missing", 3, ""),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\box", "missing", 3, ""),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxed{933", "missing", 3, ""),
        ("7+6=13\n", "malformed", 0, "="),
        ("7-6+0=13\n", "malformed", 0, "-"),
        ("7+6+0=\n4+8+1=13\n", "malformed", 0, "\n"),
        ("7+6+0=13 4+8+1=13\n", "malformed", 0, " "),
        ("x", "malformed", 0, "x"),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n0+0+0=0\n\\boxed{0933}", "malformed", 3, "0"),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxes{933}", "malformed", 3, "s"),
        ("7+6+0=13\n4+8+1=13\n3+5+1=9\n\\boxed{}", "malformed", 3, "}"),
        (RIGHT + "}}", "malformed", 3, "}"),
    ],
)
def test_the_first_mistake_is_named_to_the_character(response, kind, line, wrong):
    mistake = first_mistake(347, 586, response)
    assert mistake is not None
    assert (mistake.kind, mistake.line) == (kind, line)
    assert response[mistake.start : mistake.end] == wrong
    # Up to the mistake nothing is wrong.
    assert RIGHT.startswith(response[: mistake.start])
    assert not RIGHT.startswith(response[: mistake.start + 1]) or mistake.start == len(response)
    assert response[: mistake.start].count("\n") == line


def test_a_mistake_holds_its_kind_line_and_span():
    response = "7+6+0=13\n4+8+1=23\n3+5+2=10\n\\boxed{1033}"
    assert first_mistake(347, 586, response) == Mistake(kind="sum", line=1, start=15, end=17)


@given(st.integers(100, 999), st.integers(100, 999), st.data())
def test_any_change_of_one_character_is_found_there(a, b, data):
    right = write_steps(a, b)
    at = data.draw(st.integers(0, len(right) - 1))
    other = data.draw(st.sampled_from([c for c in "0123456789+=}\n\\x" if c != right[at]]))
    mistake = first_mistake(a, b, right[:at] + other + right[at + 1 :])
    assert mistake is not None
    assert mistake.start == at
    assert mistake.end > at


@given(st.integers(100, 999), st.integers(100, 999), st.data())
def test_a_response_that_stops_early_is_missing_something_at_its_end(a, b, data):
    right = write_steps(a, b)
    cut = data.draw(st.integers(0, len(right) - 1))
    mistake = first_mistake(a, b, right[:cut])
    assert mistake is not None
    assert (mistake.kind, mistake.start, mistake.end) == ("missing", cut, cut)
