"""From tokens to rewards: the text that is judged, and the penalty for length."""

import re

import pytest
import torch

from archer.data.prompts import Prompt
from archer.errors import ArcherError
from archer.generation.batch import Responses
from archer.generation.judge import Judge, Judged, refuse_outage
from archer.rewards import RewardResult
from archer.rewards.config import CustomRewardConfig, OverlongBufferConfig, RewardConfig
from archer.rewards.rules import NO_OPINION


class SpellingTokenizer:
    """Token i is the letter i; token 0 is special."""

    def batch_decode(self, rows, skip_special_tokens):
        shown = [[token for token in row if token or not skip_special_tokens] for row in rows]
        return ["".join(chr(97 + token) for token in row) for row in shown]


class RecordingScorer:
    def __init__(self) -> None:
        self.requests = []

    def score(self, requests):
        self.requests = list(requests)
        return [RewardResult(score=2.0 * (i % 2), correct=i % 2 == 1) for i in range(len(requests))]


@pytest.fixture
def responses() -> Responses:
    lengths = torch.tensor([2, 6, 8, 10])
    mask = torch.arange(10) < lengths[:, None]
    prompts = tuple(Prompt(i, (), (1,), f"source{i}", str(i), {"i": i}) for i in range(4))
    tokens = torch.where(mask, 1 + torch.arange(4)[:, None], 7)
    tokens[0, 1] = 0
    return Responses(prompts, tokens, mask, torch.zeros(4, 10), torch.ones(4, dtype=torch.bool))


def judge(overlong: OverlongBufferConfig) -> tuple[Judge, RecordingScorer]:
    scorer = RecordingScorer()
    return Judge(scorer, SpellingTokenizer(), overlong, max_response_length=10), scorer


def test_what_is_judged_is_the_response_alone_without_padding_and_special_tokens(responses):
    subject, scorer = judge(OverlongBufferConfig())
    judged = subject.judge(responses, torch.zeros(4, dtype=torch.long))
    assert [request.response for request in scorer.requests] == ["b", "c" * 6, "d" * 8, "e" * 10]
    assert [request.data_source for request in scorer.requests] == [f"source{i}" for i in range(4)]
    assert [request.ground_truth for request in scorer.requests] == ["0", "1", "2", "3"]
    assert [request.extra_info for request in scorer.requests] == [{"i": i} for i in range(4)]
    assert judged.scores.tolist() == [0, 2, 0, 2] and judged.penalties.tolist() == [0] * 4


def test_the_overlong_penalty_shapes_the_score_and_leaves_the_verdict_alone(responses):
    subject, _ = judge(OverlongBufferConfig(enable=True, len=4, penalty_factor=0.5))
    judged = subject.judge(responses, torch.zeros(4, dtype=torch.long))
    assert judged.penalties.tolist() == pytest.approx([0, 0, -0.25, -0.5])
    assert judged.scores.tolist() == pytest.approx([0, 2, -0.25, 1.5])
    assert judged.correct.tolist() == [False, True, False, True]


def test_raw_verdicts_come_with_the_text_and_without_the_penalty(responses):
    subject, _ = judge(OverlongBufferConfig(enable=True, len=4, penalty_factor=0.5))
    texts, results = subject.verdicts(responses)
    assert texts == ["b", "c" * 6, "d" * 8, "e" * 10]
    assert [result.score for result in results] == [0, 2, 0, 2]


def test_a_response_that_could_not_be_judged_has_no_reward_no_penalty_and_nothing_to_learn_from(responses):
    results = (
        RewardResult(2.0, True),
        RewardResult.of_failure("timeout"),
        RewardResult(0.0, False),
        RewardResult.of_failure("crash: x"),
    )
    subject = Judged(responses, torch.zeros(4, dtype=torch.long), results, torch.full((4,), -0.25))
    assert subject.unjudged.tolist() == [False, True, False, True]
    assert subject.scores.tolist() == [1.75, 0, -0.25, 0]
    assert subject.loss_mask.sum(-1).tolist() == [2, 0, 8, 0]


OWN = CustomRewardConfig(path="r.py")


@pytest.mark.parametrize(
    ("failures", "reward", "told"),
    [
        (
            ["timeout", "crash: x"],
            RewardConfig(custom_reward_function=OWN),
            "2 of 4 responses of step 7 could not be judged; at most reward.max_failed_share=0.2 of them may "
            "fail. The first failure: timeout. Please raise reward.timeout_s=10",
        ),
        (
            ["crash: ValueError: x", "timeout"],
            RewardConfig(custom_reward_function=OWN),
            "The first failure: crash: ValueError: x. Please correct the reward function in r.py, and run",
        ),
        (["crash: x"], RewardConfig(), "Please correct the reward, and run again."),
        (["crash: x"], RewardConfig(max_failed_share=0.0), "1 of 4"),
        (["crash: x"] * 4, RewardConfig(max_failed_share=1.0), "4 of 4"),  # nothing is left to learn from
        ([NO_OPINION] * 4, RewardConfig(), f"4 of 4 responses .* The first failure: {NO_OPINION}"),
        ([NO_OPINION, "crash: x"], RewardConfig(), "1 of 4 responses .* The first failure: crash: x"),
    ],
)
def test_an_outage_is_told_with_its_numbers_its_first_failure_and_what_to_do(failures, reward, told):
    with pytest.raises(ArcherError, match=re.escape(told).replace(r"\.\*", ".*")):
        refuse_outage(failures, 4, reward, "step 7")


@pytest.mark.parametrize(
    ("failed", "total", "share"), [(0, 0, 0.2), (0, 5, 0.0), (1, 5, 0.2), (29, 100, 0.29), (3, 4, 1.0)]
)
def test_up_to_the_share_itself_the_run_goes_on(failed, total, share):
    refuse_outage(["timeout"] * failed, total, RewardConfig(max_failed_share=share), "step 7")


def test_having_no_opinion_is_no_failure_unless_nothing_at_all_is_judged():
    refuse_outage([NO_OPINION] * 3, 4, RewardConfig(max_failed_share=0.0), "step 7")
