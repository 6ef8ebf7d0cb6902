"""The trace of a validation on verl: what the queue holds of its first responses.

verl's validation samples and judges; no pass of the model over the responses is made, so there are no
entropies: they are NaN. `log_probs` are those that the rollout gave, the same as `rollout_log_probs`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from archer.engines.verl.buffer import JudgedRow, group_of
from archer.engines.verl.rows import optional, padded
from archer.rewards.telling import told
from archer.trace.schema import TraceStep
from archer.trace.stack import stacked

FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "extra_fields", "index"]


class ValidationRecorder:
    """Keeps the responses of a validation's first prompts, batch by batch."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._parts: list[TraceStep] = []

    def begin(self) -> None:
        """Start a validation."""
        self._parts = []

    def observe(self, batch: KVBatchMeta) -> None:
        """Read the responses of a batch from the queue, while they are there."""
        first = sum(part.rows for part in self._parts)
        keys = list(batch.keys)[: self.limit - first]
        if not keys:
            return
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=FIELDS)
        before = {uid for part in self._parts if part.uid is not None for uid in part.uid.tolist()}
        self._parts.append(validation_step(keys, data, first, len(before)))

    def step(self) -> TraceStep | None:
        """Everything kept, None where there is nothing."""
        return stacked(self._parts) if self._parts else None


def validation_step(keys: list[str], data: Mapping[str, Any], first_row: int, first_group: int) -> TraceStep:
    """Return the arrays of some responses; `data` are the queue's fields."""
    judged = [JudgedRow.of(fields) for fields in data["extra_fields"]]
    results = [row.result for row in judged]
    mask = padded(data["response_mask"]).bool()
    unknown = torch.full(mask.shape, torch.nan)
    log_probs = optional(data, "rollout_log_probs")
    numbers = {uid: first_group + i for i, uid in enumerate(dict.fromkeys(map(group_of, keys)))}
    texts: dict[str, Any] = told(
        results, [row.ground_truth for row in judged], [row.data_source for row in judged]
    )
    groups = [numbers[group_of(key)] for key in keys]
    return TraceStep.from_batch(
        entropies=unknown.numpy(),
        response_mask=mask.numpy(),
        responses=padded(data["responses"]).numpy(),
        response_index=np.arange(first_row, first_row + len(keys)),
        log_probs=(unknown if log_probs is None else log_probs).numpy(),
        reward=[result.score for result in results],
        accepted=[result.correct for result in results],
        unjudged=[result.unjudged for result in results],
        group_id=groups,
        uid=[f"prompt{group}" for group in groups],
        prompts=[prompt.numpy() for prompt in data["prompts"].unbind()],
        sample_index=[int(index) for index in data["index"]],
        truncated=[not row.finished for row in judged],
        rollout_log_probs=None if log_probs is None else log_probs.numpy(),
        **texts,
    )
