"""Accuracy on held-out prompts while training: its settings, its batches, the same streams every time."""

from types import SimpleNamespace

import pytest
import torch

from archer.config import compose
from archer.data.prompts import Prompt, PromptDataset
from archer.errors import ArcherError
from archer.evaluation.evaluator import Evaluator, all_samples, validation_sampling
from archer.evaluation.summary import summarise
from archer.generation.batch import Responses
from archer.rewards import RewardConfig, RewardResult, RewardScorer


class CountingRollout:
    """The response to a prompt of index i has i + 1 tokens, all of them drawn from its stream."""

    def __init__(self, compute) -> None:
        self.compute = compute
        self.sizes: list[int] = []
        self.params = None
        self.drawn: list[torch.Tensor] = []

    def generate(self, prompts, n, params, streams) -> Responses:
        self.sizes.append(len(prompts))
        self.params = params
        rows = tuple(prompt for prompt in prompts for _ in range(n))
        lengths = torch.tensor([prompt.index + 1 for prompt in rows])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        number = torch.arange(len(rows))
        draws = streams.draws(number // n, number % n)
        tokens = torch.stack([(1000 * draws.at(t, number)).long() for t in range(mask.shape[1])], 1)
        self.drawn.append(tokens)
        return Responses(rows, tokens, mask, torch.zeros(mask.shape), torch.ones(len(rows), dtype=torch.bool))


class ParityJudge:
    """Right where the first token is even."""

    scorer = RewardScorer(RewardConfig())

    def verdicts(self, responses):
        first = responses.tokens[:, 0].tolist()
        return [str(token) for token in first], [RewardResult.of_verdict(token % 2 == 0) for token in first]


@pytest.fixture
def make_validator(compute):
    def make(*overrides: str) -> tuple[Evaluator, CountingRollout]:
        config = compose([*overrides])
        sources = ["math", "aime24", "math", "aime24", "aime24"]
        prompts = [Prompt(i, (), (1, 2), source, "0", {}) for i, source in enumerate(sources)]
        rollout = CountingRollout(compute)
        dataset = PromptDataset(prompts, 0)
        return Evaluator(dataset, rollout, ParityJudge(), validation_sampling(config)), rollout

    return make


def summarised(validator: Evaluator, share: float = 0.2, **options):
    samples = all_samples(validator, RewardConfig(max_failed_share=share), "the validation", **options)
    return None if samples is None else summarise(samples)


SAMPLED = (
    "actor_rollout_ref.rollout.val_kwargs.n=4",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.9",
    "actor_rollout_ref.rollout.val_kwargs.top_k=7",
)


def test_every_validation_uses_the_same_random_streams(make_validator):
    validator, rollout = make_validator(*SAMPLED)
    assert summarised(validator) == summarised(validator)
    assert torch.equal(*rollout.drawn)


def test_validation_samples_with_its_own_settings_in_batches_of_its_own_size(make_validator):
    validator, rollout = make_validator(*SAMPLED, "data.val_batch_size=2")
    result = summarised(validator)
    assert rollout.sizes == [2, 2, 1]
    params = rollout.params
    assert (params.temperature, params.top_p, params.top_k, params.do_sample) == (0.6, 0.9, 7, True)
    verdicts = [(tokens[:, 0] % 2 == 0).view(-1, 4) for tokens in rollout.drawn]
    share = torch.cat(verdicts).float().mean(-1)
    assert result.overall.avg == pytest.approx(float(share.mean()))
    assert result.metrics()["val-core/math/acc/mean@4"] == pytest.approx(float(share[[0, 2]].mean()))
    assert result.metrics()["val-core/aime24/acc/pass@4"] == pytest.approx(
        float((share[[1, 3, 4]] > 0).float().mean())
    )
    assert result.metrics()["val-aux/aime24/response_length/mean"] == pytest.approx((2 + 4 + 5) / 3)


def test_without_a_batch_size_as_many_prompts_go_together_as_may_be_decoded_at_a_time(make_validator):
    validator, rollout = make_validator(*SAMPLED, "actor_rollout_ref.rollout.max_num_seqs=12")
    summarised(validator)
    assert rollout.sizes == [3, 2]


def test_a_request_to_stop_ends_a_validation_between_batches_without_a_result(make_validator):
    validator, rollout = make_validator("data.val_batch_size=2")
    assert summarised(validator, stop=lambda: len(rollout.sizes) == 1) is None
    assert rollout.sizes == [2]


class FailingJudge(ParityJudge):
    """Cannot judge the responses with these numbers, in the order of judging."""

    def __init__(self, broken: set[int]) -> None:
        self.broken, self.seen = broken, 0

    def verdicts(self, responses):
        texts, results = super().verdicts(responses)
        numbers = range(self.seen, self.seen + len(results))
        self.seen += len(results)
        failed = RewardResult.of_failure
        return texts, [
            failed(f"crash: {n}") if n in self.broken else r for n, r in zip(numbers, results, strict=True)
        ]


def test_a_validation_without_verdicts_for_too_many_responses_ends_as_soon_as_that_is_certain(make_validator):
    validator, rollout = make_validator(*SAMPLED, "data.val_batch_size=1")
    validator.judge = FailingJudge(
        {3, 4, 5, 6, 7}
    )  # of 20, at most 4 may fail: clear after the second prompt
    with pytest.raises(ArcherError, match=r"5 of 20 responses of the validation .* failure: crash: 3\."):
        summarised(validator)
    assert rollout.sizes == [1, 1]


def test_a_validation_leaves_out_what_could_not_be_judged(make_validator):
    validator, rollout = make_validator(*SAMPLED)
    validator.judge = FailingJudge({3, 4, 5, 6})
    summary = summarised(validator)
    right = [bool(token % 2 == 0) for tokens in rollout.drawn for token in tokens[:, 0]]
    shares = []
    for prompt in range(5):
        judged = [right[i] for i in range(prompt * 4, prompt * 4 + 4) if i not in (3, 4, 5, 6)]
        shares.append(sum(judged) / len(judged))
    assert summary.accuracy == pytest.approx(sum(shares) / 5)
    assert summary.overall.failures == 4


def test_an_unjudged_response_does_not_vote(make_validator):
    """Two responses say 2 and could not be judged, one right one says 4: the right one has most votes."""
    validator, _ = make_validator(*SAMPLED, "data.val_max_samples=1")

    class Judge:
        scorer = SimpleNamespace(
            has_answers=lambda source: True,
            answer=lambda source, text: text or None,
            same_answers=lambda source, pairs: [a == b for a, b in pairs],
        )

        def verdicts(self, responses):
            texts = ["2", "2", "4", ""] * (len(responses) // 4)
            failed, verdict = RewardResult.of_failure, RewardResult.of_verdict
            results = [failed("timeout"), failed("timeout"), verdict(True), verdict(False)]
            return texts, results * (len(responses) // 4)

    validator.judge = Judge()
    assert summarised(validator, share=0.5).overall.majority == 1.0
