"""GRPO: the score of a response against its group, in standard deviations (arXiv 2402.03300)."""

from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.grouping import Grouping

EPSILON = 1e-6


def grpo(inputs: AdvantageInputs) -> Tensor:
    """A_i = (r_i - mean_g) / (std_g + 1e-6), with std_g² = Σ_g (r - mean_g)² / (n_g - 1).

    r_i is the summed reward of response i, g its group of n_g responses. Equal scores and groups of one
    give 0.

    Returns [N, L].
    """
    grouping = Grouping.of(inputs.groups)
    deviations = grouping.deviations(inputs.scores)
    variances = grouping.sum(deviations.square()) / (grouping.sizes - 1).clamp(min=1)
    return inputs.over_tokens(deviations / (grouping.spread(variances.sqrt()) + EPSILON))
