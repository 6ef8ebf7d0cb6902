"""What the update did to each token of a step, computed again for the trace.

The loss is elementwise once log-probs are known, so its marks follow from the log-probs of the update's first
pass over each response. They are computed here, on the CPU and for traced steps only: the update on the
device is not touched, and never waits for a trace.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.aggregation import LossTotals, sequence_weights
from archer.algorithms.policy_losses.base import LossInputs, bound_loss
from archer.algorithms.policy_losses.token_marks import token_marks
from archer.algorithms.token_classes import reasoning_tokens
from archer.config.actor import ActorConfig

CHUNK = 64  # rows at a time: what a loss makes on its way is several times as large as its inputs


@dataclass(frozen=True)
class UpdateMarks:
    """All [N, L] on the CPU, zero outside the mask."""

    ratio: Tensor  # float32, importance ratio that the first pass of the update saw
    clipped: Tensor  # int8: -1 bounded at the low side, +1 at the high side
    loss_weight: Tensor  # float32, weight of the token's term in the loss; 1: as much as the mean token


@dataclass(frozen=True)
class UpdateView:
    """What the losses of a step saw, all [N, L] on the CPU."""

    log_probs: Tensor  # of the first pass over each response
    old_log_probs: Tensor | None  # None: the first pass is the old policy
    entropy: Tensor  # that tells reasoning tokens
    advantages: Tensor
    mask: Tensor  # bool: tokens that are learnt from
    rollout_is_weights: Tensor | None = None


class MarkMaker:
    """Makes the marks of steps that are trained with one configuration."""

    def __init__(self, config: ActorConfig, max_response_length: int) -> None:
        self.config = config
        self.horizon = config.loss_scale_factor or max_response_length
        self._loss = bound_loss(config.policy_loss.loss_mode, config)

    @torch.no_grad()
    def __call__(self, view: UpdateView, mini_batches: Iterable[list[int]]) -> UpdateMarks:
        """Return the marks of a step; `mini_batches` are the rows of each in the first epoch."""
        mask = view.mask
        weight = self._weights(view, mini_batches)
        if view.old_log_probs is None:  # every ratio is 1, which no loss bounds
            return UpdateMarks(mask.float(), torch.zeros(mask.shape, dtype=torch.int8), weight)
        ratio, clipped = torch.zeros(mask.shape), torch.zeros(mask.shape, dtype=torch.int8)
        for begin in range(0, len(mask), CHUNK):
            rows = slice(begin, begin + CHUNK)
            inputs = LossInputs(
                log_probs=view.log_probs[rows],
                old_log_probs=view.old_log_probs[rows],
                advantages=view.advantages[rows],
                mask=mask[rows],
                reasoning=reasoning_tokens(
                    view.entropy[rows], mask[rows], self.config.token_entropy_quantile
                ),
            )
            marks = token_marks(inputs, self._loss(inputs))
            ratio[rows], clipped[rows] = marks.ratio, marks.clipped
        return UpdateMarks(ratio, clipped, weight)

    def _weights(self, view: UpdateView, mini_batches: Iterable[list[int]]) -> Tensor:
        """w_i T of every token, w_i as in `sequence_weights`, T the mini-batch's tokens; times IS weights.

        Multiplied by T because 1 / T itself is below what float16 holds: with token-mean it is 1 everywhere.
        """
        weight = torch.zeros(view.mask.shape)
        for rows in mini_batches:
            mask = view.mask[rows]
            totals = LossTotals.of(mask)
            share = sequence_weights(mask, self.config.loss_agg_mode, totals, self.horizon) * totals.tokens
            weight[rows] = share.float()[:, None] * mask
        return weight if view.rollout_is_weights is None else weight * view.rollout_is_weights
