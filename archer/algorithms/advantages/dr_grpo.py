"""Dr.GRPO: GRPO without the division by the group's deviation (arXiv 2503.20783).

That division gives very easy and very hard prompts more weight than the rest. The paper's other half, the
loss without a length bias, is the aggregation `seq-mean-token-sum-norm`.
"""

from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.grouping import Grouping


def dr_grpo(inputs: AdvantageInputs) -> Tensor:
    """A_i = r_i - mean_g.

    r_i is the summed reward of response i, g its group. Equal scores and groups of one give 0.
    The same as verl's `grpo` with `algorithm.norm_adv_by_std_in_grpo=False`.

    Returns [N, L].
    """
    return inputs.over_tokens(Grouping.of(inputs.groups).deviations(inputs.scores))
