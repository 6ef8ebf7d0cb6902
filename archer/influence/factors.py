"""The captured token factors: what is kept between the backward and the scores; and copies to the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

SMALL = 1 << 16  # bytes


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from the CPU to the device without waiting for the work it has still to do.

    CUDA copies a small tensor aside at once; a large one it can only read later where it is pinned.
    """
    if device.type != "cuda":
        return tensor.to(device)
    if tensor.nbytes > SMALL:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class ExpertFactors:
    """Factors of n positions at the experts that each was sent to, s of the E experts of a layer.

    Attributes:
        values: [n, s, k].
        expert: int64 [n, s], which expert each line met.
        count: E.
    """

    values: Tensor
    expert: Tensor
    count: int

    def dense(self, experts: Sequence[int], device: torch.device) -> Tensor:
        """[m, n, k] of m experts, 0 where a position was not sent to the expert."""
        m, (n, _, k) = len(experts), self.values.shape
        values, expert = self.values.to(device), self.expert.to(device)
        line = torch.full((self.count,), m)
        line[torch.tensor(experts)] = torch.arange(m)
        line = send(line, device)[expert]
        # Lines of other experts all go to one more place, which is cut off.
        index = torch.where(line < m, line * n + torch.arange(n, device=device)[:, None], m * n)
        dense = values.new_zeros(m * n + 1, k)
        return dense.index_copy_(0, index.flatten(), values.flatten(0, 1))[:-1].view(m, n, k)


@dataclass(frozen=True, eq=False)
class TokenFactors:
    """The factors of one capture, n positions in layout order.

    Attributes:
        row: int64 [n] on the CPU, response row of each token, -1 at positions that emit no traced token.
        token: int64 [n] on the CPU, index within the response.
        u: per module name [n, k_out], signs of P_out times the output gradient.
        v: per module name [n, k_in], signs of P_in times the input; modules with one input share one tensor.
            Both may be wider by columns of zeros (`Projection.signs`).
        scale: [n] the objective's multiple of each token's u, None when the captured objective is the wanted
            one.
        lengths: full length of each response.
        version: which weights the factors were captured under.
        known_runs: `runs`, where they are known beforehand.
        experts: per name of a fused weight of experts (u, v), over the same n positions.
    """

    row: Tensor
    token: Tensor
    u: dict[str, Tensor]
    v: dict[str, Tensor]
    scale: Tensor | None
    lengths: dict[int, int]
    version: int
    known_runs: dict[int, tuple[int, int]] | None = None
    experts: dict[str, tuple[ExpertFactors, ExpertFactors]] = field(default_factory=dict)

    @cached_property
    def runs(self) -> dict[int, tuple[int, int]] | None:
        """(first position, number of tokens) of each row, if every row's tokens follow one another."""
        if self.known_runs is not None:
            return self.known_runs
        rows, counts, order = self._ordered
        before = counts.cumsum(0) - counts
        first = order[before]
        in_sequence = torch.arange(len(order)) + (first - before).repeat_interleave(counts)
        if not torch.equal(order, in_sequence):
            return None
        return dict(zip(rows.tolist(), zip(first.tolist(), counts.tolist(), strict=True), strict=True))

    @cached_property
    def counts(self) -> dict[int, int]:
        """How many tokens of each row were captured."""
        if self.runs is not None:
            return {row: count for row, (_, count) in self.runs.items()}
        rows, counts, _ = self._ordered
        return dict(zip(rows.tolist(), counts.tolist(), strict=True))

    @cached_property
    def positions(self) -> dict[int, Tensor]:
        """Where the tokens of each row are, in token order: int64 vectors."""
        if self.runs is not None:
            return {row: torch.arange(first, first + count) for row, (first, count) in self.runs.items()}
        rows, counts, order = self._ordered
        return dict(zip(rows.tolist(), order.split(counts.tolist()), strict=True))

    @cached_property
    def _ordered(self) -> tuple[Tensor, Tensor, Tensor]:
        """Traced rows, the number of tokens of each, and all their positions by row and token."""
        order = torch.argsort(self.token, stable=True)
        order = order[torch.argsort(self.row[order], stable=True)]
        rows, counts = torch.unique_consecutive(self.row[order], return_counts=True)
        if len(rows) and rows[0] == -1:
            order, rows, counts = order[counts[0] :], rows[1:], counts[1:]
        return rows, counts, order
