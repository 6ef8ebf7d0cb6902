"""Attention for decoding on a CPU where several query heads share a key head.

The stock function repeats keys and values for every query head, all earlier positions for each new token.
Here the query heads of one key head are its queries: a token has one position, so no mask tells them apart.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "archer_grouped"


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # [B, heads, Q, size]
    key: Tensor,  # [B, key heads, S, size]
    value: Tensor,
    attention_mask: Tensor | None,  # [B, 1, Q, S]
    dropout: float = 0.0,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:  # [B, Q, heads, size]
    """As transformers' sdpa; one query position a row goes without repeating keys."""
    b, heads, q, size = query.shape
    if q > 1 or heads == key.shape[1] or dropout:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
    folded = query.reshape(b, key.shape[1], -1, size)
    out = torch.nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.reshape(b, 1, heads, size), None


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Have a model with stock attention decode without repeated keys."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, grouped_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
