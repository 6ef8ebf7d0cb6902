"""The table of hand-made verdicts (math_cases.txt), and what does not fit into its lines."""

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.extract import last_boxed
from archer.rewards.math import fast_verdict, reference_answers, verify_answer
from archer.rewards.math.numeric import parse_number
from archer.rewards.math.text import tidy


@dataclass(frozen=True)
class Case:
    topic: str
    right: bool
    answer: str
    reference: str  # JSON where it holds several

    @property
    def ground_truth(self) -> Any:
        return json.loads(self.reference) if self.reference.startswith(('["', "[[")) else self.reference

    def __str__(self) -> str:
        return f"{self.topic}: {self.answer} for {self.reference}"


def read_cases() -> list[Case]:
    cases, topic = [], ""
    for line in Path(__file__).with_name("math_cases.txt").read_text(encoding="utf-8").splitlines():
        heading = re.fullmatch(r"\[(.*)\]", line)
        if heading:
            topic = heading[1]
        elif line and not line.startswith("#"):
            verdict, answer, reference, *_ = re.split(r" {2,}", line)
            assert verdict in ("right", "wrong"), line
            cases.append(Case(topic, verdict == "right", answer, reference))
    return cases


CASES = read_cases()


@pytest.fixture(scope="module")
def judged():
    """Judge the table as one batch, as training does."""
    requests = [RewardRequest("math", rf"so \boxed{{{case.answer}}}", case.ground_truth) for case in CASES]
    with RewardScorer(RewardConfig(num_workers=2, timeout_s=60.0)) as scorer:
        return dict(zip(CASES, scorer.score(requests), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_verdict(case, judged):
    result = judged[case]
    assert result.correct is case.right
    assert result.score == float(case.right)
    assert result.failure is None


def test_the_table_is_large_and_has_no_case_twice():
    assert len(CASES) == len(set(CASES))
    assert sum(case.right for case in CASES) >= 200
    assert sum(not case.right for case in CASES) >= 200


@pytest.mark.parametrize("case", [case for case in CASES if case.right], ids=str)
def test_a_reference_answers_itself(case):
    for reference in reference_answers(case.ground_truth):
        assert verify_answer(tidy(reference), reference)


@pytest.mark.parametrize(
    "answer",
    [
        "5" * 100_000,
        "{" * 500 + "5" + "}" * 500,
        "(" * 500 + "5" + ")" * 500,
        "(" * 500 + "5",
        "5;" * 300,
        "5," * 900 + "5",
        "-" * 1000 + "5",
        r"\sqrt" * 300 + "5",
        r"\frac" * 300 + "5",
        "2^" * 500 + "2",
        "x" * 1900,
        "|" * 1900,
        "+".join(["x"] * 900),
        "*".join(["9^{9999}"] * 150),
        r"\pm" * 500 + "5",
        "\x00\ud800",
        r"\boxed",
    ],
    ids=lambda answer: ascii(answer)[:30],
)
def test_long_or_broken_text_is_wrong_at_once(answer, scorer):
    (result,) = scorer.score([RewardRequest("math", rf"\boxed{{{answer}}}", "5")])
    assert not result.correct
    assert result.failure is None


def test_text_before_a_brace_that_nothing_opened_is_no_answer():
    assert not verify_answer("5}{6", "5")


def test_numbers_may_be_references():
    assert verify_answer("42", 42)
    assert verify_answer("0.3", 0.1 + 0.2)
    assert verify_answer("142", 142.0)
    assert verify_answer("5", r"thus \boxed{5}")


def test_the_fast_path_leaves_open_what_it_cannot_know():
    assert fast_verdict(r"\sqrt{4}", ("2",)) is None
    assert fast_verdict("3", (r"\sqrt{4}", "2")) is None
    assert fast_verdict("2", (r"\sqrt{4}", "2")) is True
    assert fast_verdict("3", ("1", "2")) is False
    assert fast_verdict(None, ("2",)) is False


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_fast_path_is_never_certain_of_the_opposite(case):
    answer = last_boxed(rf"\boxed{{{case.answer}}}")
    assert fast_verdict(answer, reference_answers(case.ground_truth)) in (case.right, None)


@pytest.mark.parametrize(
    "ground_truth", [None, "", "  ", [], {}, [[]], [[["1"]]], float("nan"), float("inf"), [None], 10**2000]
)
def test_a_ground_truth_that_nothing_could_match_is_an_error(ground_truth):
    with pytest.raises(ArcherError, match="ground truth"):
        reference_answers(ground_truth)


@settings(deadline=None)
@given(st.fractions(), st.fractions())
def test_fast_numbers_agree_with_exact_arithmetic(a, b):
    answer, reference = rf"\frac{{{a.numerator}}}{{{a.denominator}}}", f"{b.numerator}/{b.denominator}"
    assert fast_verdict(answer, (reference,)) is (a == b)


@settings(deadline=None)
@given(st.integers(), st.integers(0, 12))
def test_decimals_are_read_exactly(digits, places):
    text = f"{'-' if digits < 0 else ''}{abs(digits) // 10**places:,}"
    text += f".{abs(digits) % 10**places:0{places}d}" if places else ""
    number = parse_number(tidy(text))
    assert number is not None
    assert number.value == Fraction(digits, 10**places)


MANTISSAS = st.tuples(st.integers(1, 9), st.integers(0, 999)).map(lambda pair: f"{pair[0]}.{pair[1]:03d}")
SCIENTIFIC = (
    r"{} \times 10^{{{}}}",
    r"{}\times10^{{{}}}",
    r"{}\cdot 10^{{{}}}",
    r"{} \times {{10}}^{{{}}}",
    r"{} \times (10)^{{{}}}",
    "{}e{}",
    "{}E{}",
    "{}e{:+03d}",
    "{}*10^{}",
    "{}*10**{}",
    "{} x 10^{{{}}}",
    "{}×10^{}",
)


@settings(deadline=None, max_examples=30)
@given(MANTISSAS, st.integers(-40, 40), st.sampled_from(SCIENTIFIC), st.sampled_from(SCIENTIFIC))
def test_all_spellings_of_a_power_of_ten_are_one_number(mantissa, exponent, form, other):
    for prefix, suffix in (
        ("", ""),
        ("-", ""),
        ("x = ", ""),
        ("(", ", 7)"),
        ("", r"\text{ kg}"),
        ("", r"\pi"),
    ):
        answer = prefix + form.format(mantissa, exponent) + suffix
        reference = prefix + other.format(mantissa, exponent) + suffix
        assert verify_answer(answer, reference), (answer, reference)
        wrong = prefix + other.format(mantissa, exponent + 1) + suffix
        assert not verify_answer(answer, wrong), (answer, wrong)


GROUPED = (",", "{,}", r",\!", r"\,", "\u2009", "'")
AROUND = (
    r"{}\pi",
    r"\sqrt{{{}}}",
    r"\frac{{{}}}{{7}}",
    "({}, 5)",
    "[{}, 99999999)",
    "x={}",
    "{}x+1",
    "2^{{{}}}-1",
)


@settings(deadline=None, max_examples=30)
@given(st.integers(1000, 9_999_999), st.sampled_from(GROUPED))
def test_grouped_digits_are_one_number_within_any_expression(number, sign):
    for around in AROUND:
        answer = around.format(f"{number:,}".replace(",", sign))
        assert verify_answer(answer, around.format(number)), answer
        assert not verify_answer(answer, around.format(number + 1)), answer


@settings(deadline=None, max_examples=30)
@given(
    st.integers(-99, 99),
    st.integers(1, 99),
    st.sampled_from("[]"),
    st.sampled_from("[]"),
    st.sampled_from(",;"),
)
def test_brackets_that_open_outwards_leave_the_end_out(low, width, left, right, separator):
    ends = low, low + width
    answer = f"{left}{ends[0]}{separator} {ends[1]}{right}"
    brackets = {("[", "]"): "[]", ("]", "]"): "(]", ("[", "["): "[)", ("]", "["): "()"}
    for (opening, closing), (start, end) in brackets.items():
        verdict = (opening, closing) == (left, right)
        reference = f"{start}{ends[0]},{ends[1]}{end}"
        assert verify_answer(answer, reference) is verdict, (answer, reference)
        union = rf"{answer} \cup ]200, 300["
        assert verify_answer(union, rf"{reference}\cup(200,300)") is verdict, (union, reference)
