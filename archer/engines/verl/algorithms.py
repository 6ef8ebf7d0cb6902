"""Archer's losses as verl's loss function: the local engine's own, divided by the totals of all ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est
from verl.workers.utils.padding import no_padding_2_padding

from archer.algorithms.advantages.base import AdvantageInputs, bound_advantage, judged_advantages
from archer.algorithms.aggregation import LossTotals
from archer.algorithms.policy_losses.base import LossInputs
from archer.algorithms.token_classes import reasoning_tokens
from archer.config.actor import ActorConfig
from archer.config.root import TrainConfig
from archer.engines.verl.credit import WEIGHTS
from archer.engines.verl.traced_update import ROW_ID
from archer.engines.verl.translate import ESTIMATOR_PREFIX, estimator_name
from archer.training.metrics import TokenSums
from archer.training.token_loss import TokenLoss


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
        self._keeps = False
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def begin(self, keeps: bool = False) -> None:
        """Start a step; `keeps`: a trace will ask for the log-probs that its losses saw."""
        self.sums, self.terms = RankSums(), {}
        self._keeps, self._seen = keeps, []

    def log_probs(self) -> dict[int, NDArray[np.float32]]:
        """Log-probs of every row of this rank as the first loss over it saw them, [length] each."""
        found: dict[int, NDArray[np.float32]] = {}
        for rows, lengths, values in self._seen:
            parts = zip(rows.tolist(), lengths.tolist(), values.cpu().numpy(), strict=True)
            for row, length, log_probs in parts:
                found.setdefault(row, log_probs[:length])
        self._seen = []
        return found

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
        advantages = data["advantages"].to_padded_tensor(0.0)
        weights = _optional(data, WEIGHTS)
        inputs = LossInputs(
            log_probs=no_padding_2_padding(model_output["log_probs"], data),
            old_log_probs=data["old_log_probs"].to_padded_tensor(0.0),
            advantages=advantages if weights is None else advantages * weights,
            mask=mask,
            reasoning=reasoning_tokens(old_entropy, mask, self.config.token_entropy_quantile),
            rollout_is_weights=_optional(data, "rollout_is_weights"),
        )
        if self._keeps:  # nothing is read from the device before the step's end
            lengths = data["response_mask"].offsets().diff()
            self._seen.append((data[ROW_ID].reshape(-1), lengths, inputs.log_probs.detach().float()))
        reference = _optional(data, "ref_log_prob")
        totals = LossTotals(tokens=data["batch_num_tokens"], sequences=data["global_batch_size"])
        loss = self._loss(inputs, entropy, reference, totals, self.sums, self.terms)
        return loss * data["dp_size"], {}


def _optional(data: TensorDict, name: str) -> Tensor | None:
    return data[name].to_padded_tensor(0.0) if name in data else None


def register_estimator(config: TrainConfig) -> None:
    """Register the estimator that the run uses, with its settings; GAE is verl's own."""
    name = estimator_name(config)
    if name.startswith(ESTIMATOR_PREFIX):
        ADV_ESTIMATOR_REGISTRY.pop(name, None)  # of an earlier run in this process, with other settings
        estimator = bound_advantage(config.algorithm.adv_estimator, config.algorithm)
        register_adv_est(name)(adapted(estimator))


def adapted(function: Callable[[AdvantageInputs], Tensor]) -> Any:
    """Return an estimator with verl's signature: advantages and returns, both [N, L].

    Rows without a token to learn from fill up a batch, or could not be judged; no statistic sees them.
    """

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, **_: Any
    ) -> tuple[Tensor, Tensor]:
        real = response_mask.bool().any(-1)
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(index.tolist()))}
        groups = torch.tensor([numbers[uid] for uid in index.tolist()])
        inputs = AdvantageInputs(token_level_rewards, response_mask, groups)
        advantages = judged_advantages(function, inputs, real)
        return advantages, advantages

    return estimate
