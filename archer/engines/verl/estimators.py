"""Archer's advantage estimators under names of their own in verl's registry."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from archer.algorithms.advantages import ADVANTAGES, AdvantageFn, AdvantageInputs
from archer.engines.verl.translate import ESTIMATOR_PREFIX


def register_estimators() -> None:
    """Register every estimator of `archer.algorithms.advantages`; a second call changes nothing."""
    for name, function in ADVANTAGES.items():
        if ESTIMATOR_PREFIX + name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(ESTIMATOR_PREFIX + name)(adapted(function))


def adapted(function: AdvantageFn) -> Any:
    """Return an estimator with verl's signature: advantages and returns, both [N, L].

    Rows without a token only fill up a batch; they are left out of every statistic.
    """

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, config: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        real = response_mask.bool().any(-1)
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(index.tolist()))}
        groups = torch.tensor([numbers[uid] for uid in index.tolist()])
        gamma = 1.0 if config is None else float(config.gamma)
        inputs = AdvantageInputs(token_level_rewards[real], response_mask[real], groups[real], gamma)
        advantages = torch.zeros_like(token_level_rewards)
        advantages[real] = function(inputs)
        return advantages, advantages

    return estimate
