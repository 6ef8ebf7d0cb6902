import math

import pytest

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardCounters, RewardRequest, RewardScorer, overlong_penalty


def test_results_keep_the_order_of_mixed_requests(scorer):
    requests = [
        RewardRequest("arithmetic", r"12+30: 42 \boxed{42}", "42"),
        RewardRequest("math", r"\boxed{\sqrt{16}}", "4"),
        RewardRequest("math", r"\boxed{\sqrt{15}}", "4"),
        RewardRequest("openai/gsm8k", r"\boxed{1,000}", "1000"),
        RewardRequest("math", r"<think>\boxed{4}", "4"),
        RewardRequest("math", r"\boxed{\sqrt{16}}", "5"),
        RewardRequest("math", r"\boxed{\sqrt{16}}", "4"),
    ]
    verdicts = [result.correct for result in scorer.score(requests)]
    assert verdicts == [True, True, False, True, False, False, True]


def test_arithmetic_is_judged_as_a_number_and_never_by_algebra(scorer):
    requests = [
        RewardRequest("arithmetic", rf"\boxed{{{answer}}}", "579")
        for answer in ("579", "0579", "123+456", "580", "")
    ]
    assert [result.correct for result in scorer.score(requests)] == [True, True, False, False, False]


def test_the_last_number_counts_only_when_asked_for():
    request = RewardRequest("openai/gsm8k", "so she pays $1,234.", "1234")
    for fallback in (False, True):
        with RewardScorer(RewardConfig(last_number_fallback=fallback)) as scorer:
            assert scorer.score([request])[0].correct is fallback


def test_equal_poisonous_answers_are_tried_once_but_counted_each():
    slow = RewardRequest("math", r"\boxed{(x+y)^{4000}}", r"(x+y)^{3999}(x+y)")
    with RewardScorer(RewardConfig(num_workers=1, timeout_s=0.001)) as scorer:
        results = scorer.score([slow] * 100)  # a hundred new workers would show
        assert {result.failure for result in results} == {"timeout"}
        assert scorer.counters == RewardCounters(total=100, timeouts=100, crashes=0)


def test_an_empty_batch_is_no_work():
    with RewardScorer(RewardConfig()) as scorer:
        assert scorer.score([]) == []
        assert scorer.counters == RewardCounters()


def test_failures_are_logged_with_the_first_reason(custom, caplog):
    custom("def compute_score(**kwargs): raise ValueError('no luck')").score([RewardRequest("x", "", "")] * 3)
    assert "3 of 3" in caplog.text
    assert "no luck" in caplog.text


def test_a_data_set_can_be_checked_before_training(scorer):
    scorer.check("math", "5")
    with pytest.raises(ArcherError, match="my/poems"):
        scorer.check("my/poems", "5")
    with pytest.raises(ArcherError, match="ground truth None"):
        scorer.check("math", None)


@pytest.mark.parametrize(
    "setting",
    [{"num_workers": 0}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"memory_limit_gb": -1.0}],
)
def test_impossible_settings_are_refused(setting):
    with pytest.raises(ArcherError, match=r"must be (finite and )?(at least 1|greater than 0)"):
        RewardConfig(**setting)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (80, 0.0), (85, -0.5), (90, -1.0), (100, -2.0), (101, -2.0), (5000, -2.0)],
)
def test_penalty_grows_linearly_within_the_buffer(length, expected):
    assert overlong_penalty(length, 100, 20, 2.0) == pytest.approx(expected)


def test_penalty_never_leaves_its_range_and_never_grows_smaller_with_length():
    for buffer_len in (0, 1, 7, 50):
        penalties = [overlong_penalty(length, 50, buffer_len, 1.5) for length in range(60)]
        assert all(-1.5 <= penalty <= 0 for penalty in penalties)
        assert penalties == sorted(penalties, reverse=True)


def test_a_buffer_of_no_length_is_the_hard_limit_and_no_nan():
    penalties = [overlong_penalty(length, 50, 0, 1.0) for length in range(51)]
    assert penalties == [0.0] * 51
    assert not math.isnan(overlong_penalty(51, 50, 0, 1.0))


@pytest.mark.parametrize(("buffer_len", "factor"), [(-1, 1.0), (101, 1.0), (10, -1.0), (10, math.nan)])
def test_impossible_overlong_settings_are_refused(buffer_len, factor):
    with pytest.raises(ArcherError, match="overlong"):
        overlong_penalty(5, 100, buffer_len, factor)
