"""Choosing the next token: temperature, top-k, top-p."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How responses are drawn. `do_sample=False` takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    do_sample: bool = True


def sample_tokens(
    logits: Tensor,  # [B, V]
    params: SamplingParams,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:  # [B] token ids, [B] log-probs
    """Draw one token per row and return it with its log-probability.

    The log-probability is that of the full distribution at the temperature, log softmax(logits / T),
    before top-k and top-p cut it: the same quantity the training forward computes.
    """
    scaled = logits.float() / params.temperature
    log_probs = scaled.log_softmax(-1)
    if params.do_sample:
        kept = truncate(log_probs, params.top_k, params.top_p)
        tokens = draw(kept, generator)
    else:
        tokens = log_probs.argmax(-1)
    return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]


def draw(
    log_probs: Tensor,  # [B, V], need not be normalised
    generator: torch.Generator,
) -> Tensor:  # [B]
    """Draw one token per row by inverting its distribution function: the first with F(token) > u F(last).

    One uniform number a row instead of noise for every token of the vocabulary, which took longer than the
    rest of the draw; in float64, so that no token of a large vocabulary is lost to rounding. A token of
    probability 0 adds nothing to F and is never first.
    """
    distribution = log_probs.double().exp_().cumsum_(-1)
    total = distribution[:, -1:]
    u = torch.rand(len(total), 1, dtype=torch.float64, device=total.device, generator=generator) * total
    u = torch.minimum(u, total.nextafter(torch.zeros_like(total)))  # u F(last) may have rounded up to F(last)
    return torch.searchsorted(distribution, u, right=True)[:, 0]


def truncate(
    log_probs: Tensor,  # [B, V]
    top_k: int,
    top_p: float,
) -> Tensor:  # [B, V]
    """Set to -inf what top-k and top-p leave out.

    top-k keeps the k likeliest tokens and those that tie with the k-th. top-p then keeps the smallest set of
    likeliest tokens whose (renormalised) probability reaches p; the likeliest token always stays.
    """
    vocabulary = log_probs.shape[-1]
    if 0 < top_k < vocabulary:
        smallest_kept = log_probs.topk(top_k, dim=-1).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < smallest_kept, -torch.inf)
    if top_p < 1.0:
        ordered, order = log_probs.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs  # probability of all likelier tokens
        cut = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, order, before >= top_p)
        log_probs = log_probs.masked_fill(cut, -torch.inf)
    return log_probs


def stream(device: torch.device, *name: int | str) -> torch.Generator:
    """Return a generator whose seed is a hash of `name`, e.g. (seed, "rollout", step, batch)."""
    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(*name))
    return generator


def stream_seed(*name: int | str) -> int:
    """Return a 63-bit seed that depends on every part of `name` and on nothing else."""
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
