"""Where a step's responses come from: verl's replay buffer, with Archer's bounded dynamic sampling."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from archer.algorithms.dynamic_sampling import DynamicSampling
from archer.algorithms.groups import GroupCounts, count_groups
from archer.errors import ArcherError
from archer.generation.judge import failures_of, refuse_outage
from archer.rewards import RewardResult
from archer.rewards.config import RewardConfig
from archer.training.metrics import Sampled

POLL_S = 0.2
ALL_FAILED = (
    "No response of the step could be sampled and judged: the rollout or the reward fails every time. Run "
    "again with engine.worker_logs=True to see why."
)
CHECK_S = 5.0  # between two looks at whether every worker is alive


@dataclass(frozen=True)
class JudgedRow:
    """One response as its reward saw it, read from the queue once a step."""

    result: RewardResult
    score: float  # shaped
    tokens: int
    finished: bool  # ended by itself, not by the length limit
    data_source: str = ""
    ground_truth: str = ""  # as text, cut

    @classmethod
    def of(cls, extra_fields: Any) -> "JudgedRow":
        """Read it from the queue's `extra_fields`."""
        fields = getattr(extra_fields, "data", extra_fields)
        info = fields["reward_extra_info"]
        return cls(
            RewardResult(
                score=float(info["score"]),
                correct=bool(info["acc"]),
                extra={n.removeprefix("extra_"): v for n, v in info.items() if n.startswith("extra_")},
                failure=info["failure"] or None,
                detail=info["detail"] or None,
                extracted=info["extracted"] or None,
                reason=info["reason"] or None,
            ),
            float(info["shaped"]),
            int(info["tokens"]),
            bool(info["finished"]),
            info["source"],
            info["truth"],
        )


class StepBuffer(ReplayBuffer):
    """Waits for the responses of a step. A worker that dies while it waits ends the run, not the patience."""

    def __init__(
        self,
        *,
        filtering: DynamicSampling | None,
        generation_size: int,
        check: Callable[[], None],
        reward: RewardConfig,
        **options: Any,
    ) -> None:
        super().__init__(poll_interval=POLL_S, **options)
        self.filtering, self.generation_size, self.check = filtering, generation_size, check
        self.reward = reward
        self.sampled = Sampled((), GroupCounts(), 0, 0)
        self.on_validation: Callable[[KVBatchMeta], None] = lambda batch: None
        self.judged: dict[str, JudgedRow] = {}  # by key, of everything sampled for the step
        self._checked = time.monotonic()

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Return the responses that a step trains on (or, of partition `val`, those of a validation)."""
        if partition_id != "train":
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            self.on_validation(batch)
            return batch, metrics
        if self.filtering is None:
            try:
                batch, metrics = super().sample(global_steps, partition_id, batch_size)
            except RuntimeError as error:
                if "no materializable trajectories" not in str(error):
                    raise
                self.check()  # a dead worker says more
                raise ArcherError(ALL_FAILED) from error
            self.judged = judged_rows(batch)
            self._refuse_outage(global_steps)
            counts = count_groups(*_by_group(self.judged, {}))
            self.sampled = _sampled(self.judged, counts, 1, None)
            return batch, metrics
        return self._sample_mixed(self.filtering, global_steps), {}

    def _refuse_outage(self, step: int) -> None:
        results = [row.result for row in self.judged.values()]
        refuse_outage(failures_of(results), len(results), self.reward, f"step {step}")

    def _sample_mixed(self, state: DynamicSampling, step: int) -> KVBatchMeta:
        """Replace groups that are all right or all wrong, `max_num_gen_batches` times at most."""
        batches: list[KVBatchMeta] = []
        self.judged = {}
        numbers: dict[str, int] = {}
        while not state.done:
            if batches:
                assert self.refill_fn is not None
                self.refill_fn(self.generation_size)
            batches.append(self._settled())
            if not batches[-1].keys:
                self.check()
                raise ArcherError(ALL_FAILED)
            new = judged_rows(batches[-1])
            self.judged |= new
            self._refuse_outage(step)  # at once: without verdicts no group is mixed, and none ends the loop
            state = state.after(*_by_group(new, numbers))
        self.sampled = _sampled(self.judged, state.counts, len(batches), state.shortfall)
        # Without a mixed group the last batch is taken as it is: its advantages, and so its update, are zero.
        kept = set(state.kept) or {numbers[group_of(key)] for key in batches[-1].keys}
        keys, tags, dropped = [], [], []
        for batch in batches:
            for key, tag in zip(batch.keys, batch.tags, strict=True):
                if numbers[group_of(key)] in kept:
                    keys.append(key)
                    tags.append(tag)
                else:
                    dropped.append(key)
        if dropped:
            tq.kv_clear(keys=dropped, partition_id="train")
        return KVBatchMeta(partition_id="train", keys=keys, tags=tags)

    def _settled(self) -> KVBatchMeta:
        """Wait until every prompt handed out is finished, and take what they gave."""
        while True:
            self._sync_metadata_from_transfer_queue()
            if not self.pending_keys["train"] and not self.running_keys["train"]:
                uids = [*self.finished_keys["train"], *self.failure_keys["train"]]
                return self._materialize_batch("train", uids, dict(self.partitions["train"]))
            self._wait_for_next_poll("train", time.time())

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        time.sleep(self.poll_interval)
        if time.monotonic() - self._checked > CHECK_S:
            self.check()
            self._checked = time.monotonic()
        return last_debug_time


def group_of(key: str) -> str:
    """The prompt that a response's key `{uid}_{session}_{index}` names."""
    return key.rsplit("_", 2)[0]


def judged_rows(batch: KVBatchMeta) -> dict[str, JudgedRow]:
    """Read what was judged of a batch's responses, by key, in its order."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    rows = [JudgedRow.of(fields) for fields in data["extra_fields"]]
    return dict(zip(batch.keys, rows, strict=True))


def _sampled(
    judged: dict[str, JudgedRow], counts: GroupCounts, generations: int, warning: str | None
) -> Sampled:
    rows = judged.values()
    return Sampled(
        tuple(row.result for row in rows), counts, generations, sum(row.tokens for row in rows), warning
    )


def _by_group(judged: dict[str, JudgedRow], numbers: dict[str, int]) -> tuple[torch.Tensor, ...]:
    """(correct [N] bool, group number [N], judged [N] bool); new prompts get the next numbers."""
    for key in judged:
        numbers.setdefault(group_of(key), len(numbers))
    groups = torch.tensor([numbers[group_of(key)] for key in judged])
    results = [row.result for row in judged.values()]
    judged_at = torch.tensor([not result.unjudged for result in results])
    return torch.tensor([result.correct for result in results]), groups, judged_at
