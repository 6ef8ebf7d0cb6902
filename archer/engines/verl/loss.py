"""Archer's losses as verl's loss function: the local engine's own, divided by the totals of all ranks."""

from typing import Any

from tensordict import TensorDict
from torch import Tensor
from verl.workers.utils.padding import no_padding_2_padding

from archer.algorithms.aggregation import LossTotals
from archer.algorithms.policy_losses import LossInputs
from archer.algorithms.token_classes import reasoning_tokens
from archer.config.model import ActorConfig
from archer.engines.local.sums import TokenSums
from archer.engines.token_loss import TokenLoss


class RankSums(TokenSums):
    """Sums of one rank, to be added to those of the others."""

    def read(self) -> dict[str, tuple[float, float]]:
        """Return name -> (sum of values, number of tokens)."""
        return {name: (float(sums[0]), float(sums[1])) for name, sums in self._sums.items()}


class RankLoss:
    """verl's loss function on one rank; keeps the sums that a step's metrics are made of."""

    def __init__(self, config: ActorConfig, horizon: int) -> None:
        self.config = config
        self._loss = TokenLoss(config, horizon)
        self.sums = RankSums()
        self.terms: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Start a step."""
        self.sums, self.terms = RankSums(), {}

    def __call__(
        self, model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the micro-batch's loss and no metrics: those are read from the sums at the step's end.

        Gradients are averaged over the data-parallel ranks, so the loss is multiplied by their number.
        """
        mask = data["response_mask"].to_padded_tensor(0).bool()  # [n, L]
        old_entropy = data["entropy"].to_padded_tensor(0.0)
        entropy = old_entropy
        if "entropy" in model_output:
            entropy = no_padding_2_padding(model_output["entropy"], data)
        inputs = LossInputs(
            log_probs=no_padding_2_padding(model_output["log_probs"], data),
            old_log_probs=data["old_log_probs"].to_padded_tensor(0.0),
            advantages=data["advantages"].to_padded_tensor(0.0),
            mask=mask,
            reasoning=reasoning_tokens(old_entropy, mask, self.config.token_entropy_quantile),
            rollout_is_weights=_optional(data, "rollout_is_weights"),
        )
        reference = _optional(data, "ref_log_prob")
        totals = LossTotals(tokens=data["batch_num_tokens"], sequences=data["global_batch_size"])
        loss = self._loss(inputs, entropy, reference, totals, self.sums, self.terms)
        return loss * data["dp_size"], {}


def _optional(data: TensorDict, name: str) -> Tensor | None:
    return data[name].to_padded_tensor(0.0) if name in data else None
