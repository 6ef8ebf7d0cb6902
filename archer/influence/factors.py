"""The captured token factors: what is kept between the backward and the scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MicroBatch:
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
    """

    row: Tensor
    token: Tensor
    u: dict[str, Tensor]
    v: dict[str, Tensor]
    scale: Tensor | None
    lengths: dict[int, int]
    version: int

    @cached_property
    def positions(self) -> dict[int, Tensor]:
        """Where the tokens of each row are, in token order: int64 vectors."""
        order = torch.argsort(self.token, stable=True)
        order = order[torch.argsort(self.row[order], stable=True)]
        rows, counts = torch.unique_consecutive(self.row[order], return_counts=True)
        places = dict(zip(rows.tolist(), order.split(counts.tolist()), strict=True))
        places.pop(-1, None)
        return places

    @cached_property
    def begins(self) -> dict[int, int] | None:
        """Where each row begins, if the tokens of every row follow one another; else None."""
        runs = self.positions.values()
        if any(len(where) > 1 and not bool((where.diff() == 1).all()) for where in runs):
            return None
        return {row: int(where[0]) for row, where in self.positions.items()}
