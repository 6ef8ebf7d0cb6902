"""Log-probabilities and entropies of tokens from logits inside verl's engine.

Without flash-attention verl takes the tokens one by one for their log-probs, tens of thousands of launches in
a micro-batch of its update. Here they go in chunks, and the logits are all that is kept for the backward.
Entropies verl computes in the format of the logits, where they come out negative or wrong by a percent; here
they are those of the local engine.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import verl.utils.torch_functional as verl_functions
import verl.workers.engine.fsdp.transformer_impl as fsdp
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from archer.generation.head import entropy_of

CHUNK_ELEMENTS = 2**27  # of logits in float32: 512 MiB


@contextmanager
def exact_entropies(engine: Any) -> Iterator[None]:
    """Inside, verl's FSDP engine takes its entropies from here, in padded and in packed batches."""
    stock, own = verl_functions.entropy_from_logits, engine.compute_entropy_from_logits
    verl_functions.entropy_from_logits = engine.compute_entropy_from_logits = entropy_from_logits
    try:
        yield
    finally:
        verl_functions.entropy_from_logits, engine.compute_entropy_from_logits = stock, own


def entropy_from_logits(
    logits: Tensor,  # [..., V]
    chunk_size: int = 0,
) -> Tensor:  # [...]
    """Return the entropy of softmax(logits), a chunk of tokens at a time, as verl's function of this name.

    `chunk_size` is verl's; chunks are sized by memory here. With gradients a chunk is computed again in the
    backward, so that no float32 copy of all logits is kept.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    again = torch.is_grad_enabled() and rows.requires_grad
    parts = [
        checkpoint(entropy_of, rows[part], use_reentrant=False) if again else entropy_of(rows[part])
        for part in _chunks(rows)
    ]
    return torch.cat(parts).view(logits.shape[:-1])


@contextmanager
def chunked_log_probs() -> Iterator[None]:
    """Inside, verl's FSDP engine takes its log-probs from here, unless flash-attention gives them."""
    forbidden = os.environ.get("VERL_DISABLE_FLASH_ATTN_CE", "0") == "1"
    if _flash_attention_is_there() and not forbidden:
        yield
        return
    stock = fsdp.logprobs_from_logits
    fsdp.logprobs_from_logits = log_probs_from_logits
    try:
        yield
    finally:
        fsdp.logprobs_from_logits = stock


def _flash_attention_is_there() -> bool:
    """What verl found out, under its misspelt name or the right one."""
    found = vars(verl_functions)
    name = "ATTN_CROSS_ENTROPY_LOSS_AVAILABLE"
    return bool(found[f"FLAH_{name}"] if f"FLAH_{name}" in found else found[f"FLASH_{name}"])


def log_probs_from_logits(
    logits: Tensor,  # [..., V]
    labels: Tensor,  # [...]
    inplace_backward: bool = True,
) -> Tensor:  # [...]
    """Return log pi(label) = z_label - logsumexp(z) in float32 or wider, as verl's function of this name.

    `inplace_backward` is verl's permission to overwrite the logits, which is not used.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    return _TokenLogProbs.apply(rows, labels.reshape(-1)).view(labels.shape)


class _TokenLogProbs(torch.autograd.Function):
    """d log pi(a) / dz_v = [v = a] - pi_v, with pi = softmax(z) computed again from z and its logsumexp."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        chosen = torch.empty(len(labels), dtype=wide, device=logits.device)
        normaliser = torch.empty_like(chosen)
        for part in _chunks(logits):
            z = logits[part].to(wide)
            normaliser[part] = z.logsumexp(-1)
            chosen[part] = z.gather(-1, labels[part, None]).squeeze(-1)
        ctx.save_for_backward(logits, labels, normaliser)
        return chosen - normaliser

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, labels, normaliser = ctx.saved_tensors
        (gradient,) = gradients
        result = torch.empty_like(logits)
        for part in _chunks(logits):
            along = gradient[part, None].to(normaliser.dtype)
            z = logits[part].to(normaliser.dtype)
            pull = (z - normaliser[part, None]).exp_().mul_(-along)
            result[part] = pull.scatter_add_(-1, labels[part, None], along)
        return result, None


def _chunks(logits: Tensor) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    for begin in range(0, len(logits), size):
        yield slice(begin, begin + size)
