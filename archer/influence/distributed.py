"""Groups whose responses were captured on several ranks.

Tokens stay where they were captured. What crosses the wire, once per crossing group, is the R x D response
gradients of all modules; with hessian_source=token also D x D (or, where fewer tokens than D make it smaller,
the group's projected factors). Groups that lie on one rank cost no communication. All ranks call in the same
order, also one that captured nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from archer.errors import ArcherError
from archer.influence.groups import Group


class Exchange:
    """How ranks add up what each of them holds; here for a single process, with nothing to exchange."""

    rank = 0

    def agree(self, groups: Sequence[Group], problem: str | None) -> None:
        """Raise on every rank when one of them has a problem or was given other groups."""
        if problem is not None:
            raise ArcherError(problem)

    def gather_counts(self, counts: Tensor) -> Tensor:
        """Every rank's vector [n], as [ranks, n] on the CPU."""
        return counts.unsqueeze(0)

    def sum(self, tensor: Tensor) -> Tensor:
        """The elementwise sum over ranks."""
        return tensor

    def gather_lines(self, tensor: Tensor, lines: list[int]) -> Tensor:
        """All ranks' lines [lines[rank], k] one after the other, [sum(lines), k]."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether it is true on some rank."""
        return flag


class Ranks(Exchange):
    """The ranks of a process group; tensors are sent from the device its backend needs."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.group = process_group
        self.device = torch.device("cuda" if "nccl" in dist.get_backend(process_group) else "cpu")
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)

    def agree(self, groups: Sequence[Group], problem: str | None) -> None:
        """Compare groups by a checksum and pass problems on: no rank waits for one that failed."""
        checksum = zlib.crc32(repr(tuple(groups)).encode())
        heads = self._gather(torch.tensor([checksum, problem is not None], dtype=torch.int64)).tolist()
        if problem is not None:
            raise ArcherError(problem)
        failed = [rank for rank, head in enumerate(heads) if head[1]]
        if failed:
            raise ArcherError(f"influence tracing failed on rank {failed[0]}; its own message says why")
        if any(head[0] != heads[0][0] for head in heads):
            raise ArcherError(
                "ranks were given different groups: every rank passes the same groups in the same order to "
                "tracer.scores; gather_groups makes them out of each rank's own"
            )

    def gather_counts(self, counts: Tensor) -> Tensor:
        """All-gather."""
        return self._gather(counts).cpu()

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce."""
        sent = tensor.to(self.device, copy=True).contiguous()
        dist.all_reduce(sent, group=self.group)
        return sent.to(tensor.device)

    def gather_lines(self, tensor: Tensor, lines: list[int]) -> Tensor:
        """All-gather of lines, padded to the longest rank for the wire."""
        sent = tensor.new_zeros(max(lines), *tensor.shape[1:])
        sent[: len(tensor)] = tensor
        received = self._gather(sent)
        return torch.cat([received[rank, :count] for rank, count in enumerate(lines)]).to(tensor.device)

    def any(self, flag: bool) -> bool:
        """All-reduce of the flag."""
        return bool(self.sum(torch.tensor([int(flag)])))

    def _gather(self, tensor: Tensor) -> Tensor:
        sent = tensor.to(self.device).contiguous()
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent, group=self.group)
        return torch.stack(received)


def gather_groups(mine: Sequence[Group], process_group: dist.ProcessGroup) -> list[Group]:
    """All ranks' groups, those of one uid joined, ordered by their first row: the same list on every rank.

    For engines whose ranks know only their own responses. Every rank calls it, also with nothing.
    """
    everyone: list[list[Group] | None] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(everyone, list(mine), group=process_group)
    members: dict[str, dict[int, bool]] = {}
    for groups in everyone:
        for group in groups or []:
            members.setdefault(group.uid, {}).update(zip(group.rows, group.accepted, strict=True))
    joined = [
        Group(uid, tuple(sorted(flags)), tuple(flags[row] for row in sorted(flags)))
        for uid, flags in members.items()
    ]
    return sorted(joined, key=lambda group: group.rows)
