"""From token losses to one number: the normalisation of the global mini-batch.

Every mode is a weighted sum whose weights depend only on a response's own length and on totals of the whole
mini-batch. So the losses of micro-batches add up to the loss of the mini-batch, and so do their gradients,
whatever the split; a short last mini-batch is normalised by its own totals.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.masked import masked_sum
from archer.errors import ArcherError


@dataclass(frozen=True)
class LossTotals:
    """Size of the global mini-batch: over all its micro-batches, and all ranks where there are several.

    A response without a valid token is no sequence: it has no loss, and counting it would only shrink the
    loss of the others. (verl counts it when it is told the batch size, and not when it counts from the mask.)
    """

    tokens: float  # valid tokens
    sequences: float  # responses with at least one valid token

    @staticmethod
    def of(mask: Tensor) -> "LossTotals":
        """Count a mini-batch. mask: [N, L]."""
        valid = mask.bool()
        return LossTotals(tokens=float(valid.sum()), sequences=float(valid.any(dim=-1).sum()))


Weights = Callable[[Tensor, LossTotals, int | None], Tensor]


def _token_mean(lengths: Tensor, totals: LossTotals, horizon: int | None) -> Tensor:
    return torch.ones_like(lengths) / max(totals.tokens, 1.0)


def _seq_mean_token_sum(lengths: Tensor, totals: LossTotals, horizon: int | None) -> Tensor:
    return torch.ones_like(lengths) / max(totals.sequences, 1.0)


def _seq_mean_token_mean(lengths: Tensor, totals: LossTotals, horizon: int | None) -> Tensor:
    return 1 / (lengths.clamp(min=1) * max(totals.sequences, 1.0))


def _seq_mean_token_sum_norm(lengths: Tensor, totals: LossTotals, horizon: int | None) -> Tensor:
    if horizon is None or horizon <= 0:
        raise ArcherError(
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm divides by a constant length; "
            f"got {horizon}. Set data.max_response_length (or loss_scale_factor) to a positive number."
        )
    return _seq_mean_token_sum(lengths, totals, horizon) / horizon


AGGREGATIONS: dict[str, Weights] = {
    "token-mean": _token_mean,
    "seq-mean-token-sum": _seq_mean_token_sum,
    "seq-mean-token-mean": _seq_mean_token_mean,
    "seq-mean-token-sum-norm": _seq_mean_token_sum_norm,
}
"""Modes by the names of verl's `actor_rollout_ref.actor.loss_agg_mode`."""


def sequence_weights(mask: Tensor, mode: str, totals: LossTotals, horizon: int | None = None) -> Tensor:
    """Weight w_i that each token of response i has in the loss of the mini-batch.

    With T tokens and S sequences in the mini-batch, |y_i| tokens in the response and H the horizon:

        token-mean               w_i = 1 / T
        seq-mean-token-sum       w_i = 1 / S
        seq-mean-token-mean      w_i = 1 / (S |y_i|)
        seq-mean-token-sum-norm  w_i = 1 / (S H)        (Dr.GRPO; H is the longest response allowed)

    mask:    [n, L], of a micro-batch or of the whole
    totals:  of the mini-batch the responses belong to
    horizon: H, needed by seq-mean-token-sum-norm only
    Returns [n] in float64.
    """
    lengths = mask.bool().sum(dim=-1).double()
    if mode not in AGGREGATIONS:
        raise ArcherError(
            f"actor_rollout_ref.actor.loss_agg_mode={mode!r}: choose one of {', '.join(AGGREGATIONS)}."
        )
    return AGGREGATIONS[mode](lengths, totals, horizon)


def aggregate(
    per_token: Tensor, mask: Tensor, mode: str, totals: LossTotals, horizon: int | None = None
) -> Tensor:
    """Σ_i w_i Σ_t per_token_it over valid tokens, with the weights of `sequence_weights`.

    Where nothing is valid the loss is 0, and still differentiable.

    per_token: [n, L]
    mask:      [n, L]
    Returns the share [] of these responses in the loss of the mini-batch.
    """
    weights = sequence_weights(mask, mode, totals, horizon).to(per_token.dtype)
    return (weights * masked_sum(per_token, mask, dim=-1)).sum()
