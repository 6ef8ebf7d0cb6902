"""Archer's losses as verl's loss function: the local engine's own, divided by the totals of all ranks."""

from typing import Any

import torch
from tensordict import TensorDict  # type: ignore[import-untyped]
from torch import Tensor
from verl.workers.utils.padding import no_padding_2_padding

from archer.algorithms.aggregation import LossTotals
from archer.config.model import ActorConfig
from archer.engines.local.batch import MicroBatch
from archer.engines.local.experience import Experience
from archer.engines.local.loss import MicroBatchLoss
from archer.engines.local.policy import TokenStats
from archer.engines.local.sums import TokenSums


class RankSums(TokenSums):
    """Sums of one rank, to be added to those of the others."""

    def read(self) -> dict[str, tuple[float, float]]:
        """Return name -> (sum of values, number of tokens)."""
        return {name: (float(sums[0]), float(sums[1])) for name, sums in self._sums.items()}


class RankLoss:
    """verl's loss function on one rank; keeps the sums that a step's metrics are made of."""

    def __init__(self, config: ActorConfig, horizon: int) -> None:
        self._loss = MicroBatchLoss(config, horizon)
        self.sums = RankSums()
        self.terms: dict[str, float] = {}

    def begin(self) -> None:
        """Start a step."""
        self.sums, self.terms = RankSums(), {}

    def __call__(
        self, model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's loss and no metrics: those are read from the sums at the step's end.

        Gradients are averaged over the data-parallel ranks, so the loss is multiplied by their number.
        """
        log_probs = no_padding_2_padding(model_output["log_probs"], data)  # [n, L]
        mask = data["response_mask"].to_padded_tensor(0).bool()
        old_entropy = data["entropy"].to_padded_tensor(0.0)
        entropy = old_entropy
        if "entropy" in model_output:
            entropy = no_padding_2_padding(model_output["entropy"], data)
        experience = Experience(
            judged=None,  # type: ignore[arg-type]  # verdicts are the driver's business
            advantages=data["advantages"].to_padded_tensor(0.0),
            old_log_probs=data["old_log_probs"].to_padded_tensor(0.0),
            ref_log_probs=_optional(data, "ref_log_prob"),
            old_entropy=old_entropy,
            rollout_is_weights=_optional(data, "rollout_is_weights"),
        )
        totals = LossTotals(tokens=data["batch_num_tokens"], sequences=data["global_batch_size"])
        batch = _batch(mask)
        stats = TokenStats(log_probs, entropy)
        loss = self._loss(experience, batch, stats, totals, self.sums, self.terms)
        return loss * data["dp_size"], {}


def _optional(data: TensorDict, name: str) -> Tensor | None:
    return data[name].to_padded_tensor(0.0) if name in data else None


def _batch(mask: Tensor) -> MicroBatch:
    """The rows of a micro-batch in their order; the loss looks at nothing but the mask."""
    nothing = torch.empty(0, device=mask.device)
    return MicroBatch(torch.arange(len(mask)), nothing, nothing, mask, nothing)
