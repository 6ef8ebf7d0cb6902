"""Advantages against the other responses of the group: GRPO, Dr.GRPO, RLOO.

r_i is the summed reward of response i, g its group of n_g responses. Equal scores and groups of one give 0.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.advantages.base import ADVANTAGES, AdvantageInputs
from archer.algorithms.groups import Grouping
from archer.settings import Section, knob

EPSILON = 1e-6


@dataclass(frozen=True)
class GrpoSettings(Section):
    """What the group's deviation does."""

    norm_adv_by_std_in_grpo: bool = knob(
        True, "divide GRPO's advantage by the group's std; False: Dr.GRPO", idle="refuse"
    )


@ADVANTAGES.register("grpo", settings=GrpoSettings, compares_group=True)
def grpo(inputs: AdvantageInputs, settings: GrpoSettings) -> Tensor:
    """The score of a response against its group, in standard deviations (arXiv 2402.03300).

        A_i = (r_i - mean_g) / (std_g + 1e-6), with std_g² = Σ_g (r - mean_g)² / (n_g - 1)

    Returns [N, L].
    """
    if not settings.norm_adv_by_std_in_grpo:
        return dr_grpo(inputs, settings)
    grouping = Grouping.of(inputs.groups)
    deviations = grouping.deviations(inputs.scores)
    variances = grouping.sum(deviations.square()) / (grouping.sizes - 1).clamp(min=1)
    return inputs.over_tokens(deviations / (grouping.spread(variances.sqrt()) + EPSILON))


@ADVANTAGES.register("dr_grpo", settings=GrpoSettings, compares_group=True)
def dr_grpo(inputs: AdvantageInputs, settings: GrpoSettings) -> Tensor:
    """GRPO without the division by the group's deviation (arXiv 2503.20783): A_i = r_i - mean_g.

    That division gives very easy and very hard prompts more weight than the rest. The paper's other half, the
    loss without a length bias, is the aggregation `seq-mean-token-sum-norm`.

    Returns [N, L].
    """
    return inputs.over_tokens(Grouping.of(inputs.groups).deviations(inputs.scores))


@ADVANTAGES.register("rloo", compares_group=True)
def rloo(inputs: AdvantageInputs, settings: Section) -> Tensor:
    """The score of a response against the mean of the others in its group (arXiv 2402.14740).

        A_i = r_i - Σ_{j≠i} r_j / (n_g - 1) = n_g / (n_g - 1) · (r_i - mean_g)

    The baseline does not depend on response i, so the policy gradient stays unbiased.

    Returns [N, L].
    """
    grouping = Grouping.of(inputs.groups)
    sizes = grouping.spread(grouping.sizes)
    return inputs.over_tokens(grouping.deviations(inputs.scores) * sizes / (sizes - 1).clamp(min=1))
