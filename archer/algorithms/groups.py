"""Responses that answer the same prompt, and sums over them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grouping:
    """N responses in G groups, with arbitrary group ids made dense.

    Groups are numbered in ascending order of their ids, whatever the order of the responses.
    """

    index: Tensor  # [N] int64: the group, 0..G-1, of each response
    sizes: Tensor  # [G] int64: responses in each group

    @staticmethod
    def of(groups: Tensor) -> "Grouping":
        """Group responses by id. groups: [N] int64."""
        _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
        return Grouping(index, sizes)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of `values` [N] in each group: [G]."""
        return values.new_zeros(self.sizes.shape).index_add(0, self.index, values)

    def min(self, values: Tensor) -> Tensor:
        """Least of `values` [N] in each group: [G]."""
        start = values.new_full(self.sizes.shape, torch.inf)
        return start.scatter_reduce(0, self.index, values, reduce="amin")

    def spread(self, per_group: Tensor) -> Tensor:
        """Give each response [N] the value of its group. per_group: [G]."""
        return per_group[self.index]

    def deviations(self, values: Tensor) -> Tensor:
        """`values` [N] minus the mean of their group: [N].

        The group's minimum is taken off first, so that equal values deviate by exactly zero.
        """
        shifted = values - self.spread(self.min(values))
        return shifted - self.spread(self.sum(shifted) / self.sizes)


@dataclass(frozen=True)
class GroupCounts:
    """Groups by the verdicts on those responses that were judged. A single verdict is all correct or all
    wrong.
    """

    mixed: int = 0
    all_correct: int = 0
    all_wrong: int = 0
    unjudged: int = 0  # without a single verdict

    @property
    def degenerate(self) -> int:
        """Groups without a contrast, which teach nothing."""
        return self.all_correct + self.all_wrong + self.unjudged

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        return GroupCounts(
            self.mixed + other.mixed,
            self.all_correct + other.all_correct,
            self.all_wrong + other.all_wrong,
            self.unjudged + other.unjudged,
        )


def mixed_groups(correct: Tensor, groups: Tensor, judged: Tensor | None = None) -> Tensor:
    """Keep the responses whose group has both right and wrong ones.

    correct: [N] bool
    groups:  [N] int64
    judged:  [N] bool, the responses whose verdict counts; None: all
    Returns [N] bool.
    """
    grouping = Grouping.of(groups)
    right, verdicts = _verdicts(grouping, correct, judged)
    return grouping.spread((right > 0) & (right < verdicts))


def count_groups(correct: Tensor, groups: Tensor, judged: Tensor | None = None) -> GroupCounts:
    """Count groups by their verdicts. correct: [N] bool; groups: [N] int64; judged: as in `mixed_groups`."""
    grouping = Grouping.of(groups)
    right, verdicts = _verdicts(grouping, correct, judged)
    unjudged = int((verdicts == 0).sum())
    all_correct = int(((right == verdicts) & (verdicts > 0)).sum())
    all_wrong = int(((right == 0) & (verdicts > 0)).sum())
    return GroupCounts(
        len(grouping.sizes) - all_correct - all_wrong - unjudged, all_correct, all_wrong, unjudged
    )


def _verdicts(grouping: Grouping, correct: Tensor, judged: Tensor | None) -> tuple[Tensor, Tensor]:
    """(right responses, judged responses) of each group, both [G]."""
    if judged is None:
        judged = torch.ones_like(correct)
    return grouping.sum((correct & judged).long()), grouping.sum(judged.long())
