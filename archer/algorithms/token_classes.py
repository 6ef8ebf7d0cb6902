"""Reasoning and knowledge tokens: the tokens of a response at which the policy is unsure, and the rest.

arXiv 2507.15778 (Archer). The quantile is taken within each response, so that every response has both kinds
however sure the policy is of it as a whole.
"""

import torch
from torch import Tensor


def reasoning_tokens(
    entropy: Tensor,  # [n, L] of the policy that sampled, in nats
    mask: Tensor,  # [n, L]
    quantile: float,
) -> Tensor:  # [n, L] bool
    """Mark the valid tokens whose entropy is above the quantile of their response's entropies.

    The quantile q of m sorted values x_0 .. x_(m-1) lies at p = q (m - 1), linearly between its neighbours:
    x_⌊p⌋ + (p - ⌊p⌋) (x_⌈p⌉ - x_⌊p⌋). Above means strictly: of a response of one token, or of one entropy,
    no token is a reasoning token. Valid tokens that are not marked are knowledge tokens.
    """
    valid = mask.bool()
    if valid.numel() == 0:
        return valid
    values = entropy.detach().double()
    ordered = values.masked_fill(~valid, torch.inf).sort(dim=-1).values
    position = quantile * (valid.sum(-1, keepdim=True) - 1).clamp(min=0).double()
    below, above = position.floor().long(), position.ceil().long()
    at_below = ordered.gather(-1, below)
    # A response without a valid token has only infinities here, whose difference would be NaN.
    between = torch.where(below == above, 0.0, ordered.gather(-1, above) - at_below)
    return valid & (values > at_below + (position - below) * between)


def by_class(reasoning: Tensor, for_reasoning: float, for_knowledge: float, like: Tensor) -> Tensor:
    """Give every token the value of its kind. reasoning: [n, L] bool; returns [n, L] in `like`'s dtype."""
    return torch.where(reasoning, like.new_full((), for_reasoning), like.new_full((), for_knowledge))


def class_masks(reasoning: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Return the tokens of each class. reasoning, valid: [n, L] bool."""
    return {"reasoning": reasoning & valid, "knowledge": valid & ~reasoning}
