"""The responses of a step as the driver sees them: numbered, judged, and ready to be traced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from archer.data.prompts import Prompt
from archer.engines.verl.buffer import JudgedRow, group_of
from archer.engines.verl.worker import RankUpdate
from archer.trace.vocab import Vocab
from archer.training.credit import Credit
from archer.training.metrics import response_metrics
from archer.training.mistakes import first_mistakes
from archer.training.traces import StepRecord
from archer.training.update_marks import MarkMaker, UpdateView

FIELDS = [
    *("prompts", "responses", "response_mask", "entropy", "old_log_probs", "advantages", "index"),
    *("rollout_log_probs", "rollout_is_weights"),  # where there are any
]


@dataclass(frozen=True)
class StepRows:
    """The real responses of a step, in the order of their numbers: groups together, as prompts came."""

    keys: tuple[str, ...]  # row -> key in the queue
    groups: tuple[int, ...]  # row -> number of its prompt
    judged: tuple[JudgedRow, ...]
    partition: str = "train"
    masks: Mapping[int, torch.Tensor] = field(default_factory=dict)  # row without a verdict -> its real mask

    @classmethod
    def of(cls, batch: KVBatchMeta, judged: Mapping[str, JudgedRow]) -> "StepRows":
        """Number the responses of a batch; rows that only fill it up have no number.

        judged: what the reward said of every response, by key
        """
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(map(group_of, real)))}
        keys = sorted(real, key=lambda key: (numbers[group_of(key)], _session(key)))
        groups = tuple(numbers[group_of(key)] for key in keys)
        return cls(tuple(keys), groups, tuple(judged[key] for key in keys), batch.partition_id)

    def __len__(self) -> int:
        return len(self.keys)

    def numbers(self, batch: KVBatchMeta) -> list[int]:
        """The number of every row of a batch; rows that fill it up get the numbers after the last."""
        known = {key: row for row, key in enumerate(self.keys)}
        beyond = iter(range(len(self), len(self) + len(batch.keys)))
        return [known[key] if key in known else next(beyond) for key in batch.keys]

    @property
    def correct(self) -> list[bool]:
        """The raw verdict of every row."""
        return [row.result.correct for row in self.judged]

    @property
    def unjudged(self) -> list[bool]:
        """Which rows have no verdict."""
        return [row.result.unjudged for row in self.judged]

    def leave_out_unjudged(self) -> "StepRows":
        """Empty the masks of rows without a verdict in the queue, so that verl takes them for filling.

        No baseline, no loss and no count of tokens sees them then. Their real masks are kept for the trace.
        """
        rows = [row for row, unjudged in enumerate(self.unjudged) if unjudged]
        if not rows:
            return self
        keys = [self.keys[row] for row in rows]
        masks = tq.kv_batch_get(keys=keys, partition_id=self.partition, select_fields=["response_mask"])
        real = list(masks["response_mask"].unbind())
        empty = torch.nested.as_nested_tensor([torch.zeros_like(mask) for mask in real], layout=torch.jagged)
        fields = TensorDict({"response_mask": empty, "loss_mask": empty.clone()}, batch_size=len(keys))
        tq.kv_batch_put(keys=keys, partition_id=self.partition, fields=fields)
        return replace(self, masks=dict(zip(rows, real, strict=True)))

    def metrics(self, rewards: torch.Tensor | None) -> dict[str, float]:
        """Rewards and lengths by verdict; `rewards` [N] where a KL was taken off the scores."""
        scores = torch.tensor([row.score for row in self.judged])
        return response_metrics(
            scores,
            scores if rewards is None else rewards,
            torch.tensor([row.tokens for row in self.judged]),
            torch.tensor([row.finished for row in self.judged]),
            torch.tensor(self.correct),
            ~torch.tensor(self.unjudged),
        )

    def rewards(self) -> torch.Tensor:
        """[N] scores less the KL in the reward."""
        data = tq.kv_batch_get(
            keys=list(self.keys), partition_id=self.partition, select_fields=["token_level_rewards"]
        )
        return torch.stack([row.sum() for row in data["token_level_rewards"].unbind()]).float()

    def credit_data(self) -> dict[str, torch.Tensor]:
        """What token credit reads of every response, [N, L]: under the policy before the update."""
        fields = ["response_mask", "old_log_probs", "entropy", "advantages"]
        data = tq.kv_batch_get(keys=list(self.keys), partition_id=self.partition, select_fields=fields)
        found = {name: padded(data[name]) for name in fields}
        return {
            "mask": found["response_mask"].bool(),
            "log_probs": found["old_log_probs"],
            "entropy": found["entropy"],
            "advantages": found["advantages"],
        }

    def first_mistakes(self, prompts: Mapping[int, Prompt], vocab: Vocab) -> torch.Tensor:
        """Mark the first wrong token of each response, [N, L]; prompts: by their place in the dataset."""
        fields = ["response_mask", "responses", "index"]
        data = tq.kv_batch_get(keys=list(self.keys), partition_id=self.partition, select_fields=fields)
        return first_mistakes(
            [prompts[int(index)] for index in data["index"]],
            padded(data["responses"]),
            padded(data["response_mask"]).bool(),
            torch.tensor([row.finished for row in self.judged]),
            vocab,
        )

    def record(
        self,
        step: int,
        updates: Sequence[RankUpdate],
        mini_batches: Sequence[Sequence[Sequence[int]]],  # rows of each portion of each
        marks: MarkMaker,
        credit: Credit | None = None,
    ) -> StepRecord:
        """Fetch what is traced of every response; what the update did follows from what its ranks saw."""
        data = tq.kv_batch_get(keys=list(self.keys), partition_id=self.partition, select_fields=FIELDS)
        learnt = mask = padded(data["response_mask"]).bool()
        advantages = padded(data["advantages"])
        view = UpdateView(
            log_probs=_gathered(updates, mask.shape),
            old_log_probs=padded(data["old_log_probs"]),
            entropy=padded(data["entropy"]),
            advantages=advantages if credit is None else advantages * credit.weights,
            mask=learnt,
            rollout_is_weights=optional(data, "rollout_is_weights"),
        )
        batches = [[row for part in parts for row in part if row < len(self)] for parts in mini_batches]
        mask = learnt.clone()
        for row, real in self.masks.items():
            mask[row, : len(real)] = real.bool()
        return StepRecord(
            step=step,
            prompts=[prompt.numpy() for prompt in data["prompts"].unbind()],
            sample_index=[int(index) for index in data["index"]],
            groups=self.groups,
            tokens=padded(data["responses"]),
            mask=mask,
            entropy=view.entropy,
            log_probs=padded(data["old_log_probs"]),
            advantages=advantages,
            scores=torch.tensor([row.score for row in self.judged]),
            correct=torch.tensor(self.correct),
            unjudged=torch.tensor(self.unjudged),
            results=[row.result for row in self.judged],
            data_sources=[row.data_source for row in self.judged],
            ground_truths=[row.ground_truth for row in self.judged],
            finished=torch.tensor([row.finished for row in self.judged]),
            rollout_log_probs=optional(data, "rollout_log_probs"),
            marks=marks(view, batches) if any(update.log_probs for update in updates) else None,
            credit=credit,
        )


def _gathered(updates: Sequence[RankUpdate], shape: torch.Size) -> torch.Tensor:
    """[N, L] log-probs that the first losses saw, from all ranks; rows that fill up a batch are left out."""
    gathered = torch.zeros(shape)
    for update in updates:
        for row, values in update.log_probs.items():
            if row < len(gathered):
                gathered[row, : len(values)] = torch.tensor(values)
    return gathered


def optional(data: Mapping[str, Any] | TensorDict, name: str) -> torch.Tensor | None:
    """A jagged field of the queue as [N, L], None where there is none."""
    return padded(data[name]) if name in data else None


def _session(key: str) -> tuple[int, int]:
    _, session, index = key.rsplit("_", 2)
    return int(session), int(index)


def padded(jagged: torch.Tensor) -> torch.Tensor:
    """A jagged [N, *] tensor as [N, L], zeros where a row is shorter."""
    dense = torch.nn.utils.rnn.pad_sequence(list(jagged.unbind()), batch_first=True)
    return dense.float() if dense.is_floating_point() else dense
