"""Archer's advantages, rewards, prompts and metrics where verl calls them."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from archer.algorithms.advantages.base import ADVANTAGES, AdvantageInputs, bound_advantage
from archer.algorithms.dynamic_sampling import DynamicSampling
from archer.algorithms.groups import GroupCounts
from archer.config import compose
from archer.config.actor import actor_config
from archer.engines.verl import buffer
from archer.engines.verl import rows as rows_module
from archer.engines.verl.algorithms import register_estimator
from archer.engines.verl.buffer import JudgedRow, StepBuffer, group_of
from archer.engines.verl.cluster import own_error, what_happened
from archer.engines.verl.influence import RankTrace
from archer.engines.verl.metrics import influence_metrics, update_metrics
from archer.engines.verl.prompts import ArcherDataset
from archer.engines.verl.reward import ArcherRewardManager
from archer.engines.verl.rows import StepRows
from archer.engines.verl.settings import verl_settings
from archer.engines.verl.worker import RankUpdate
from archer.errors import ArcherError
from archer.generation.model import load_tokenizer
from archer.influence import Group, Selection
from archer.rewards import RewardResult, RewardScorer
from archer.rewards.config import RewardConfig
from archer.training.metrics import Sampled, sampling_metrics
from archer.training.update_marks import MarkMaker


@pytest.fixture(scope="module")
def config():
    return compose(
        [
            "engine=verl",
            "engine.device=cpu",
            "reward.reward_kwargs.overlong_buffer_cfg.enable=True",
            "reward.reward_kwargs.overlong_buffer_cfg.len=8",
        ]
    )


@pytest.mark.parametrize("name", [name for name in ADVANTAGES.names() if name != "gae"])
def test_advantages_are_archers_and_rows_that_fill_up_a_batch_change_nothing(name):
    config = compose(["engine=verl", f"algorithm.adv_estimator={name}", "algorithm.gamma=0.9"])
    register_estimator(config)
    register_estimator(config)  # a second time is harmless
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 5, 2, 4, 5, 1])
    mask = torch.arange(5) < lengths[:, None]
    rewards = torch.zeros(6, 5)
    rewards[torch.arange(6), lengths - 1] = torch.rand(6, generator=generator)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    expected = bound_advantage(name, config.algorithm)(AdvantageInputs(rewards, mask, groups))

    filled_mask = torch.cat([mask, torch.zeros(2, 5, dtype=torch.bool)])
    filled_rewards = torch.cat([rewards, torch.zeros(2, 5)])
    uids = np.array(["x", "x", "x", "y", "y", "y", "pad", "pad"], dtype=object)
    advantages, returns = get_adv_estimator_fn(f"archer_{name}")(
        token_level_rewards=filled_rewards,
        response_mask=filled_mask,
        index=uids,
        config=OmegaConf.create({"gamma": 0.9}),
    )
    assert torch.equal(advantages[:6], expected)
    assert (advantages[6:] == 0).all()
    assert torch.equal(returns, advantages)

    unjudged = filled_mask.clone()
    unjudged[[1, 4]] = False  # as the driver empties the masks of responses without a verdict
    judged = torch.tensor([True, False, True, True, False, True])
    expected = bound_advantage(name, config.algorithm)(
        AdvantageInputs(rewards[judged], mask[judged], groups[judged])
    )
    advantages, _ = get_adv_estimator_fn(f"archer_{name}")(
        token_level_rewards=filled_rewards, response_mask=unjudged, index=uids
    )
    assert torch.equal(advantages[:6][judged], expected)
    assert (advantages[[1, 4, 6, 7]] == 0).all()


def judged(config, answers: list[tuple[str, str]]) -> list[dict]:
    """Rewards of (response, ground truth) pairs, asked for all at once."""
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    manager = ArcherRewardManager(verl_settings(config), tokenizer, None)

    async def ask_all():
        return await asyncio.gather(*(manager.run_single(request(text, truth)) for text, truth in answers))

    def request(text: str, truth: str) -> DataProto:
        tokens = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        return DataProto(
            batch=TensorDict(
                {
                    "responses": tokens,
                    "attention_mask": torch.ones(1, 4 + tokens.shape[1], dtype=torch.long),
                },
                batch_size=1,
            ),
            non_tensor_batch={
                "data_source": np.array(["arithmetic"], dtype=object),
                "reward_model": np.array([{"ground_truth": truth}], dtype=object),
                "extra_info": np.array([{}], dtype=object),
            },
        )

    try:  # in a thread of its own: browser tests leave a running event loop in this one
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, ask_all()).result()
    finally:
        manager.scorer.close()


def test_responses_are_judged_by_archers_scorer_with_raw_verdict_and_shaped_score(config):
    long = "1+1=2\n" * 7 + "\\boxed{7}"
    right, wrong, overlong = judged(config, [("\\boxed{7}", "7"), ("\\boxed{8}", "7"), (long, "7")])
    assert (right["reward_score"], right["reward_extra_info"]["acc"]) == (1.0, 1.0)
    assert (wrong["reward_score"], wrong["reward_extra_info"]["acc"]) == (0.0, 0.0)
    assert overlong["reward_extra_info"]["acc"] == 1.0
    assert overlong["reward_extra_info"]["score"] == 1.0
    assert overlong["reward_score"] < 1.0
    told = JudgedRow.of({"reward_extra_info": wrong["reward_extra_info"]})
    assert (told.result.extracted, told.result.reason) == ("8", "expected 7, found 8")
    assert (told.ground_truth, told.data_source) == ("7", "arithmetic")


def test_the_dataset_holds_archers_prompts_and_their_very_tokens(config):
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    data = OmegaConf.create(asdict(config.data))
    dataset = ArcherDataset(["builtin:arithmetic/val"], tokenizer, data, max_samples=5)
    assert len(dataset) == 5
    row = dataset[3]
    rendered = tokenizer.apply_chat_template(
        row["raw_prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert row["prompt_token_ids"] == rendered
    assert row["index"] == 3
    assert row["reward_model"]["ground_truth"]


def test_means_are_over_the_tokens_of_all_ranks():
    updates = [
        RankUpdate({"entropy": (6.0, 3.0)}, {"pg_loss": 0.5}, 0, RankTrace({}, {})),
        RankUpdate({"entropy": (2.0, 1.0), "kl": (0.0, 0.0)}, {"pg_loss": 0.25}, 1, RankTrace({}, {})),
    ]
    assert update_metrics(updates, optimizer_steps=3) == {
        "actor/entropy": 2.0,
        "actor/pg_loss": 0.25,
        "actor/skipped_updates": 1.0,
    }


def test_counts_of_ranks_add_up_and_times_are_the_slowest_ranks():
    def update(rows: float, seconds: float) -> RankUpdate:
        metrics = {"influence_trace/rows_emitted": rows, "timing_s/influence_solve": seconds}
        return RankUpdate({}, {}, 0, RankTrace({}, metrics))

    selection = Selection((Group("a", (0, 1), (True, False)),), 2, 3, 0)
    metrics = influence_metrics([update(4, 0.5), update(3, 0.7)], selection)
    assert metrics["influence_trace/rows_emitted"] == 7
    assert metrics["timing_s/influence_solve"] == 0.7
    assert metrics["influence_trace/selected_responses"] == 2
    assert metrics["influence_trace/skipped_all_rejected"] == 3


def test_rewards_are_counted_over_everything_sampled():
    verdicts = (
        RewardResult(1.0, True, {"format": 1.0}),
        RewardResult(0.0, False, failure="timeout"),
        RewardResult(0.0, False, {"format": 0.0}, failure="crash"),
    )
    metrics = sampling_metrics(Sampled(verdicts, GroupCounts(1, 0, 3), 2, 12))
    assert (metrics["reward/accuracy"], metrics["reward/unjudged"]) == (1.0, 2.0)
    assert (metrics["reward/timeouts"], metrics["reward/crashes"], metrics["reward/format"]) == (1, 1, 0.5)
    assert metrics["groups/degenerate_share"] == 0.75
    assert [verdict.failure for verdict in verdicts] == [None, "timeout", "crash"]
    assert metrics["train/num_gen_batches"] == 2


def test_an_error_of_archers_in_a_worker_is_told_as_it_is():
    import ray.exceptions

    error = ray.exceptions.RayTaskError("f", "Traceback ...", ArcherError("set this and that"))
    assert own_error(error) == "set this and that"


def test_another_error_in_a_worker_is_told_by_its_last_line():
    import ray.exceptions

    error = ray.exceptions.RayTaskError("f", "Traceback\n  File x\nValueError: too small", ValueError("x"))
    assert what_happened(error) == "A worker failed: ValueError: too small"
    assert own_error(error) is None


class Rounds(StepBuffer):
    """A buffer whose generations are given: one list of (prompt, verdicts) each."""

    def __init__(self, rounds, monkeypatch, wanted: int, most: int) -> None:
        self.rounds, self.refills, self.cleared = list(rounds), [], []
        self.verdicts = {}
        super().__init__(
            filtering=DynamicSampling(wanted, most),
            generation_size=2,
            check=lambda: None,
            reward=RewardConfig(),
            trainer_mode="sync",
            trainer_config=OmegaConf.create({}),
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs=OmegaConf.create({}),
            refill_fn=self.refills.append,
        )
        monkeypatch.setattr(
            buffer, "judged_rows", lambda batch: {key: self.verdicts[key] for key in batch.keys}
        )
        monkeypatch.setattr(buffer.tq, "kv_clear", lambda keys, partition_id: self.cleared.extend(keys))

    def _settled(self) -> KVBatchMeta:
        keys = []
        for prompt, marks in self.rounds.pop(0):
            for session, mark in enumerate(marks):
                keys.append(f"{prompt}_{session}_0")
                result = RewardResult.of_verdict(mark == "+")
                if mark == "?":
                    result = RewardResult.of_failure(f"crash: {keys[-1]}")
                self.verdicts[keys[-1]] = JudgedRow(result, 0.0, 3, True)
        return KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys])


def prompts_of(batch: KVBatchMeta) -> list[str]:
    return list(dict.fromkeys(group_of(key) for key in batch.keys))


def test_groups_without_contrast_are_replaced_until_the_batch_is_full(monkeypatch):
    rounds = [[("a", "++"), ("b", "+-")], [("c", "-+"), ("d", "+-")]]
    rows = Rounds(rounds, monkeypatch, wanted=2, most=5)
    batch, _ = rows.sample(1, "train", 2)
    assert prompts_of(batch) == ["b", "c"]
    assert rows.refills == [2]
    assert {group_of(key) for key in rows.cleared} == {"a", "d"}
    assert rows.sampled.counts == GroupCounts(mixed=3, all_correct=1, all_wrong=0)
    assert rows.sampled.generations == 2
    assert rows.sampled.warning is None


def test_sampling_goes_on_with_what_there_is_after_its_last_generation(monkeypatch):
    rounds = [[("a", "--"), ("b", "+-")], [("c", "--"), ("d", "++")]]
    rows = Rounds(rounds, monkeypatch, wanted=2, most=2)
    batch, _ = rows.sample(1, "train", 2)
    assert prompts_of(batch) == ["b"]
    assert "found 1 of 2 mixed groups" in rows.sampled.warning


def test_a_step_without_any_contrast_trains_on_its_last_batch_whose_gradient_is_zero(monkeypatch):
    rounds = [[("a", "--"), ("b", "++")], [("c", "--"), ("d", "++")]]
    rows = Rounds(rounds, monkeypatch, wanted=2, most=2)
    batch, _ = rows.sample(1, "train", 2)
    assert prompts_of(batch) == ["c", "d"]


def test_a_generation_that_gave_nothing_is_an_error_that_says_where_to_look(monkeypatch):
    rows = Rounds([[]], monkeypatch, wanted=2, most=2)
    with pytest.raises(ArcherError, match="worker_logs=True"):
        rows.sample(1, "train", 2)


def test_an_outage_ends_sampling_at_once_though_no_group_would_ever_be_mixed(monkeypatch):
    rounds = [[("a", "????"), ("b", "+-++")]] * 3
    rows = Rounds(rounds, monkeypatch, wanted=2, most=0)
    with pytest.raises(ArcherError, match=r"4 of 8 responses of step 6 .* first failure: crash: a_0_0\."):
        rows.sample(6, "train", 2)
    assert rows.refills == []


def test_a_group_is_mixed_by_its_judged_responses(monkeypatch):
    rounds = [[("a", "++++++?"), ("b", "+-?++++")], [("c", "-------"), ("d", "+-+++++")]]
    rows = Rounds(rounds, monkeypatch, wanted=2, most=5)
    batch, _ = rows.sample(1, "train", 2)
    assert prompts_of(batch) == ["b", "d"]
    assert len(batch.keys) == 14, "the unjudged response stays with its group, for the trace"
    assert rows.sampled.counts == GroupCounts(mixed=2, all_correct=1, all_wrong=1)
    assert "2 of 28 responses could not be judged" in rows.sampled.notes[0]


RAISING = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    if "8" in solution_str:
        raise ConnectionError("the judge is down")
    return 1.0
"""


def test_what_a_reward_function_raised_travels_to_the_driver_in_its_own_words(tmp_path):
    (tmp_path / "reward.py").write_text(RAISING)
    overlong = "reward.reward_kwargs.overlong_buffer_cfg"
    config = compose(
        [
            "engine=verl",
            "engine.device=cpu",
            f"reward.custom_reward_function.path={tmp_path}/reward.py",
            f"{overlong}.enable=True",
            f"{overlong}.len=40",
        ]
    )
    long = "8" * (config.data.max_response_length - 3)
    infos = judged(config, [("7", "7"), (long, "7")])
    fine, failed = (JudgedRow.of({"reward_extra_info": info["reward_extra_info"]}) for info in infos)
    assert (fine.result.failure, fine.result.correct) == (None, True)
    assert failed.result.failure.startswith("crash: ConnectionError: the judge is down (")
    assert (failed.score, infos[1]["reward_score"]) == (0.0, 0.0), "no reward, so no penalty on it either"


def test_a_scorer_that_itself_fails_gives_failures_and_not_responses_that_never_come(config, monkeypatch):
    def broken(self, requests):
        raise ArcherError("Reward workers do not start")

    monkeypatch.setattr(RewardScorer, "score", broken)
    infos = judged(config, [("7", "7"), ("8", "7")])
    assert [info["reward_extra_info"]["failure"] for info in infos] == [
        "crash: Reward workers do not start"
    ] * 2


class Queue:
    """verl's queue: fields by key."""

    def __init__(self, fields: dict[str, dict[str, torch.Tensor]]) -> None:
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        def jagged(name: str) -> torch.Tensor:
            return torch.nested.as_nested_tensor([self.fields[k][name] for k in keys], layout=torch.jagged)

        return {name: jagged(name) for name in select_fields if name in self.fields[keys[0]]}

    def kv_batch_put(self, keys, partition_id, fields):
        for name in list(fields.keys()):
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.fields[key][name] = value


def split(values: dict) -> list[dict]:
    """As two ranks hold them."""
    return [{row: value for row, value in values.items() if row % 2 == rank} for rank in (0, 1)]


def test_the_masks_of_unjudged_rows_are_emptied_for_verl_and_whole_in_the_trace(monkeypatch):
    marks, lengths = "+?-?", [2, 3, 1, 4]
    keys = [f"a_{session}_0" for session in range(4)]
    names = ("prompts", "responses", "response_mask", "loss_mask", "entropy", "old_log_probs", "advantages")
    queue = Queue({k: {n: torch.ones(m) for n in names} for k, m in zip(keys, lengths, strict=True)})
    for key in keys:
        queue.fields[key]["index"] = torch.tensor([5])
    monkeypatch.setattr(rows_module, "tq", queue)
    judged_by_key = {
        key: JudgedRow(
            RewardResult.of_failure("timeout") if mark == "?" else RewardResult.of_verdict(mark == "+"),
            float(mark == "+"),
            length,
            True,
        )
        for key, mark, length in zip(keys, marks, lengths, strict=True)
    }
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys])
    rows = StepRows.of(batch, judged_by_key).leave_out_unjudged()
    for name in ("response_mask", "loss_mask"):
        assert [int(queue.fields[key][name].sum()) for key in keys] == [2, 0, 1, 0]
        assert [len(queue.fields[key][name]) for key in keys] == lengths
    actor = actor_config(ppo_mini_batch_size=1, loss_agg_mode="seq-mean-token-mean")
    seen = {row: np.full(length, 1 + math.log(2), np.float32) for row, length in enumerate(lengths)}
    seen[7] = np.ones(3, np.float32)  # a row that fills up the batch
    updates = [RankUpdate({}, {}, 0, RankTrace({}, {}), part) for part in split(seen)]
    record = rows.record(3, updates, [[[0, 1], [2, 3, 7]]], MarkMaker(actor, 8))
    learnt = torch.tensor([[1, 1, 0, 0], [0] * 4, [1, 0, 0, 0], [0] * 4])
    torch.testing.assert_close(record.marks.ratio, 2.0 * learnt)
    assert torch.equal(record.marks.clipped, learnt.to(torch.int8)), "2 is above 1.2, all A > 0"
    torch.testing.assert_close(record.marks.loss_weight, learnt * torch.tensor([0.75, 0, 1.5, 0])[:, None])
    assert record.rollout_log_probs is None, "this rollout gave none"
    assert record.mask.sum(-1).tolist() == lengths
    assert record.unjudged.tolist() == [False, True, False, True]
    metrics = rows.metrics(None)
    assert (metrics["critic/score/mean"], metrics["response_length/mean"]) == (0.5, 2.5)
