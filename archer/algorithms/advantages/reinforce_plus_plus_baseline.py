"""REINFORCE++-baseline: the group's mean as baseline, whitened over the batch (arXiv 2501.03262)."""

from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.grouping import Grouping
from archer.algorithms.masked import whiten


def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> Tensor:
    """A = whiten(r_i - mean_g) over all valid tokens of the batch.

    r_i is the summed reward of response i, g its group. Every token counts once in the whitening, so long
    responses weigh more in its mean and deviation than short ones. A group of one enters the whitening with 0
    (verl: with its bare score, as if its baseline were 0).

    Returns [N, L].
    """
    deviations = Grouping.of(inputs.groups).deviations(inputs.scores)
    valid_at = inputs.mask.bool()
    return whiten(deviations.unsqueeze(-1).expand(valid_at.shape), valid_at).to(inputs.token_rewards.dtype)
