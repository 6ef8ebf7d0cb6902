"""Accept / reject labels permuted within their group: what a score shows when the labels mean nothing."""

from __future__ import annotations

import torch

from archer.influence import Group


def permuted(groups: tuple[Group, ...], seed: int) -> tuple[Group, ...]:
    """The groups with their labels drawn in another order; every group keeps its number of each."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = []
    for group in groups:
        order = torch.randperm(len(group.rows), generator=generator).tolist()
        shuffled.append(Group(group.uid, group.rows, tuple(group.accepted[i] for i in order)))
    return tuple(shuffled)
