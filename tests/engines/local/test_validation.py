"""Accuracy on held-out prompts: avg@n, pass@n, and the same random stream every time."""

import pytest
import torch

from archer.config import compose
from archer.data.prompts import Prompt, PromptDataset
from archer.engines.local.batch import Responses
from archer.engines.local.experience import Judged
from archer.engines.local.validation import Validator, summarise
from archer.rewards.types import RewardResult


def test_mean_and_pass_are_taken_per_data_source_and_the_accuracy_over_all_prompts():
    result = summarise(
        {"easy": [[True, True], [True, False], [False, False]], "hard": [[False, True]]},
        {"easy": [1, 2, 3, 4, 5, 9], "hard": [10, 20]},
        n=2,
    )
    assert result.metrics == pytest.approx(
        {
            "val-core/easy/acc/mean@2": (1 + 0.5 + 0) / 3,
            "val-core/easy/acc/pass@2": 2 / 3,
            "val-aux/easy/response_length/mean": 4,
            "val-core/hard/acc/mean@2": 0.5,
            "val-core/hard/acc/pass@2": 1,
            "val-aux/hard/response_length/mean": 15,
        }
    )
    assert result.accuracy == pytest.approx((1 + 0.5 + 0 + 0.5) / 4)


def test_with_one_response_mean_and_pass_agree():
    metrics = summarise({"a": [[True], [False], [False]]}, {"a": [1, 1, 1]}, n=1).metrics
    assert metrics["val-core/a/acc/mean@1"] == metrics["val-core/a/acc/pass@1"] == pytest.approx(1 / 3)


class CountingRollout:
    """The response to a prompt of index i has i + 1 tokens, all of them drawn from the generator."""

    def __init__(self, compute) -> None:
        self.compute = compute
        self.sizes: list[int] = []
        self.params = None
        self.drawn: list[torch.Tensor] = []

    def generate(self, prompts, n, params, generator) -> Responses:
        self.sizes.append(len(prompts))
        self.params = params
        rows = tuple(prompt for prompt in prompts for _ in range(n))
        lengths = torch.tensor([prompt.index + 1 for prompt in rows])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        tokens = torch.randint(1000, mask.shape, generator=generator)
        self.drawn.append(tokens)
        return Responses(rows, tokens, mask, torch.zeros(mask.shape), torch.ones(len(rows), dtype=torch.bool))


class ParityJudge:
    """Right where the first token is even; in validation without shaping."""

    def judge(self, responses, groups, shaped=True) -> Judged:
        assert not shaped
        results = tuple(RewardResult.of_verdict(token % 2 == 0) for token in responses.tokens[:, 0].tolist())
        return Judged(responses, groups, results, torch.zeros(len(responses)))


@pytest.fixture
def make_validator(compute):
    def make(*overrides: str) -> tuple[Validator, CountingRollout]:
        config = compose([*overrides])
        sources = ["a", "b", "a", "b", "b"]
        prompts = [Prompt(i, (), (1, 2), source, "0", {}) for i, source in enumerate(sources)]
        rollout = CountingRollout(compute)
        return Validator(config, PromptDataset(prompts, 0), rollout, ParityJudge()), rollout

    return make


SAMPLED = (
    "actor_rollout_ref.rollout.val_kwargs.n=4",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.9",
    "actor_rollout_ref.rollout.val_kwargs.top_k=7",
)


def test_every_validation_uses_the_same_random_stream(make_validator):
    validator, rollout = make_validator(*SAMPLED)
    assert validator.validate() == validator.validate()
    assert torch.equal(*rollout.drawn)


def test_validation_samples_with_its_own_settings_in_batches_of_its_own_size(make_validator):
    validator, rollout = make_validator(*SAMPLED, "data.val_batch_size=2")
    result = validator.validate()
    assert rollout.sizes == [2, 2, 1]
    params = rollout.params
    assert (params.temperature, params.top_p, params.top_k, params.do_sample) == (0.6, 0.9, 7, True)
    verdicts = [(tokens[:, 0] % 2 == 0).view(-1, 4) for tokens in rollout.drawn]
    share = torch.cat(verdicts).float().mean(-1)
    assert result.accuracy == pytest.approx(float(share.mean()))
    assert result.metrics["val-core/a/acc/mean@4"] == pytest.approx(float(share[[0, 2]].mean()))
    assert result.metrics["val-core/b/acc/pass@4"] == pytest.approx(
        float((share[[1, 3, 4]] > 0).float().mean())
    )
    assert result.metrics["val-aux/b/response_length/mean"] == pytest.approx((2 + 4 + 5) / 3)


def test_a_request_to_stop_ends_a_validation_between_batches_without_a_result(make_validator):
    validator, rollout = make_validator("data.val_batch_size=2")
    assert validator.validate(stop=lambda: len(rollout.sizes) == 1) is None
    assert rollout.sizes == [2]
