"""One rank's part of influence tracing: what it captures of a step, and when it scores.

The driver decides which responses are traced and in which portion of which mini-batch each group of them lies
(`TracePlan`). A rank captures those of its own micro-batches in the first epoch and, with all other ranks,
scores a portion and forgets its factors before the next begins.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout, Selection
from archer.influence.factors import send


@dataclass(frozen=True)
class Portion:
    """Part of a mini-batch: all its rows, and the groups among them that are traced."""

    rows: frozenset[int]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class TracePlan:
    """The portions of every mini-batch of a step's first epoch."""

    mini_batches: tuple[tuple[Portion, ...], ...] = ()
    rewards: dict[int, float] = field(default_factory=dict)  # of every traced row

    @classmethod
    def of(
        cls, mini_batches: list[list[list[int]]], groups: Sequence[Group], rewards: dict[int, float]
    ) -> "TracePlan":
        """Find each group to trace in the rows of the portions of each mini-batch."""

        def portion(rows: list[int]) -> Portion:
            inside = frozenset(rows)
            return Portion(inside, tuple(group for group in groups if group.rows[0] in inside))

        return cls(tuple(tuple(map(portion, portions)) for portions in mini_batches), rewards)

    @property
    def rows(self) -> frozenset[int]:
        """All traced response rows."""
        portions = (portion for portions in self.mini_batches for portion in portions)
        return frozenset(row for portion in portions for group in portion.groups for row in group.rows)


@dataclass(frozen=True)
class RankTrace:
    """What a rank gives back: the scores of the rows that it captured, and its counts and times."""

    scores: dict[int, NDArray[np.float32]]
    metrics: dict[str, float]


@dataclass(frozen=True)
class TracedRows:
    """The responses of one micro-batch: which row each is, and where its tokens are emitted."""

    rows: Sequence[int]  # row in the step's batch, -1 where it is not traced
    prompt_lengths: Sequence[int]
    response_lengths: Sequence[int]
    response_mask: Tensor  # bool, the responses one after the other: tokens that were sampled

    def packed(self, padding: int = 0) -> Layout:
        """Sequences one after the other, `padding` positions after the last: the jagged values."""
        size = sum(self.prompt_lengths) + sum(self.response_lengths) + padding
        return self._sampled(Layout.packed(self.rows, self.prompt_lengths, self.response_lengths, size=size))

    def padded(self) -> Layout:
        """One line a sequence, padded on the right to the longest."""
        width = max(p + r for p, r in zip(self.prompt_lengths, self.response_lengths, strict=True))
        return self._sampled(Layout.padded(self.rows, self.prompt_lengths, self.response_lengths, width))

    def emitting_positions(self) -> Tensor:
        """Where in the jagged values each response token is emitted, response by response."""
        starts, begin = [], 0
        for prompt, response in zip(self.prompt_lengths, self.response_lengths, strict=True):
            starts.append(torch.arange(response) + begin + prompt - 1)
            begin += prompt + response
        return torch.cat(starts)

    def _sampled(self, layout: Layout) -> Layout:
        """Leave out tokens of a response that the policy did not sample (a tool's output)."""
        if bool(self.response_mask.all()):
            return layout
        lengths = torch.tensor(self.response_lengths)
        begins = torch.zeros(max(self.rows) + 2, dtype=torch.int64)  # the last place is that of row -1
        begins[torch.tensor(self.rows)] = lengths.cumsum(0) - lengths
        row = layout.row.clone()
        here = row >= 0
        row[here] = torch.where(
            self.response_mask.cpu()[begins[row[here]] + layout.token[here]], row[here], -1
        )
        return Layout(row, layout.token)


class RankRecorder:
    """Captures in the real backward of one rank's engine."""

    def __init__(self, model: nn.Module, config: InfluenceConfig, process_group: ProcessGroup | None) -> None:
        self.tracer = InfluenceTracer(model, config, process_group, lockstep=process_group is not None)
        self.plan = TracePlan()
        self._traced: frozenset[int] = frozenset()
        self._mini_batch = 0
        self._capture = ExitStack()
        self._scores: dict[int, NDArray[np.float32]] = {}

    def begin(self, plan: TracePlan) -> None:
        """Start a step."""
        self.plan, self._traced, self._mini_batch = plan, plan.rows, 0
        self._scores = {}
        self.tracer.reset()

    @property
    def active(self) -> bool:
        """Whether backward passes are captured now: in the first epoch of a step that traces something."""
        return any(portion.groups for portion in self.portions)

    @property
    def portions(self) -> tuple[Portion, ...]:
        """The portions of the mini-batch under way, in the first epoch; none later."""
        planned = self.plan.mini_batches
        return planned[self._mini_batch] if self._mini_batch < len(planned) else ()

    def row(self, number: int) -> int:
        """The row as layouts name it: -1 when it is not traced."""
        return number if number in self._traced else -1

    def open(self, layout: Layout) -> None:
        """Capture from here to `close` (or the next `open`): one micro-batch."""
        self.close()
        self._capture.enter_context(self.tracer.capture(layout, version=self._mini_batch))

    def close(self) -> None:
        """Keep the factors of the micro-batch whose backward has run."""
        self._capture.close()

    def abandon(self) -> None:
        """Drop the capture under way: its backward failed."""
        self._capture.__exit__(*sys.exc_info())
        self._capture = ExitStack()

    def watch(self, loss: Tensor, log_probs: Tensor, rows: TracedRows, advantages: Tensor) -> None:
        """Between forward and backward. log_probs: [nnz]; advantages: of response tokens, in their order."""
        if self.tracer.config.output_function == "training_loss":
            return  # the tracer asks for nothing then, and a GPU would wait for what is made here
        where = send(rows.emitting_positions(), log_probs.device)
        spread = torch.zeros_like(log_probs, requires_grad=False).detach()
        lengths = torch.tensor(rows.response_lengths)
        rewards = torch.tensor([self.plan.rewards.get(row, 0.0) for row in rows.rows])
        rewards = send(rewards.repeat_interleave(lengths), log_probs.device)
        self.tracer.watch(
            loss,
            log_probs,
            rows.packed(),
            advantages=spread.index_copy(0, where, advantages.to(spread)),
            rewards=spread.index_copy(0, where, rewards.to(spread)),
        )

    def score(self, portion: Portion) -> None:
        """Score a portion together with all other ranks, once all have captured it, and free its factors."""
        if portion.groups:
            for row, scores in self.tracer.scores(Selection(portion.groups, 0, 0, 0)).items():
                self._scores[row] = scores.numpy()

    def next_mini_batch(self) -> None:
        """The optimizer is about to move the weights."""
        self._mini_batch += 1

    def finish(self) -> RankTrace:
        """End the step."""
        trace = RankTrace(self._scores, self.tracer.metrics())
        self.begin(TracePlan())
        return trace
