"""`algorithm.*`: advantages, KL in the reward, group filtering, rollout correction."""

from dataclasses import dataclass
from typing import Any, ClassVar

from archer.algorithms.advantages.base import ADVANTAGES
from archer.algorithms.dynamic_sampling import FilterGroupsConfig
from archer.algorithms.kl import KL_ESTIMATORS, KLControlConfig
from archer.algorithms.rollout_correction import RolloutCorrectionConfig
from archer.algorithms.token_credit.config import TokenCreditConfig, token_credit_config
from archer.settings import Section, knob, section


@dataclass(frozen=True)
class AlgorithmConfig(Section):
    """How rewards become advantages. Estimators declare the settings that they alone read."""

    tables: ClassVar[tuple[Any, ...]] = (ADVANTAGES,)

    adv_estimator: str = knob(
        "grpo", "advantage estimator; gae needs a critic, so engine=verl", table=ADVANTAGES
    )
    use_kl_in_reward: bool = knob(False, "subtract the KL to the reference model from the reward")
    kl_penalty: str = knob("kl", "estimator of that KL", table=KL_ESTIMATORS, needs="use_kl_in_reward")
    kl_ctrl: KLControlConfig = section(KLControlConfig, needs="algorithm.use_kl_in_reward")
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
    token_credit: TokenCreditConfig = section(token_credit_config)
