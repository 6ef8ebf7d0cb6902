"""The responses of a step as the driver sees them: numbered, judged, and ready to be traced."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import transfer_queue as tq
from numpy.typing import NDArray
from transfer_queue import KVBatchMeta

from archer.engines.verl.buffer import Verdict, group_of, verdicts_of
from archer.influence import Group
from archer.trace.schema import TraceStep

FIELDS = [
    "prompts",
    "responses",
    "response_mask",
    "rm_scores",
    "entropy",
    "old_log_probs",
    "advantages",
    "index",
]


@dataclass(frozen=True)
class StepRows:
    """The real responses of a step, in the order of their numbers: groups together, as prompts came."""

    keys: tuple[str, ...]  # row -> key in the queue
    groups: tuple[int, ...]  # row -> number of its prompt
    verdicts: tuple[Verdict, ...]
    partition: str = "train"

    @classmethod
    def of(cls, batch: KVBatchMeta) -> "StepRows":
        """Number the responses of a batch; rows that only fill it up have no number."""
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(map(group_of, real)))}
        keys = sorted(real, key=lambda key: (numbers[group_of(key)], _session(key)))
        partition = batch.partition_id
        verdicts = verdicts_of(KVBatchMeta(partition_id=partition, keys=keys, tags=[{} for _ in keys]))
        return cls(tuple(keys), tuple(numbers[group_of(key)] for key in keys), tuple(verdicts), partition)

    def __len__(self) -> int:
        return len(self.keys)

    def numbers(self, batch: KVBatchMeta) -> list[int]:
        """The number of every row of a batch; rows that fill it up get the numbers after the last."""
        known = {key: row for row, key in enumerate(self.keys)}
        beyond = iter(range(len(self), len(self) + len(batch.keys)))
        return [known[key] if key in known else next(beyond) for key in batch.keys]

    def prompt_groups(self) -> list[Group]:
        """The prompt groups with their verdicts."""
        members: dict[int, list[int]] = {}
        for row, group in enumerate(self.groups):
            members.setdefault(group, []).append(row)
        return [
            Group(str(group), tuple(rows), tuple(self.verdicts[row].correct for row in rows))
            for group, rows in members.items()
        ]

    def read(self) -> "StepArrays":
        """Fetch what is traced of every response."""
        data = tq.kv_batch_get(keys=list(self.keys), partition_id=self.partition, select_fields=FIELDS)
        return StepArrays(
            prompts=[prompt.numpy() for prompt in data["prompts"].unbind()],
            tokens=_padded(data["responses"]),
            mask=_padded(data["response_mask"]).astype(bool),
            entropy=_padded(data["entropy"]),
            log_probs=_padded(data["old_log_probs"]),
            advantages=_padded(data["advantages"]),
            rewards=_padded(data["rm_scores"]).sum(-1),
            sample_index=np.array([int(index) for index in data["index"]], dtype=np.int32),
        )


@dataclass(frozen=True)
class StepArrays:
    """What is traced of N responses, the longest L tokens long; zero outside the mask."""

    prompts: list[NDArray[np.int64]]
    tokens: NDArray[np.int64]  # [N, L]
    mask: NDArray[np.bool_]  # [N, L]
    entropy: NDArray[np.float32]  # [N, L]
    log_probs: NDArray[np.float32]  # [N, L]
    advantages: NDArray[np.float32]  # [N, L]
    rewards: NDArray[np.float32]  # [N] shaped scores
    sample_index: NDArray[np.int32]  # [N] place of the prompt in the dataset

    def trace_step(
        self, step: int, rows: StepRows, chosen: list[int], scores: Mapping[int, NDArray[np.float32]] | None
    ) -> TraceStep:
        """Return the arrays of the chosen rows; `scores`: row -> influence of its tokens."""
        influence = None
        if scores is not None:
            influence = np.full(self.mask.shape, np.nan, dtype=np.float32)
            for row, values in scores.items():
                influence[row, : len(values)] = values
        groups = [rows.groups[row] for row in chosen]
        return TraceStep.from_batch(
            entropies=self.entropy[chosen],
            response_mask=self.mask[chosen],
            responses=self.tokens[chosen],
            response_index=chosen,
            log_probs=self.log_probs[chosen],
            reward=self.rewards[chosen],
            accepted=[rows.verdicts[row].correct for row in chosen],
            group_id=groups,
            uid=[f"step{step}-group{group}" for group in groups],
            prompts=[self.prompts[row] for row in chosen],
            sample_index=self.sample_index[chosen],
            influence=None if influence is None else influence[chosen],
            advantage=None if influence is None else self.advantages[chosen],
        )


def _session(key: str) -> tuple[int, int]:
    _, session, index = key.rsplit("_", 2)
    return int(session), int(index)


def _padded(jagged: torch.Tensor) -> np.ndarray:
    """A jagged [N, *] tensor as [N, L], zeros where a row is shorter."""
    dense = torch.nn.utils.rnn.pad_sequence(list(jagged.unbind()), batch_first=True)
    return (dense.float() if dense.is_floating_point() else dense).numpy()
