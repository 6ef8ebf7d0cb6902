"""Rewards and lengths by verdict, and the difference of sampler and training, against plain loops."""

import math
from dataclasses import replace

import pytest
import torch

from archer.algorithms.groups import GroupCounts, count_groups
from archer.engines.local.collect import Collected
from archer.generation.judge import Judged
from archer.rewards import RewardResult
from archer.training.metrics import Sampled, response_metrics, rollout_difference, sampling_metrics

LENGTHS = [3, 5, 2, 7, 4, 6]


@pytest.fixture
def collected(make_responses):
    """Two groups of three with the given verdicts; wrong responses have a penalty for their length."""

    def make(verdicts: list[bool], failed: tuple[int, ...] = ()) -> Collected:
        responses = make_responses([2] * 6, LENGTHS)
        results = tuple(
            RewardResult.of_failure("timeout" if row == 0 else f"crash: {row}")
            if row in failed
            else RewardResult.of_verdict(verdict)
            for row, verdict in enumerate(verdicts)
        )
        penalties = torch.tensor([0.0 if v else -0.1 * n for v, n in zip(verdicts, LENGTHS, strict=True)])
        judged = Judged(responses, torch.tensor([0, 0, 0, 1, 1, 1]), results, penalties)
        counts = count_groups(judged.correct, judged.groups, ~judged.unjudged)
        return Collected(judged, Sampled(results, counts, 1, sum(LENGTHS)))

    return make


def measure(collected: Collected) -> dict[str, float]:
    judged = collected.judged
    lengths, finished = judged.responses.lengths, judged.responses.finished
    return sampling_metrics(collected.sampled) | response_metrics(
        judged.scores, judged.scores, lengths, finished, judged.correct, ~judged.unjudged
    )


def test_rewards_and_lengths_are_split_by_the_raw_verdict(collected):
    verdicts = [True, False, True, False, False, False]
    metrics = measure(collected(verdicts))
    for name, wanted in (("correct", True), ("wrong", False)):
        lengths = [n for n, v in zip(LENGTHS, verdicts, strict=True) if v == wanted]
        rewards = [1.0 if wanted else -0.1 * n for n in lengths]
        for key, values in (("response_length", lengths), ("critic/rewards", rewards)):
            got = [metrics[f"{key}/{name}/{what}"] for what in ("mean", "max", "min")]
            assert got == pytest.approx([sum(values) / len(values), max(values), min(values)])


def test_what_a_step_does_not_have_is_left_out(collected):
    metrics = measure(collected([False] * 6))
    assert not any("/correct/" in name for name in metrics)
    assert metrics["response_length/wrong/mean"] == metrics["response_length/mean"]


@pytest.mark.parametrize(
    ("verdicts", "share"),
    [([True, False, True, False, False, False], 0.5), ([True] * 3 + [False] * 3, 1.0)],
)
def test_the_share_of_degenerate_groups(collected, verdicts, share):
    assert measure(collected(verdicts))["groups/degenerate_share"] == share


def test_one_response_a_prompt_has_no_degenerate_groups():
    results = tuple(RewardResult.of_verdict(verdict) for verdict in (True, False, True))
    assert "groups/degenerate_share" not in sampling_metrics(Sampled(results, GroupCounts(0, 2, 1), 1, 12))
    assert sampling_metrics(Sampled(results, GroupCounts(0, 1, 0), 1, 12))["groups/degenerate_share"] == 1.0


def test_a_response_without_a_verdict_counts_as_unjudged_and_as_nothing_else(collected):
    verdicts = [True, False, True, False, False, False]
    given = collected(verdicts, failed=(0, 4))
    metrics = measure(given)
    assert metrics["reward/unjudged"] == 2
    assert (metrics["reward/timeouts"], metrics["reward/crashes"]) == (1, 1)
    assert metrics["reward/accuracy"] == 1 / 4
    rewards = [-0.5, 1.0, -0.7, -0.6]  # of rows 1, 2, 3 and 5
    assert metrics["critic/score/mean"] == pytest.approx(sum(rewards) / 4)
    assert metrics["critic/rewards/wrong/mean"] == pytest.approx(-0.6)
    assert metrics["response_length/correct/mean"] == 2
    assert metrics["response_length/wrong/mean"] == 6
    assert metrics["response_length/mean"] == pytest.approx(sum(LENGTHS) / 6)
    assert (metrics["groups/mixed"], metrics["groups/all_wrong"]) == (1, 1)
    note = "2 of 6 responses could not be judged and are left out; the first: timeout"
    assert given.sampled.notes == [note]


def test_a_group_without_any_verdict_is_degenerate_and_counted_by_itself(collected):
    metrics = measure(collected([True, False, True, False, False, False], failed=(3, 4, 5)))
    assert (metrics["groups/mixed"], metrics["groups/all_wrong"], metrics["groups/unjudged"]) == (1, 0, 1)
    assert metrics["groups/degenerate_share"] == 0.5


def test_sampler_and_training_are_compared_token_by_token(make_responses):
    responses = make_responses([2, 2, 2], [4, 1, 3])
    mask = responses.mask
    noise = 0.3 * torch.randn(mask.shape, generator=torch.Generator().manual_seed(3))
    trained = torch.where(mask, responses.log_probs + noise, 77.0)
    metrics = rollout_difference(responses.log_probs, trained, mask)
    pairs = [
        (float(responses.log_probs[i, t]), float(trained[i, t]))
        for i in range(3)
        for t in range(mask.shape[1])
        if mask[i, t]
    ]
    differences = [abs(math.exp(a) - math.exp(b)) for a, b in pairs]
    mean = sum(differences) / len(pairs)
    deviation = (sum((d - mean) ** 2 for d in differences) / (len(pairs) - 1)) ** 0.5
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(mean, rel=1e-6)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(deviation, rel=1e-6)
    assert metrics["rollout_corr/kl"] == pytest.approx(sum(a - b for a, b in pairs) / len(pairs), rel=1e-6)
    table = torch.tensor(pairs, dtype=torch.float64).exp().T
    correlation = float(torch.corrcoef(table)[0, 1])
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation, rel=1e-6)


def test_one_token_has_a_difference_and_no_spread(make_responses):
    responses = make_responses([2], [1])
    metrics = rollout_difference(responses.log_probs, responses.log_probs + 0.1, responses.mask)
    assert metrics["training/rollout_log_probs_diff_mean"] == pytest.approx(0.1, rel=1e-5)
    assert "training/rollout_probs_diff_std" not in metrics


def test_a_functions_own_figures_never_stand_in_for_archers(collected):
    given = collected([True, False, True, False, False, False])
    results = tuple(
        replace(r, extra={"unjudged": 7.0, "crashes": 2.0, "": 1.0, "tone": 3.0})
        for r in given.sampled.results
    )
    metrics = sampling_metrics(replace(given.sampled, results=results))
    assert metrics["reward/unjudged"] == metrics["reward/crashes"] == 0
    assert (metrics["reward/extra_unjudged"], metrics["reward/extra_crashes"]) == (7, 2)
    assert (metrics["reward/extra_"], metrics["reward/tone"]) == (1, 3)
