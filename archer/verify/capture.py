"""The model's forward and loss, and token factors captured in a real backward, scored as often as wanted.

Beside them stand token values that need no gradient, for comparison with influence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.policy_losses.base import ClipSettings, LossInputs
from archer.algorithms.policy_losses.ppo_clip import ppo_clip
from archer.generation.batch import MicroBatch
from archer.generation.policy import Policy
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.factors import TokenFactors
from archer.influence.oracle import contrast_direction, token_loss_scores
from archer.verify.sample import COMPUTE, VerificationSample


def exact_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float64 throughout, the original left as it is.

    Qwen2's norms round to float32 whatever the model's precision; torch's own norm is the same function
    without that.
    """
    copy = deepcopy(model).double()
    for parent in list(copy.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Qwen2RMSNorm":
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return copy


def token_log_probs(model: Callable[..., Any], batch: MicroBatch) -> Tensor:
    """[n, L] log pi of every response token at temperature 1, 0 outside the mask."""
    logits = batch.gather(model(input_ids=batch.input_ids, use_cache=False).logits)
    return batch.scatter(logits.log_softmax(-1).gather(-1, batch.response_tokens[:, None])[:, 0])


def exact_token_scores(
    model: PreTrainedModel, sample: VerificationSample, weights: Mapping[str, nn.Parameter]
) -> tuple[Sequence[Tensor], Tensor]:
    """q, the gradient of the contrast over the named weights, and [T] d log pi_t along q."""
    batch = sample.batch

    def log_probs(run: Callable[..., object] = model) -> Tensor:
        return token_log_probs(run, batch)[batch.mask]

    accepted = sample.rewards.bool().tolist()
    q = contrast_direction(log_probs().split(sample.lengths), accepted, list(weights.values()))
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward-mode derivatives (JVPs)
        return q, token_loss_scores(model, dict(zip(weights, q, strict=True)), log_probs).detach()


def grpo_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The on-policy GRPO loss of the embedded default, the mean over the mask's tokens.

    Args:
        log_probs: [n, L].
        advantages: [n], one for all tokens of a response.
        mask: [n, L] tokens that take part in the loss.
    """
    over_tokens = advantages.to(log_probs)[:, None].expand_as(log_probs)
    outputs = ppo_clip(LossInputs(log_probs, log_probs.detach(), over_tokens, mask), ClipSettings())
    return aggregate(outputs.per_token, mask, "token-mean", LossTotals.of(mask))


Scores = dict[int, Tensor]  # response row -> score of each token


@dataclass(frozen=True, eq=False)
class Captured:
    """The factors of one backward, with the configuration and the counters of the tracer that took them."""

    model: PreTrainedModel
    config: InfluenceConfig
    factors: TokenFactors
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


def capture_update(model: PreTrainedModel, sample: VerificationSample, config: InfluenceConfig) -> Captured:
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


@torch.no_grad()
def baselines(model: PreTrainedModel, sample: VerificationSample, seed: int) -> dict[str, Scores]:
    """For every response token: a random number, the entropy, |advantage|, and -log pi of the token."""
    batch = sample.batch
    stats = Policy(model, COMPUTE, temperature=1.0).token_stats(batch)
    generator = torch.Generator().manual_seed(seed)
    tables = {
        "random": torch.rand(batch.mask.shape, generator=generator),
        "entropy": stats.entropy,
        "|advantage|": sample.advantages.abs()[:, None].expand(batch.mask.shape),
        "-log-prob": -stats.log_probs,
    }
    return {
        name: {
            row: line[mask].double() for row, (line, mask) in enumerate(zip(table, batch.mask, strict=True))
        }
        for name, table in tables.items()
    }
