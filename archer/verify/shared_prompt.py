"""Passes over the responses to one prompt that read the prompt once, and cost no gradients of weights.

The prompt's keys and values stand before all responses. The gradients at a response's own positions do not
depend on how they came about, so for these they may be constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from archer.generation.batch import MicroBatch, Responses, micro_batch
from archer.generation.policy import Policy


@dataclass(frozen=True)
class Continuation(MicroBatch):
    """Responses behind the prompt's last token; the positions before it are in `past`."""

    past: tuple[tuple[Tensor, Tensor], ...] = ()  # per layer: keys, values [n, heads, P - 1, size]
    model: PreTrainedModel | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the model is called with beside the tokens: a cache of its own, which the call adds to."""
        assert self.model is not None
        cache = DynamicCache(config=self.model.config)
        for layer, (keys, values) in enumerate(self.past):
            cache.update(keys, values, layer)
        return {"past_key_values": cache}


class SharedPrompt:
    """The prompt of a group, read once."""

    def __init__(self, policy: Policy, tokens: Sequence[int], constant: bool = True) -> None:
        """constant: no gradient flows into the prompt, as that of a weight would have to."""
        self.policy = policy
        cache = DynamicCache(config=policy.model.config)
        ids = torch.tensor([tokens[:-1]], device=policy.compute.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not constant), policy.compute.autocast():
            policy.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        self._past = [(layer.keys, layer.values) for layer in cache.layers]

    @staticmethod
    def fits(policy: Policy, tokens: Sequence[int]) -> bool:
        """Whether the model keeps keys and values of all positions and nothing else, and is not packed."""
        layers = DynamicCache(config=policy.model.config).layers
        plain = all(type(layer) is DynamicLayer for layer in layers)
        return plain and not policy.packs and len(tokens) > 1

    def batch(self, responses: Responses, rows: Sequence[int]) -> Continuation:
        """The given rows, as if the prompt were its last token."""
        device = self.policy.compute.device
        short = micro_batch(responses, rows, device)
        before = int(short.prompt_lengths[0]) - 1
        line = torch.arange(1, len(rows) + 1, device=device).repeat_interleave(short.lengths.to(device))
        return Continuation(
            rows=short.rows,
            input_ids=short.input_ids[:, before:],
            tokens=short.tokens,
            mask=short.mask,
            prompt_lengths=torch.ones_like(short.prompt_lengths),
            lengths=short.lengths,
            emitting=short.emitting - line * before,
            places=short.places,
            past=tuple((k.repeat(len(rows), 1, 1, 1), v.repeat(len(rows), 1, 1, 1)) for k, v in self._past),
            model=self.policy.model,
        )


@contextmanager
def activations_only(model: PreTrainedModel) -> Iterator[None]:
    """Inside, a backward ends at the embeddings' output: activations get gradients, parameters none."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    hook = model.get_input_embeddings().register_forward_hook(lambda _, __, out: out.requires_grad_())
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        hook.remove()
        for weight in weights:
            weight.requires_grad_(True)
