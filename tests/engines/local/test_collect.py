"""Collecting a step's responses with a scripted rollout and judge: refill, limits, numbering, order."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from archer.config import compose
from archer.data.prompts import PromptDataset
from archer.data.sampler import PromptSampler
from archer.engines.local.collect import Collector
from archer.errors import ArcherError
from archer.generation.batch import Responses
from archer.generation.judge import Judged
from archer.rewards import RewardResult

N = 3
MIXED, RIGHT, WRONG = (True, False, True), (True,) * 3, (False,) * 3


class ScriptedRollout:
    """Answers a prompt of index i with 1 + i % 4 tokens and notes what it was asked."""

    def __init__(self, compute) -> None:
        self.compute = compute
        self.asked: list[list[int]] = []
        self.seeds: list[tuple[int, int]] = []

    def generate(self, prompts, n, params, streams) -> Responses:
        self.asked.append([prompt.index for prompt in prompts])
        self.seeds.append((streams.seed, streams.first_prompt))
        rows = tuple(prompt for prompt in prompts for _ in range(n))
        lengths = torch.tensor([1 + prompt.index % 4 for prompt in rows])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        tokens = torch.tensor([prompt.index for prompt in rows])[:, None] * mask
        return Responses(rows, tokens, mask, torch.zeros(mask.shape), torch.ones(len(rows), dtype=torch.bool))


class ScriptedJudge:
    """The verdicts of a prompt's group, by the prompt's index."""

    def __init__(self, verdict: Callable[[int], tuple[bool | None, ...]]) -> None:
        self.verdict = verdict

    def judge(self, responses, groups, shaped=True) -> Judged:
        results = []
        for row, prompt in enumerate(responses.prompts):
            mark = self.verdict(prompt.index)[row % N]
            failed = RewardResult.of_failure(f"crash: {prompt.index}.{row % N}")
            results.append(failed if mark is None else RewardResult.of_verdict(mark))
        results = tuple(results)
        return Judged(responses, groups, results, torch.zeros(len(responses)))


@pytest.fixture
def make_collector(compute, make_prompts):
    def make(
        verdict: Callable[[int], tuple[bool, ...]], *overrides: str
    ) -> tuple[Collector, ScriptedRollout]:
        config = compose(
            [
                f"actor_rollout_ref.rollout.n={N}",
                "data.train_batch_size=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                *overrides,
            ]
        )
        dataset = PromptDataset(make_prompts([2] * 40), overlong=0)
        sampler = PromptSampler(40, 4, shuffle=False, seed=0)
        rollout = ScriptedRollout(compute)
        generation = SimpleNamespace(compute=compute, rollout=rollout, judge=ScriptedJudge(verdict))
        return Collector(config, dataset, sampler, generation), rollout

    return make


FILTER = "algorithm.filter_groups.enable=True"


def prompts_of(collected) -> list[int]:
    return [prompt.index for prompt in collected.judged.responses.prompts]


def test_without_filtering_every_group_is_kept_and_prompts_come_in_the_samplers_order(make_collector):
    collector, rollout = make_collector(lambda index: (WRONG, RIGHT, MIXED)[index % 3])
    first, second = collector.collect(1), collector.collect(2)
    assert rollout.asked == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert prompts_of(first) == [i for i in range(4) for _ in range(N)]
    assert first.judged.groups.tolist() == [i for i in range(4) for _ in range(N)]
    assert (first.sampled.counts.all_wrong, first.sampled.counts.all_correct, first.sampled.counts.mixed) == (
        2,
        1,
        1,
    )
    assert first.sampled.generations == second.sampled.generations == 1 and first.sampled.warning is None
    assert first.sampled.tokens == N * (1 + 2 + 3 + 4)


def test_filtered_groups_are_refilled_from_the_next_prompts_and_leftovers_are_dropped(make_collector):
    mixed = {1, 5, 6, 8, 9, 10}
    collector, rollout = make_collector(lambda index: MIXED if index in mixed else WRONG, FILTER)
    collected = collector.collect(1)
    assert rollout.asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert prompts_of(collected) == [i for i in (1, 5, 6, 8) for _ in range(N)]
    assert collected.sampled.generations == 3 and collected.sampled.warning is None
    assert (collected.sampled.counts.mixed, collected.sampled.counts.all_wrong) == (6, 6)
    assert collected.sampled.tokens == 3 * N * (1 + 2 + 3 + 4)
    assert len(collected.judged.results) == len(collected.judged.groups) == 4 * N
    collector.collect(2)
    assert rollout.asked[3] == [12, 13, 14, 15]


def test_group_numbers_are_unique_across_generations_and_belong_to_one_prompt(make_collector):
    collector, _ = make_collector(lambda index: MIXED if index % 3 == 0 else RIGHT, FILTER)
    collected = collector.collect(1)
    groups = collected.judged.groups.tolist()
    assert len(set(groups)) == 4
    assert len(set(zip(groups, prompts_of(collected), strict=True))) == 4


def test_the_rows_kept_are_those_that_were_judged(make_collector):
    collector, _ = make_collector(lambda index: (True, False, index % 2 == 0) if index % 3 else WRONG, FILTER)
    judged = collector.collect(1).judged
    for row, prompt in enumerate(judged.responses.prompts):
        assert judged.correct[row].item() == (True, False, prompt.index % 2 == 0)[row % N]
        assert judged.responses.tokens[row][judged.responses.mask[row]].tolist() == [prompt.index] * (
            1 + prompt.index % 4
        )


def test_the_generation_batch_size_may_differ_from_the_training_batch_size(make_collector):
    collector, rollout = make_collector(
        lambda index: MIXED if index % 2 else WRONG, FILTER, "data.gen_batch_size=5"
    )
    collected = collector.collect(1)
    assert rollout.asked == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert prompts_of(collected) == [i for i in (1, 3, 5, 7) for _ in range(N)]
    assert len(set(collected.judged.groups.tolist())) == 4


def test_after_the_last_generation_allowed_the_step_goes_on_with_what_there_is_and_says_so(make_collector):
    collector, rollout = make_collector(
        lambda index: MIXED if index == 6 else RIGHT, FILTER, "algorithm.filter_groups.max_num_gen_batches=3"
    )
    collected = collector.collect(1)
    assert len(rollout.asked) == collected.sampled.generations == 3
    assert prompts_of(collected) == [6] * N
    assert "1 of 4" in collected.sampled.warning and "max_num_gen_batches" in collected.sampled.warning


def test_where_every_group_is_degenerate_nothing_is_kept(make_collector):
    collector, _ = make_collector(
        lambda index: WRONG, FILTER, "algorithm.filter_groups.max_num_gen_batches=2"
    )
    collected = collector.collect(1)
    assert len(collected.judged.responses) == 0 and "0 of 4" in collected.sampled.warning
    assert collected.sampled.counts.all_wrong == 8 and collected.sampled.tokens > 0


def test_every_generation_of_every_step_has_a_stream_of_its_own_that_a_second_run_repeats(make_collector):
    def seeds() -> list[tuple[int, int]]:
        collector, rollout = make_collector(
            lambda index: WRONG, FILTER, "algorithm.filter_groups.max_num_gen_batches=3"
        )
        collector.collect(1)
        collector.collect(2)
        return rollout.seeds

    assert len(set(seeds())) == 6
    assert seeds() == seeds()


def test_a_group_is_mixed_by_its_judged_responses_and_keeps_the_others_for_the_trace(make_collector):
    marks = {0: (True, None, False), 1: (True, None, True), 2: (None, None, True), 3: (None,) * 3}
    collector, _ = make_collector(
        lambda index: marks.get(index, MIXED), FILTER, "reward.max_failed_share=0.7"
    )
    collected = collector.collect(1)
    assert prompts_of(collected) == [i for i in (0, 4, 5, 6) for _ in range(N)]
    assert collected.judged.unjudged.tolist() == [False, True] + [False] * 10
    counts = collected.sampled.counts
    assert (counts.mixed, counts.all_correct, counts.all_wrong, counts.unjudged) == (5, 2, 0, 1)


def test_an_outage_ends_the_step_after_one_generation_though_more_are_allowed_without_limit(make_collector):
    collector, rollout = make_collector(
        lambda index: (None, True, True), FILTER, "algorithm.filter_groups.max_num_gen_batches=1000"
    )
    with pytest.raises(ArcherError, match=r"4 of 12 responses of step 5 .* The first failure: crash: 0\.0\."):
        collector.collect(5)
    assert len(rollout.asked) == 1


@pytest.mark.parametrize("filtering", [(), (FILTER,)])
def test_the_share_is_of_everything_sampled_for_the_step(make_collector, filtering):
    collector, _ = make_collector(
        lambda index: (None, True, False) if index == 0 else MIXED, "reward.max_failed_share=0.09", *filtering
    )
    collector.collect(1)  # 1 of 12 is 0.083
    collector, _ = make_collector(
        lambda index: (None, True, False) if index < 2 else MIXED, "reward.max_failed_share=0.09", *filtering
    )
    with pytest.raises(ArcherError, match="2 of 12 responses of step 1"):
        collector.collect(1)
