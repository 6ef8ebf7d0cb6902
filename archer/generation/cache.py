"""A key-value cache that grows in place.

The stock dynamic cache copies all earlier positions for every new token, which was a fifth of the time of
decoding with a small model. Here new positions are written into room kept free behind the old ones.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, StaticLayer

ROOM = 64  # positions added whenever a buffer is full


class GrowingLayer(DynamicLayer):
    """Keys and values [B, heads, positions, head size] as the filled part of larger buffers."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[str, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append positions and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._append("keys", self.keys, key_states)
        self.values = self._append("values", self.values, value_states)
        return self.keys, self.values

    def _append(self, name: str, held: Tensor, new: Tensor) -> Tensor:
        filled = held.shape[-2] if held.numel() else 0
        total = filled + new.shape[-2]
        buffer = self._buffers.get(name)
        # Rows that were selected or repeated live in memory of their own and need a new buffer.
        if buffer is None or buffer.shape[-2] < total or held.data_ptr() != buffer.data_ptr():
            buffer = torch.empty(
                *new.shape[:-2], total + ROOM, new.shape[-1], dtype=new.dtype, device=new.device
            )
            if filled:
                buffer[..., :filled, :] = held
            self._buffers[name] = buffer
        buffer[..., filled:total, :] = new
        return buffer[..., :total, :]


def growing_cache(config: PretrainedConfig) -> DynamicCache:
    """Return the model's dynamic cache, its plain layers growing in place; others stay as they are."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


LENGTH_STEP = 64  # cache lengths are rounded up to this, so that few shapes are ever compiled


class StaticDecoder:
    """One token per row and call, on a cache whose buffers are reused for batches of the same shape.

    Rows are filled up to a power of two and lengths to a multiple of 64, so that only a handful of shapes is
    ever compiled.
    """

    def __init__(self, model: PreTrainedModel, compile_forward: bool = True) -> None:
        self.model = model
        self._forward = (
            torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
            if compile_forward
            else model.forward
        )
        self._caches: dict[tuple[int, int], Cache] = {}
        self._cache: Cache | None = None
        self._real: Tensor | None = None
        self._length = 0
        self._rows = 0

    def start(
        self, prompt_cache: DynamicCache, prompt_length: int, new_tokens: int, real: Tensor | None
    ) -> None:
        """Take over the cache of a prefill (B rows, `prompt_length` positions, `real` False at padding).

        Every layer of `prompt_cache` holds all positions, as in `DynamicCache()` without a configuration.
        """
        total = -(-(prompt_length + new_tokens) // LENGTH_STEP) * LENGTH_STEP
        self._rows = prompt_cache.layers[0].keys.shape[0]
        rows = 1 << (self._rows - 1).bit_length()
        key = (rows, total)
        if key not in self._caches:
            self._caches[key] = Cache(layers=[StaticLayer(total) for _ in prompt_cache.layers])
        self._cache = self._caches[key]
        self._cache.reset()
        for layer, source in enumerate(prompt_cache.layers):
            self._cache.update(_padded(source.keys, rows), _padded(source.values, rows), layer)
        device = prompt_cache.layers[0].keys.device
        self._real = torch.zeros(rows, total, dtype=torch.long, device=device)
        self._real[: self._rows, :prompt_length] = 1 if real is None else real.long()
        self._length = prompt_length

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Feed [B] tokens at [B] positions and return the [B, V] logits of the next ones."""
        assert self._cache is not None and self._real is not None, "start() comes first"
        self._real[:, self._length] = 1
        self._length += 1
        output = self._forward(
            input_ids=_padded(tokens, len(self._real))[:, None],
            attention_mask=self._real,
            position_ids=_padded(positions, len(self._real))[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )
        # The compiled forward owns its output buffer and overwrites it at the next replay.
        return output.logits[: self._rows, -1].clone()


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Add rows of zeros up to `rows`."""
    missing = rows - len(tensor)
    return tensor if missing == 0 else torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
