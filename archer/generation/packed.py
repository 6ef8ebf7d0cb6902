"""Rows of different lengths in one line, without padding, and the attention that keeps them apart.

Sequences follow one another in a batch of one row; `ends` says where each begins and ends. The attention is
flash attention's kernel for variable lengths, which torch carries on CUDA in 16-bit formats; elsewhere the
sequences are attended one by one with the same result. Models call it through transformers' attention
interface, under the names of its flash-attention arguments.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "archer_packed"
HEAD_SIZES = range(8, 257, 8)  # that flash attention has kernels for


@dataclass(frozen=True)
class Packing:
    """Where n sequences lie in a line of T tokens."""

    position_ids: Tensor  # [1, T] position of each token in its own sequence
    ends: Tensor  # int32 [n + 1]: sequence i is ends[i] to ends[i + 1]
    longest: int

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> "Packing":
        """Pack sequences of the given lengths, [n] on the CPU, one after the other."""
        ends = F.pad(lengths.cumsum(0), (1, 0))
        positions = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(lengths)
        return cls(
            positions[None].to(device, non_blocking=True),
            ends.to(device, torch.int32, non_blocking=True),
            int(lengths.max()),
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """What the model is called with beside its tokens."""
        return {
            "position_ids": self.position_ids,
            "cu_seq_lens_q": self.ends,
            "cu_seq_lens_k": self.ends,
            "max_length_q": self.longest,
            "max_length_k": self.longest,
        }


def can_pack(model: PreTrainedModel) -> bool:
    """Whether the model's attention goes through the interface and is plain enough for the packed kernel."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    unusual = ("attn_logit_softcapping", "attention_sink", "use_attention_sinks", "alibi")
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        bool(getattr(model, "_supports_attention_backend", False))
        and (model.config._attn_implementation == "sdpa" or is_packed(model))
        and size in HEAD_SIZES
        and layers <= {"full_attention", "sliding_attention"}
        and not any(getattr(config, name, None) for name in unusual)
        and not any(name.endswith("sinks") for name, _ in model.named_parameters())
    )


def has_experts(model: PreTrainedModel) -> bool:
    """Whether tokens are sent to experts, which asks the device where they go: no graph can hold that."""
    config = model.config.get_text_config()
    return any(
        getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )


def is_packed(model: PreTrainedModel) -> bool:
    """Whether the model's attention understands a packing: Archer's, or flash-attention's own package."""
    name = str(model.config._attn_implementation)
    return name == NAME or name.startswith("flash_attention")


def use_packed_attention(model: PreTrainedModel) -> None:
    """Switch a model over; called without the arguments of a packing, its attention is causal as before."""
    AttentionInterface.register(NAME, packed_attention)
    model.set_attn_implementation(NAME)


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, T, d], in decoding [B, heads, 1, d]
    key: Tensor,  # [1, groups, T, d], in decoding the cache [slots, positions, groups, d]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    used: Tensor | None = None,  # int32 [B]: filled positions of each row of the cache
    **options: Any,
) -> tuple[Tensor, None]:  # [1, T, heads, d] or [B, 1, heads, d]
    """Attention within each sequence: causal among the tokens of a packing, or of one token over its cache.

    softmax(q k^T / sqrt(d)) v over positions up to the query's own, the last `sliding_window` of them where
    the layer has one.
    """
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        options.pop("dropout", None)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    if used is None:
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    else:
        q, k, v = query[:, :, 0], key.flatten(0, 1), value.flatten(0, 1)
    kind = q.device.type
    if torch.is_autocast_enabled(kind):  # rotated queries may have come out wider
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    attend = _flash if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) else _one_by_one
    spans = _Spans(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, used)
    out = attend(q, k, v, spans, scaling, sliding_window)
    return (out[None] if used is None else out[:, None]), None


class _Spans(NamedTuple):
    """Where the queries and the keys of each sequence lie in their lines."""

    ends_q: Tensor  # int32 [n + 1]
    ends_k: Tensor  # int32 [n + 1]
    longest_q: int
    longest_k: int
    used: Tensor | None  # int32 [n]: how many keys of each count, where not all do


def _flash(
    q: Tensor,  # [T, heads, d]
    k: Tensor,  # [T', groups, d]
    v: Tensor,
    spans: _Spans,
    scaling: float | None,
    window: int | None,
) -> Tensor:  # [T, heads, d]
    """Flash attention's kernel for variable lengths; several query heads share a key head.

    The operator behind `torch.nn.attention.varlen`, whose own arguments differ from release to release.
    """
    causal = spans.used is None
    # The window counts the token itself, the kernel does not.
    sides = (-1, 0 if causal else -1) if window is None else (window - 1, 0)
    return torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        spans.ends_q,
        spans.ends_k,
        spans.longest_q,
        spans.longest_k,
        0.0,
        causal,
        False,
        scale=scaling,
        window_size_left=sides[0],
        window_size_right=sides[1],
        seqused_k=spans.used,
    )[0]


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, spans: _Spans, scaling: float | None, window: int | None
) -> Tensor:
    """The same a sequence at a time, on any device and in any format."""
    ends_q, ends_k = spans.ends_q, spans.ends_k
    lengths = (ends_k[1:] - ends_k[:-1] if spans.used is None else spans.used).tolist()
    parts = []
    for i, (begin, start, length) in enumerate(zip(ends_q.tolist(), ends_k.tolist(), lengths, strict=False)):
        end = int(ends_q[i + 1])
        if length == 0:  # a row of the cache that nothing uses
            parts.append(torch.zeros_like(q[begin:end]))
            continue
        position = torch.arange(length - (end - begin), length, device=q.device)[:, None]
        distance = position - torch.arange(length, device=q.device)
        seen = (distance >= 0) & (distance < (window or length + 1))
        own = slice(start, start + length)
        out = F.scaled_dot_product_attention(
            q[begin:end].transpose(0, 1)[None],
            k[own].transpose(0, 1)[None],
            v[own].transpose(0, 1)[None],
            attn_mask=seen,
            scale=scaling,
            enable_gqa=True,
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)
