"""A key-value cache of fixed memory with a slot for each response that is being decoded.

Slots hold positions from 0 on without padding. Lines of a batch name their slots, so that a response can move
to another line, or a new one take a slot over, without a copy of keys and values.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

LENGTH_STEP = 64  # positions of a slot are a multiple of it


def cache_shape(model: PreTrainedModel, slots: int, positions: int) -> tuple[int, ...]:
    """[2, layers, slots + 1, positions, groups, head size]: keys and values; the last slot is for scrap."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    positions = -(-positions // LENGTH_STEP) * LENGTH_STEP
    return 2, config.num_hidden_layers, slots + 1, positions, groups, size


class SlotCache(Cache):
    """Keys and values [slots, positions, groups, head size] of every layer."""

    def __init__(self, model: PreTrainedModel, slots: int, positions: int) -> None:
        super().__init__(layers=[DynamicLayer()])
        shape = cache_shape(model, slots, positions)
        self.slots, self.positions = slots, shape[3]
        weight = model.get_input_embeddings().weight
        self._store = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self._from: Tensor | None = None  # [m] lines of a prefill that are kept, None while decoding
        self._to = torch.zeros(0, dtype=torch.long)  # [m] their places in slots x positions

    def write(self, to: Tensor, source: Tensor | None = None) -> None:
        """Where the keys and values of the next forward go: flat places in slots x positions.

        source: which of its tokens go there; None: all of them, one token a line.
        """
        self._to, self._from = to, source

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep new keys and values [B, groups, T, d]; return what is attended to.

        Of prompts that is the prompts themselves, of single tokens the whole cache.
        """
        for store, new in zip(self._store, (key_states, value_states), strict=True):
            lines = new.transpose(1, 2).flatten(0, 1)  # [B * T, groups, d]
            if self._from is not None:
                lines = lines.index_select(0, self._from)
            store[layer_idx].flatten(0, 1).index_copy_(0, self._to, lines.to(store.dtype))
        if self._from is not None:
            return key_states, value_states
        return self._store[0, layer_idx], self._store[1, layer_idx]


def prompt_places(
    lengths: Sequence[int],  # tokens of each prompt that is read, as they follow one another in a packing
    prompts: Sequence[int],  # [m] which of these prompts
    slots: Sequence[int],  # [m] goes to which slot
    positions: int,  # of a slot
) -> tuple[Tensor, Tensor]:  # int64 vectors on the CPU
    """(tokens of the packing, their places in slots x positions), a prompt once for each slot it goes to."""
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    source = [torch.arange(begins[p], begins[p + 1]) for p in prompts]
    target = [torch.arange(lengths[p]) + slot * positions for p, slot in zip(prompts, slots, strict=True)]
    none = torch.zeros(0, dtype=torch.long)
    return torch.cat([none, *source]), torch.cat([none, *target])
