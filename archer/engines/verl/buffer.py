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
from archer.algorithms.filtering import GroupCounts, count_groups
from archer.errors import ArcherError

POLL_S = 0.2
ALL_FAILED = (
    "No response of the step could be sampled and judged: the rollout or the reward fails every time. Run "
    "again with engine.worker_logs=True to see why."
)
CHECK_S = 5.0  # between two looks at whether every worker is alive


@dataclass(frozen=True)
class Verdict:
    """What the reward said about one response."""

    correct: bool
    tokens: int
    finished: bool  # ended by itself, not by the length limit
    timeout: bool
    crash: bool
    extra: dict[str, float]

    @classmethod
    def of(cls, extra_fields: Any) -> "Verdict":
        """Read it from the queue's `extra_fields`."""
        fields = getattr(extra_fields, "data", extra_fields)
        info = fields["reward_extra_info"]
        return cls(
            bool(info["acc"]),
            int(info["tokens"]),
            bool(info["finished"]),
            bool(info["timeout"]),
            bool(info["crash"]),
            {name.removeprefix("extra_"): v for name, v in info.items() if name.startswith("extra_")},
        )

    @property
    def failure(self) -> str | None:
        """Why there is no judgement; None where there is one."""
        return "timeout" if self.timeout else "crash" if self.crash else None


@dataclass(frozen=True)
class Sampled:
    """Everything sampled for a step, kept or not."""

    verdicts: tuple[Verdict, ...]
    counts: GroupCounts
    generations: int
    warning: str | None

    @property
    def tokens(self) -> int:
        """Response tokens."""
        return sum(verdict.tokens for verdict in self.verdicts)


class StepBuffer(ReplayBuffer):
    """Waits for the responses of a step. A worker that dies while it waits ends the run, not the patience."""

    def __init__(
        self,
        *,
        filtering: DynamicSampling | None,
        generation_size: int,
        check: Callable[[], None],
        **options: Any,
    ) -> None:
        super().__init__(poll_interval=POLL_S, **options)
        self.filtering, self.generation_size, self.check = filtering, generation_size, check
        self.sampled = Sampled((), GroupCounts(), 0, None)
        self._checked = time.monotonic()

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Return the responses that a step trains on (or, of partition `val`, those of a validation)."""
        if partition_id != "train":
            return super().sample(global_steps, partition_id, batch_size)
        if self.filtering is None:
            try:
                batch, metrics = super().sample(global_steps, partition_id, batch_size)
            except RuntimeError as error:
                if "no materializable trajectories" not in str(error):
                    raise
                self.check()  # a dead worker says more
                raise ArcherError(ALL_FAILED) from error
            verdicts = verdicts_of(batch)
            counts = count_groups(*_by_group(list(batch.keys), verdicts, {}))
            self.sampled = Sampled(tuple(verdicts), counts, 1, None)
            return batch, metrics
        return self._sample_mixed(self.filtering), {}

    def _sample_mixed(self, state: DynamicSampling) -> KVBatchMeta:
        """Replace groups that are all right or all wrong, `max_num_gen_batches` times at most."""
        batches: list[KVBatchMeta] = []
        verdicts: list[Verdict] = []
        numbers: dict[str, int] = {}
        while not state.done:
            if batches:
                assert self.refill_fn is not None
                self.refill_fn(self.generation_size)
            batches.append(self._settled())
            if not batches[-1].keys:
                self.check()
                raise ArcherError(ALL_FAILED)
            new = verdicts_of(batches[-1])
            verdicts += new
            state = state.after(*_by_group(list(batches[-1].keys), new, numbers))
        self.sampled = Sampled(tuple(verdicts), state.counts, len(batches), state.shortfall)
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


def verdicts_of(batch: KVBatchMeta) -> list[Verdict]:
    """Read the verdicts of a batch's responses, in its order."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
    return [Verdict.of(fields) for fields in data["extra_fields"]]


def _by_group(
    keys: list[str], verdicts: list[Verdict], numbers: dict[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(correct [N] bool, group number [N]); new prompts get the next numbers."""
    for key in keys:
        numbers.setdefault(group_of(key), len(numbers))
    groups = torch.tensor([numbers[group_of(key)] for key in keys])
    return torch.tensor([verdict.correct for verdict in verdicts]), groups
