"""RLOO: the score of a response against the mean of the others in its group (arXiv 2402.14740)."""

from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.grouping import Grouping


def rloo(inputs: AdvantageInputs) -> Tensor:
    """A_i = r_i - Σ_{j≠i} r_j / (n_g - 1) = n_g / (n_g - 1) · (r_i - mean_g).

    r_i is the summed reward of response i, g its group of n_g responses. The baseline does not depend on
    response i, so the policy gradient stays unbiased. A group of one has no others to compare with and
    gives 0.

    Returns [N, L].
    """
    grouping = Grouping.of(inputs.groups)
    sizes = grouping.spread(grouping.sizes)
    return inputs.over_tokens(grouping.deviations(inputs.scores) * sizes / (sizes - 1).clamp(min=1))
