"""A custom advantage estimator: the group's mean, the batch's deviation (Lite PPO, arXiv 2508.08221).

    archer train algorithm.adv_estimator=examples/my_advantage.py:batch_std algorithm.std_floor=0.1

An estimator is a function (inputs, settings) -> advantages [N, L]. `@reads` names the dataclass of its
settings, which become settings of `algorithm`. `compares_group=True` says that it compares the responses to
a prompt with each other, so that Archer can refuse `rollout.n=1`.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.groups import Grouping
from archer.plugins import reads
from archer.settings import Section, knob


@dataclass(frozen=True)
class BatchStdSettings(Section):
    """Of the division."""

    std_floor: float = knob(0.05, "smallest deviation that advantages are divided by", above=0)


@reads(BatchStdSettings, compares_group=True)
def batch_std(inputs: AdvantageInputs, settings: BatchStdSettings) -> Tensor:
    """A_i = (r_i - mean of its group) / max(std of all rewards of the batch, std_floor).

    GRPO divides by the deviation of each group, which blows up groups that are nearly all right or all wrong.
    That of the whole batch is one number for all, and steadier.
    """
    deviations = Grouping.of(inputs.groups).deviations(inputs.scores)  # [N]
    std = inputs.scores.std(correction=0).clamp(min=settings.std_floor)
    return inputs.over_tokens(deviations / std)
