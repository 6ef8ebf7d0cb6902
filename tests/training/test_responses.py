"""The best and worst responses of a step: which are chosen, and what is said of them."""

import pytest
import torch

from archer.errors import hide
from archer.rewards import RewardResult
from archer.training.responses import best_and_worst
from archer.training.traces import StepRecord


class Letters:
    """Token 0 is `a`, token 1 is `b`, ..."""

    def __init__(self):
        self.decoded = 0

    def decode(self, token_ids, skip_special_tokens):
        self.decoded += 1
        return "".join(chr(ord("a") + int(token)) for token in token_ids)


def record(scores, groups, unjudged=(), details=None):
    count = len(scores)
    mask = torch.ones(count, 3, dtype=torch.bool)
    mask[:, 2] = False
    return StepRecord(
        step=7,
        prompts=[[25, group] for group in groups],
        sample_index=[0] * count,
        groups=groups,
        tokens=torch.arange(count)[:, None].expand(count, 3).clone(),
        mask=mask,
        entropy=torch.tensor([[0.5, 1.5, 9.0]] * count),
        log_probs=torch.zeros(count, 3),
        advantages=torch.zeros(count, 3),
        scores=torch.tensor(scores),
        correct=torch.tensor([score > 0 for score in scores]),
        unjudged=torch.tensor([row in unjudged for row in range(count)]),
        results=[
            RewardResult(score, score > 0, detail=(details or {}).get(row))
            for row, score in enumerate(scores)
        ],
        data_sources=["arithmetic"] * count,
        ground_truths=["4"] * count,
        finished=torch.ones(count, dtype=torch.bool),
        seeds=None,
        rollout_log_probs=torch.zeros(count, 3),
        marks=None,
    )


def test_the_best_come_from_the_top_and_the_worst_from_the_bottom():
    tokenizer = Letters()
    chosen = best_and_worst(record([0.5, 1.0, -1.0, 0.0, 0.75], [0, 0, 1, 1, 2]), 2, tokenizer)
    assert [(c.rank, c.reward, c.response) for c in chosen] == [
        ("best", 1.0, "bb"),
        ("best", 0.75, "ee"),
        ("worst", -1.0, "cc"),
        ("worst", 0.0, "dd"),
    ]
    assert tokenizer.decoded == 2 * 4, "only the chosen are decoded"
    first = chosen[0]
    assert (first.step, first.prompt, first.verdict, first.length) == (7, "za", "accepted", 2)
    assert first.ground_truth == "4"
    assert first.mean_entropy == 1.0, "the mean over the response's own tokens"
    assert [c.verdict for c in chosen] == ["accepted", "accepted", "rejected", "rejected"]


def test_of_equal_rewards_each_prompt_is_shown_before_one_is_shown_twice():
    chosen = best_and_worst(record([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0, 0, 1, 2, 2, 3]), 2, Letters())
    assert [c.response for c in chosen] == ["aa", "cc", "dd", "ff"]


def test_no_response_is_shown_twice_and_one_without_a_verdict_never():
    chosen = best_and_worst(record([1.0, 0.0, 1.0], [0, 0, 0], unjudged={2}), 5, Letters())
    assert [(c.rank, c.response) for c in chosen] == [("best", "aa"), ("best", "bb")]
    assert best_and_worst(record([1.0], [0], unjudged={0}), 5, Letters()) == []


@pytest.mark.parametrize("detail", ["the key sesame-4711 was refused", None])
def test_what_came_out_of_the_environment_is_masked(detail, monkeypatch):
    monkeypatch.setattr("archer.errors._HIDDEN", {})
    hide("sesame-4711", "${oc.env:KEY}")
    (chosen,) = best_and_worst(record([0.0], [0], details={0: detail}), 1, Letters())
    assert chosen.reason == ("the key ${oc.env:KEY} was refused" if detail else None)
