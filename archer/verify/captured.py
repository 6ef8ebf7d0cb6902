"""Token factors captured once in a real backward, and scored under as many configurations as wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.engines.local.batch import MicroBatch
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.factors import MicroBatch as Factors
from archer.verify.forward import grpo_loss, token_log_probs
from archer.verify.sample import Sample

Scores = dict[int, Tensor]
"""Response row -> score of each token."""


@dataclass(frozen=True, eq=False)
class Captured:
    """The factors of one backward, with the configuration and the counters of the tracer that took them."""

    model: PreTrainedModel
    config: InfluenceConfig
    factors: Factors
    counters: dict[str, float]

    def scores(self, groups: tuple[Group, ...], **changes: Any) -> Scores:
        """Float64 scores, under the configuration with some of its scoring knobs changed."""
        return self.scored(groups, **changes)[0]

    def scored(self, groups: tuple[Group, ...], **changes: Any) -> tuple[Scores, dict[str, float]]:
        """The scores and the counters of scoring them."""
        tracer = InfluenceTracer(self.model, replace(self.config, **changes))
        tracer.take([self.factors])  # scoring frees what it is given; these factors are used again
        return tracer.scores(groups, dtype=torch.float64), tracer.metrics()


def layout_of(batch: MicroBatch) -> Layout:
    """Where each response token is emitted, as the local engine tells it to the tracer."""
    return Layout.padded(batch.rows, batch.prompt_lengths, batch.mask.sum(-1), batch.input_ids.shape[1])


def every_position(batch: MicroBatch) -> Layout:
    """Every position as a token of its row, prompt and padding included: nothing is left out."""
    n, width = batch.input_ids.shape
    return Layout(batch.rows.repeat_interleave(width), torch.arange(width).repeat(n))


def capture_objective(
    model: PreTrainedModel, layout: Layout, config: InfluenceConfig, objective: Callable[[], Tensor]
) -> Captured:
    """Run `objective` forward and backward under the tracer; its gradients stay in `.grad`."""
    tracer = InfluenceTracer(model, config)
    with tracer.capture(layout):
        objective().backward()
    return Captured(model, config, tracer.captured[0], tracer.metrics())


def capture_update(model: PreTrainedModel, sample: Sample, config: InfluenceConfig) -> Captured:
    """One forward and backward of the GRPO loss, as the local engine traces it; its gradients are dropped."""
    batch = sample.batch
    tracer = InfluenceTracer(model, config)
    with tracer.capture(layout_of(batch)):
        log_probs = token_log_probs(model, batch)
        loss = grpo_loss(log_probs, sample.advantages, batch.mask)
        where = Layout.responses(batch.rows, batch.mask.sum(-1), log_probs.shape[1])
        advantages, rewards = sample.advantages[:, None], sample.rewards[:, None]
        tracer.watch(loss, log_probs, where, advantages=advantages, rewards=rewards)
        loss.backward()
    model.zero_grad(set_to_none=True)
    return Captured(model, config, tracer.captured[0], tracer.metrics())


def joined(scores: Scores) -> Tensor:
    """The scores of all rows in row order, as one vector."""
    return torch.cat([scores[row] for row in sorted(scores)])
