"""From tokens to rewards: the text that is judged, and the penalty for length."""

import re

import pytest
import torch

from archer.data.prompts import Prompt
from archer.errors import ArcherError
from archer.generation.batch import Responses
from archer.generation.judge import Judge, refuse_unjudged
from archer.rewards import RewardResult
from archer.rewards.config import CustomRewardConfig, OverlongBufferConfig, RewardConfig


class SpellingTokenizer:
    """Token i is the letter i; token 0 is special."""

    def batch_decode(self, rows, skip_special_tokens):
        assert skip_special_tokens
        return ["".join(chr(97 + token) for token in row if token) for row in rows]


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


@pytest.mark.parametrize(
    ("failures", "todo"),
    [
        (["timeout", "crash: x"], "raise reward.timeout_s=10"),
        (
            ["crash: ValueError: x", "timeout"],
            "crash: ValueError: x. Please correct the reward function in r.py",
        ),
    ],
)
def test_a_step_without_a_single_judgement_is_refused_with_the_first_failure(failures, todo):
    reward = RewardConfig(custom_reward_function=CustomRewardConfig(path="r.py"))
    with pytest.raises(ArcherError, match=re.escape(todo)):
        refuse_unjudged(failures, reward)


@pytest.mark.parametrize("failures", [[], [None], ["timeout", None]])
def test_one_judgement_is_enough_to_go_on(failures):
    refuse_unjudged(failures, RewardConfig())
