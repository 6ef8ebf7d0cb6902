"""The model's log-probs and the loss, in whatever precision the model has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.policy_losses import LossInputs, PolicyLossConfig, policy_loss
from archer.engines.local.batch import MicroBatch


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


def forward_differentiable() -> AbstractContextManager[None]:
    """Where forward-mode derivatives (JVPs) work: fused attention has none, the plain one does."""
    return sdpa_kernel(SDPBackend.MATH)


def grpo_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The on-policy GRPO loss of the embedded default, the mean over the mask's tokens.

    Args:
        log_probs: [n, L].
        advantages: [n], one for all tokens of a response.
        mask: [n, L] tokens that take part in the loss.
    """
    over_tokens = advantages.to(log_probs)[:, None].expand_as(log_probs)
    outputs = _LOSS(LossInputs(log_probs, log_probs.detach(), over_tokens, mask))
    return aggregate(outputs.per_token, mask, "token-mean", LossTotals.of(mask))


_LOSS = policy_loss(PolicyLossConfig())
