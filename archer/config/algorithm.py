"""`algorithm.*`: advantages, KL in the reward, group filtering, rollout correction."""

from dataclasses import dataclass
from typing import Literal

from archer.config.knob import knob, section
from archer.config.model import KlEstimator

AdvantageName = Literal[
    "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae"
]


@dataclass(frozen=True)
class KlCtrlConfig:
    """Weight of the KL in the reward."""

    type: Literal["fixed", "adaptive"] = knob("fixed", "constant, or steered towards target_kl")
    kl_coef: float = knob(0.001, "(initial) weight")
    horizon: int = knob(10000, "adaptive: how fast the weight follows")
    target_kl: float = knob(0.1, "adaptive: the KL aimed at")


@dataclass(frozen=True)
class FilterGroupsConfig:
    """DAPO's dynamic sampling."""

    enable: bool = knob(False, "drop groups that are all right or all wrong and sample new prompts instead")
    metric: Literal["acc"] = knob("acc", "what is compared: the raw correctness, never the shaped reward")
    max_num_gen_batches: int = knob(10, "most generations per step; then go on with what there is")


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """Importance sampling for the mismatch of rollout and training."""

    rollout_is: Literal["token", "sequence"] | None = knob(
        None, "weight the loss by π_old / π_rollout of each `token` or of the whole `sequence`; default: not"
    )
    rollout_is_threshold: str = knob(
        "2.0", "truncate these weights at an upper bound, `2.0`; or drop those outside two bounds, `0.5_5.0`"
    )
    rollout_is_batch_normalize: bool = knob(False, "divide these weights by their mean over the step")


@dataclass(frozen=True)
class AlgorithmConfig:
    """How rewards become advantages."""

    adv_estimator: AdvantageName = knob("grpo", "advantage estimator; gae needs a critic, so engine=verl")
    norm_adv_by_std_in_grpo: bool = knob(True, "divide GRPO's advantage by the group's std; False: Dr.GRPO")
    gamma: float = knob(1.0, "discount, for reinforce_plus_plus")
    use_kl_in_reward: bool = knob(False, "subtract the KL to the reference model from the reward")
    kl_penalty: KlEstimator = knob("kl", "estimator of that KL")
    kl_ctrl: KlCtrlConfig = section(KlCtrlConfig)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
