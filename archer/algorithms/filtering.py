"""Group filtering on raw correctness.

A group whose responses are all right or all wrong has nothing to teach: its advantages are zero. Filtering
looks at correctness as verified, before any shaping: a length penalty makes the rewards of an all-wrong group
differ, and would keep it.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.grouping import Grouping


@dataclass(frozen=True)
class GroupCounts:
    """Groups by what became of them. A group of one is all correct or all wrong."""

    mixed: int = 0
    all_correct: int = 0
    all_wrong: int = 0

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        return GroupCounts(
            self.mixed + other.mixed,
            self.all_correct + other.all_correct,
            self.all_wrong + other.all_wrong,
        )


def mixed_groups(correct: Tensor, groups: Tensor) -> Tensor:
    """Keep the responses whose group has both right and wrong ones.

    correct: [N] bool
    groups:  [N] int64
    Returns [N] bool.
    """
    grouping = Grouping.of(groups)
    right = grouping.sum(correct.long())
    return grouping.spread((right > 0) & (right < grouping.sizes))


def count_groups(correct: Tensor, groups: Tensor) -> GroupCounts:
    """Count mixed, all-correct and all-wrong groups. correct: [N] bool; groups: [N] int64."""
    grouping = Grouping.of(groups)
    right = grouping.sum(correct.long())
    all_correct = int((right == grouping.sizes).sum())
    all_wrong = int((right == 0).sum())
    return GroupCounts(len(grouping.sizes) - all_correct - all_wrong, all_correct, all_wrong)
