from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.math import fast_verdict, reference_answers, verify_answer
from archer.rewards.numeric import parse_number, tidy

# reference, answer
RIGHT = [
    ("42", "42"),
    ("42", " 42 "),
    ("42", "42."),
    ("42", "$42$"),
    ("42", r"\(42\)"),
    ("42", "{42}"),
    ("42", "42.0"),
    ("42", "+42"),
    ("-7", "\u22127"),
    ("1234", "1,234"),
    ("1234", "1{,}234"),
    ("1234", r"1\,234"),
    ("1,234,567", "1234567"),
    ("0.5", ".5"),
    ("0.5", r"\frac{1}{2}"),
    ("1/2", r"\dfrac{1}{2}"),
    (r"\frac12", "0.5"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("1.5", "1 1/2"),
    ("1000", "1e3"),
    (r"\frac{1}{3}", "0.333333"),
    (0.1 + 0.2, "0.3"),
    (42, "42"),
    (["3", "4"], "4"),
    (r"\boxed{5}", "5"),
    (r"x \in [0, 1]", r"x\in[0,1]"),
    (r"\left(1, 2\right)", "(1,2)"),
    ("2.5", r"2\frac{1}{2}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\pi", "3.141593"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\{1,2\}", "2, 1"),
    ("5", "x=5"),
    ("x=5", "5"),
    ("5", "2+3=5"),
    ("5", r"5\text{ cm}"),
    ("90", r"90^\circ"),
    ("50", r"50\%"),
    ("0.5", r"50\%"),
    ("1000000", "10^6"),
    ("120", "5!"),
    ("1", r"\sin^2 x+\cos^2 x"),
    (r"\text{Evelyn}", "Evelyn"),
    ("B", "(B)"),
    (r"\infty", r"+\infty"),
    ("10", r"\binom{5}{2}"),
]
WRONG = [
    ("42", "43"),
    ("42", "-42"),
    ("42", "420"),
    ("42", "42.000001"),
    ("12", "1 2"),
    ("1/2", "0.51"),
    ("1/3", "0.33"),
    ("1/3", "0.333334"),
    (["3", "4"], "5"),
    ("0", "0.0000001"),
    ("0.0000001", "0"),
    ("5", "5, 6"),
    ("5", r"5 \text{ or } 6"),
    ("(1,2)", "(2,1)"),
    ("x=5", "x=6"),
    (r"\pi", "3.14"),
    (r"\infty", r"-\infty"),
    ("x^2+1", "x^2-1"),
    ("5", r"x \neq 5"),
    ("5", r"\text{not } 5"),
]
MALFORMED_OR_HOSTILE = [
    ("5", ""),
    ("5", " "),
    ("5", "{"),
    ("5", "}"),
    ("5", r"\frac{5}{"),
    ("5", r"\frac{5}{0}"),
    ("5", "5/0"),
    ("5", "nan"),
    ("5", "inf"),
    ("5", r"\text{nan}"),
    ("5", r"\frac{0}{0}"),
    ("1", r"\frac{\infty}{\infty}"),
    ("5", "7=5"),
    ("5", "1+1=5"),
    ("17", "12 5"),
    ("17", "12{5}"),
    ("17", r"12\text{} 5"),
    ("11", "$5$ $6$"),
    ("0", "2 000"),
    ("0", "10^{-8}"),
    ("0", "x=10^{-9}"),
    ("e^{-100}", "e^{-200}"),
    ("5", r"5\\6"),
    ("5", "5" * 100_000),
    ("5", "{" * 500 + "5" + "}" * 500),
    ("5", "(" * 500 + "5"),
    ("5", "1e999999999"),
    ("5", "10^{10^{10}}"),
    ("5", "9^{9^{9^{9}}}"),
    ("5", r"(10^{10^{10}})!"),
    ("5", "__import__('os').system('true')"),
    ("5", "\x00\ud800"),
    ("5", r"\boxed"),
    ("5", "5;" * 300),
]


def judge(table, timeout_s):
    """Judge a table as one batch, as training does."""
    requests = [RewardRequest("math", rf"so \boxed{{{answer}}}", reference) for reference, answer in table]
    with RewardScorer(RewardConfig(workers=2, timeout_s=timeout_s)) as scorer:
        return dict(zip(map(repr, table), scorer.score(requests), strict=True))


@pytest.fixture(scope="module")
def judged():
    return judge([*RIGHT, *WRONG], timeout_s=60.0)


@pytest.fixture(scope="module")
def judged_hostile():
    return judge(MALFORMED_OR_HOSTILE, timeout_s=1.0)


@pytest.mark.parametrize("case", RIGHT, ids=repr)
def test_right_answer_is_right(case, judged):
    assert judged[repr(case)].correct
    assert judged[repr(case)].score == 1.0


@pytest.mark.parametrize("case", WRONG, ids=repr)
def test_wrong_answer_is_wrong(case, judged):
    result = judged[repr(case)]
    assert not result.correct
    assert result.score == 0.0
    assert result.failure is None


@pytest.mark.parametrize("case", MALFORMED_OR_HOSTILE, ids=lambda case: repr(case)[:40])
def test_malformed_or_hostile_answer_is_never_right(case, judged_hostile):
    assert not judged_hostile[repr(case)].correct
    assert judged_hostile[repr(case)].score == 0.0


def test_text_before_a_brace_that_nothing_opened_is_no_answer():
    assert not verify_answer("5}{6", "5")


def test_the_fast_path_leaves_open_what_it_cannot_know():
    assert fast_verdict(r"\sqrt{4}", ("2",)) is None
    assert fast_verdict("3", (r"\sqrt{4}", "2")) is None
    assert fast_verdict("2", (r"\sqrt{4}", "2")) is True
    assert fast_verdict("3", ("1", "2")) is False
    assert fast_verdict(None, ("2",)) is False


@pytest.mark.parametrize(
    "ground_truth", [None, "", "  ", [], {}, float("nan"), float("inf"), [None], 10**2000]
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


MATH_TEXT = st.lists(
    st.sampled_from(
        [
            *"0123456789xyin+-*/^_=(){}[],.;:!%$&|<> \n",
            "\\",
            "\\frac",
            "\\sqrt",
            "\\pi",
            "\\infty",
            "\\text",
            "\\%",
        ]
    ),
    max_size=25,
).map("".join)


@settings(deadline=None)
@given(st.one_of(st.text(), MATH_TEXT), st.one_of(st.text(min_size=1), MATH_TEXT).filter(str.strip))
def test_the_fast_path_never_raises(answer, reference):
    assert fast_verdict(answer, reference_answers(reference)) in (True, False, None)


@settings(max_examples=15, deadline=None)
@given(answers=st.lists(st.one_of(st.text(), MATH_TEXT), min_size=8, max_size=8))
def test_verification_never_raises_nor_calls_nonsense_right(answers, scorer):
    requests = [RewardRequest("math", rf"\boxed{{{answer}}}", "271828.75") for answer in answers]
    for result in scorer.score(requests):
        assert not result.correct
        assert result.failure in (None, "timeout") or result.failure.startswith("crash: MemoryError")
