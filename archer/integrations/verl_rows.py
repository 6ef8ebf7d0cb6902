"""The responses of a step in stock verl's queue, as a trace keeps them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import transfer_queue as tq

from archer.engines.verl.buffer import group_of
from archer.integrations.sampled import WholeStep, fingerprint
from archer.rewards import RewardResult
from archer.rewards.rules import NO_OPINION
from archer.training.traces import StepRecord

FIELDS = ["prompts", "responses", "response_mask", "entropy", "old_log_probs", "advantages"]
JUDGED = ["rm_scores", "extra_fields"]


@dataclass(frozen=True)
class VerlStep:
    """The rows of a step by their numbers; those that only fill the batch up have no verdict."""

    keys: tuple[str, ...]
    tags: tuple[dict[str, Any], ...]
    partition: str
    scores: tuple[float, ...] = ()
    accepted: tuple[bool | None, ...] = ()

    @property
    def real(self) -> list[int]:
        """Rows that were sampled."""
        return [row for row, tag in enumerate(self.tags) if not tag.get("is_padding")]

    def judged(
        self, verdicts: Callable[[Sequence[float], Sequence[dict[str, Any]]], list[bool | None]]
    ) -> "VerlStep":
        """Read scores and verdicts."""
        keys = [self.keys[row] for row in self.real]
        data = tq.kv_batch_get(keys=keys, partition_id=self.partition, select_fields=JUDGED)
        scores = [float(line.sum()) for line in data["rm_scores"].unbind()]
        infos = []
        for given in data["extra_fields"] if "extra_fields" in data.keys() else [{}] * len(keys):  # noqa: SIM118
            fields = given.data if hasattr(given, "data") else given
            infos.append(fields.get("reward_extra_info") or {})
        found: list[bool | None] = [None] * len(self.keys)
        values = [0.0] * len(self.keys)
        for row, score, verdict in zip(self.real, scores, verdicts(scores, infos), strict=True):
            values[row], found[row] = score, verdict
        return replace(self, scores=tuple(values), accepted=tuple(found))


def verl_step(
    step: int,
    rows: VerlStep,
    scores: Mapping[int, Any],  # row -> influence of its tokens
    selected: Sequence[int],
    longest: int,
    eos: int | None,
) -> WholeStep:
    """What is traced of every response of a step; one of `longest` tokens without `eos` was cut."""
    real = rows.real
    keys = [rows.keys[row] for row in real]
    data = tq.kv_batch_get(keys=keys, partition_id=rows.partition, select_fields=FIELDS)
    column = {name: _padded(data[name]) for name in FIELDS if name != "prompts"}
    mask = column["response_mask"].bool()
    prompts = [prompt.tolist() for prompt in data["prompts"].unbind()]
    groups: dict[str, int] = {}
    place = {row: number for number, row in enumerate(real)}
    influence = torch.full(mask.shape, torch.nan)
    for row, line in scores.items():
        influence[place[row], : len(line)] = torch.as_tensor(np.asarray(line))
    verdicts = [rows.accepted[row] for row in real]
    record = StepRecord(
        step=step,
        prompts=prompts,
        sample_index=[fingerprint(prompt) for prompt in prompts],
        groups=[groups.setdefault(group_of(key), len(groups)) for key in keys],
        tokens=column["responses"].long(),
        mask=mask,
        entropy=torch.where(mask, column["entropy"].float(), 0),
        log_probs=torch.where(mask, column["old_log_probs"].float(), 0),
        advantages=torch.where(mask, column["advantages"].float(), 0),
        scores=torch.tensor([rows.scores[row] for row in real]),
        correct=torch.tensor([bool(verdict) for verdict in verdicts]),
        unjudged=torch.tensor([verdict is None for verdict in verdicts]),
        results=[
            RewardResult.of_failure(NO_OPINION)
            if verdict is None
            else RewardResult(rows.scores[row], verdict)
            for row, verdict in zip(real, verdicts, strict=True)
        ],
        data_sources=[""] * len(real),
        ground_truths=[None] * len(real),
        finished=torch.tensor(
            [len(line) < longest or int(line[-1]) == eos for line in data["responses"].unbind()]
        ),
    )
    return WholeStep(record, influence, [place[row] for row in sorted(selected)])


def _padded(values: torch.Tensor) -> torch.Tensor:
    """[N, L] of a jagged tensor, on the CPU."""
    return torch.nn.utils.rnn.pad_sequence([line.cpu() for line in values.unbind()], batch_first=True)
