"""Choosing the next token: temperature, top-k, top-p."""

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
        # The Gumbel-max trick: argmax(log p + Gumbel noise) is a draw from p, without a normalisation.
        noise = torch.empty_like(kept).exponential_(generator=generator).log_()
        tokens = (kept - noise).argmax(-1)
    else:
        tokens = log_probs.argmax(-1)
    return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]


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
