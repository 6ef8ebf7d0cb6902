"""Advantage estimators by the names of verl's `algorithm.adv_estimator`."""

from archer.algorithms.advantages.base import AdvantageFn, AdvantageInputs
from archer.algorithms.advantages.dr_grpo import dr_grpo
from archer.algorithms.advantages.grpo import grpo
from archer.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus
from archer.algorithms.advantages.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from archer.algorithms.advantages.rloo import rloo
from archer.algorithms.lookup import choose
from archer.errors import ArcherError

__all__ = ["ADVANTAGES", "AdvantageFn", "AdvantageInputs", "advantage"]

ADVANTAGES: dict[str, AdvantageFn] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}


def advantage(name: str) -> AdvantageFn:
    """Return the estimator that `algorithm.adv_estimator` names."""
    if name == "gae":
        raise ArcherError(
            "algorithm.adv_estimator=gae needs a critic, which only engine=verl trains. "
            f"Run with engine=verl, or choose one without a critic: {', '.join(ADVANTAGES)}."
        )
    return choose(ADVANTAGES, name, "algorithm.adv_estimator")
