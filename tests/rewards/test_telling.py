"""Why a response was judged so: what rules say of it, and what a trace keeps of that."""

import pytest

from archer.rewards import RewardConfig, RewardRequest, RewardResult, RewardScorer
from archer.rewards.code.grade import CodeVerdict, Ending
from archer.rewards.combine import WeightedRule, combine
from archer.rewards.rules.call import to_result
from archer.rewards.rules.math import NO_ANSWER
from archer.rewards.telling import MAX_SHOWN, MAX_TEXT, shortened, told, truth_text


def judged(source: str, response: str, truth: object) -> RewardResult:
    with RewardScorer(RewardConfig(num_workers=1)) as scorer:
        return scorer.score([RewardRequest(source, response, truth)])[0]


@pytest.mark.parametrize("source", ["arithmetic", "math"])
@pytest.mark.parametrize(
    ("response", "truth", "extracted", "reason"),
    [
        (r"so \boxed{24}", "18", "24", "expected 18, found 24"),
        (r"so \boxed{18}", 18, "18", "found 18, as expected"),
        (r"so \boxed{18.0}", "18", "18.0", "found 18.0, the same as 18"),
        (r"so \boxed{7}", ["18", "19"], "7", "expected 18 or 19, found 7"),
        ("I do not know", "18", None, NO_ANSWER),
        (r"so \boxed{1", "18", None, NO_ANSWER),
    ],
)
def test_a_verdict_says_what_was_expected_and_what_was_found(source, response, truth, extracted, reason):
    result = judged(source, response, truth)
    assert (result.extracted, result.reason) == (extracted, reason)
    assert result.correct == reason.startswith("found")


def test_algebra_in_a_worker_says_it_too():
    result = judged("math", r"\boxed{(x+1)^2}", "x^2+2x+1")
    assert result.correct
    assert (result.extracted, result.reason) == ("(x+1)^2", "found (x+1)^2, the same as x^2+2x+1")


def test_a_long_answer_is_quoted_in_part():
    result = judged("arithmetic", rf"\boxed{{{'9' * 500}}}", "18")
    assert len(result.reason) < 100 and result.reason.endswith("…")
    assert result.extracted == "9" * 500


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (CodeVerdict(Ending.PASSED, 9, 9), "all 9 tests passed"),
        (CodeVerdict(Ending.WRONG, 2, 9, 2, "printed 4"), "test 3 of 9 failed: printed 4"),
        (CodeVerdict(Ending.TIMEOUT, 0, 9, 0, None), "test 1 of 9 failed"),
        (CodeVerdict(Ending.NO_PROGRAM, 0, 9, None, "no closed block"), "no closed block"),
    ],
)
def test_a_program_is_told_by_its_first_failed_test(verdict, reason):
    assert verdict.to_result(partial_credit=False).reason == reason


def test_a_function_may_tell_its_answer_and_reason():
    told_by = {"score": 0.0, "acc": False, "pred": "24", "reason": "wrong unit"}
    assert (to_result(told_by).extracted, to_result(told_by).reason) == ("24", "wrong unit")
    assert to_result(told_by | {"extracted_answer": "25"}).extracted == "25"
    assert (to_result({"score": 1, "pred": 24}).extracted, to_result(1.0).reason) == (None, None)


def test_several_functions_tell_each_its_reason():
    rule = object()
    parts = [WeightedRule(rule, 1.0, "correctness"), WeightedRule(rule, 0.5, "style")]
    results = [RewardResult(1.0, True, extracted="7", reason="same"), RewardResult(0.0, False, reason="long")]
    assert combine(parts, results).reason == "correctness: same; style: long"
    assert combine(parts, results).extracted == "7"


def test_a_response_that_could_not_be_judged_says_why_and_what_it_answered():
    texts = told([RewardResult.of_failure("timeout")], ["18"], ["math"])
    assert texts["reason"] == ["not judged: timeout"]


def test_texts_are_cut_and_can_be_written():
    result = RewardResult(0.0, False, detail="d" * 5000, extracted="e" * 5000, reason="r\ud800\0" * 5000)
    texts = told([result], [{"tests": ["é"] * 500}], ["math"])
    for name in ("ground_truth", "extracted_answer", "reason"):
        (text,) = texts[name]
        assert len(text) == MAX_SHOWN and text.endswith("…")
        assert "\0" not in text.encode().decode()
    assert len(texts["judgement"][0]) < MAX_TEXT + 100


@pytest.mark.parametrize(
    ("truth", "text"), [("18", "18"), (18, "18"), (["a", 2], '["a", 2]'), (None, ""), ({"é": 1}, '{"é": 1}')]
)
def test_a_ground_truth_is_shown_as_text(truth, text):
    assert truth_text(truth) == text
    assert shortened(text) == text
