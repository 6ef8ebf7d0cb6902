"""Influence in the local engine: captured in the real backward, scored before the weights move."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from archer.generation.batch import MicroBatch
from archer.generation.judge import Judged
from archer.influence import InfluenceConfig, InfluenceTracer, Layout, Selection
from archer.training.traces import prompt_groups


class InfluenceRecorder:
    """Captures the selected responses of a step in the real backward and scores their tokens.

    With tracing off, or in a step that is not written, nothing is selected and no hook is installed.
    """

    def __init__(self, model: torch.nn.Module, config: InfluenceConfig) -> None:
        self.tracer = InfluenceTracer(model, config)
        self.selection = Selection((), 0, 0, 0)
        self.influence = torch.empty(0, 0)  # [N, L], NaN where nothing was computed
        self._rows: set[int] = set()

    def traces(self, module: torch.nn.Module) -> bool:
        """Whether a module is one of those traced."""
        return any(traced.module is module for traced in self.tracer.modules)

    def begin(self, judged: Judged, wanted: bool) -> None:
        """Choose the groups of a step that are traced."""
        self.influence = torch.full(judged.responses.mask.shape, torch.nan)
        groups = prompt_groups(judged.groups.tolist(), judged.correct.tolist(), judged.unjudged.tolist())
        self.selection = self.tracer.select(groups if wanted else [])
        self._rows = set(self.selection.rows)

    def selects(self, row: int) -> bool:
        """Whether a row of the step is traced."""
        return row in self._rows

    def divisible(self, rows: list[int]) -> bool:
        """Whether rows hold traced groups that are scored each for itself."""
        by_prompt = self.tracer.config.accepted_rejected_scope == "per_prompt"
        return by_prompt and not self._rows.isdisjoint(rows)

    @contextmanager
    def capture(self, batch: MicroBatch) -> Iterator[None]:
        """Surround the forward and backward of one micro-batch."""
        traced = self._traced(batch)
        if batch.packing is not None:
            layout = Layout.packed(traced, batch.prompt_lengths, batch.lengths)
        else:
            layout = Layout.padded(traced, batch.prompt_lengths, batch.lengths, batch.input_ids.shape[1])
        with self.tracer.capture(layout):
            yield

    def watch(
        self, loss: Tensor, log_probs: Tensor, batch: MicroBatch, advantages: Tensor, rewards: Tensor
    ) -> None:
        """Between forward and backward: [n, L] log-probs and advantages, [n] rewards."""
        where = Layout.responses(self._traced(batch), batch.lengths, log_probs.shape[1])
        self.tracer.watch(loss, log_probs, where, advantages, rewards[:, None])

    def score(self, rows: list[int]) -> None:
        """Score the groups among `rows` and free their factors; before the optimizer moves the weights."""
        inside = set(rows)
        groups = tuple(group for group in self.selection.groups if group.rows[0] in inside)
        for row, scores in self.tracer.scores(Selection(groups, 0, 0, 0)).items():
            self.influence[row, : len(scores)] = scores

    def _traced(self, batch: MicroBatch) -> list[int]:
        return [row if row in self._rows else -1 for row in batch.rows.tolist()]
