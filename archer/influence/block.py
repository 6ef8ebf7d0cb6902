"""A rectangle of captured factors, responses x tokens: what scoring computes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from archer.influence.factors import MicroBatch
from archer.influence.modules import TracedModule
from archer.influence.transfer import send

# Elements of the largest temporary while scoring; memory stays near this whatever the number of tokens.
CHUNK_ELEMENTS = 1 << 24
CUDA_CHUNK_ELEMENTS = 1 << 26  # a GPU is idle between small pieces


def chunk_elements(device: torch.device) -> int:
    """The largest temporary on a device."""
    return CUDA_CHUNK_ELEMENTS if device.type == "cuda" else CHUNK_ELEMENTS


@dataclass(frozen=True)
class Grid:
    """A micro-batch that is b rows of one width with a response in each: a block of it needs no copy."""

    width: int
    column: int  # where the block's l columns begin


@dataclass(frozen=True, eq=False)
class Block:
    """Some responses of a bundle within one micro-batch: b responses x l columns.

    Attributes:
        batch: where the factors are.
        responses: b numbers, which responses of the bundle these are.
        first: b numbers, the column of each response's first token; the others follow.
        lengths: b numbers, how many tokens of each response there are.
        width: l.
        members: the same as `responses`, int64 [b] on the computing device.
        place: where the block lies in the micro-batch, as a grid or as int64 [b, l] on the computing device;
            outside a response, any position in a grid, otherwise one of its own.
        dtype: what is computed in.
    """

    batch: MicroBatch
    responses: tuple[int, ...]
    first: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int
    members: Tensor
    place: Grid | Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(b, l)."""
        return len(self.responses), self.width

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""
        return self.members.device

    @property
    def padded(self) -> bool:
        """Whether some column lies outside some response."""
        return min(self.lengths) < self.width

    @cached_property
    def mask(self) -> Tensor:
        """bool [b, l], False outside the response."""
        ends = [first + length for first, length in zip(self.first, self.lengths, strict=True)]
        begin, end = send(torch.tensor([self.first, ends]).unsqueeze(2), self.device)
        columns = torch.arange(self.width, device=self.device)
        return (columns >= begin) & (columns < end)

    @cached_property
    def scale(self) -> Tensor | None:
        """[b, l] the token's multiple of u, 0 outside the response; None when it is 1 everywhere."""
        if self.batch.scale is None:
            return None
        scale = self._take([self.batch.scale.unsqueeze(1)]).to(self.dtype).view(self.shape)
        return scale.masked_fill(~self.mask, 0.0) if self.padded else scale

    def lines(self, modules: Sequence[TracedModule]) -> tuple[Tensor, Tensor]:
        """(u [m, b, l, k_out], v [m, b, l, k_in]) of m modules of one shape, exactly as they were stored.

        Unscaled, perhaps with columns of zeros at the end; outside a response, the line at its `place`.
        """
        u = self._take([self.batch.u[traced.name] for traced in modules])
        return u, self._take([self.batch.v[traced.name] for traced in modules])

    def inside(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(u, v) of the block, [..., b, l, k], so that u (x) v is 0 outside responses.

        Other responses may lie in a grid's rows, and 0 times what is not finite in them would not be 0.
        """
        if not self.padded:
            return u, v
        outside = ~self.mask.unsqueeze(-1)
        in_grid = isinstance(self.place, Grid)
        return u.masked_fill(outside, 0.0), v.masked_fill(outside, 0.0) if in_grid else v

    def weighted(self, traced: TracedModule) -> tuple[Tensor, Tensor]:
        """(u [b, l, k_out] with all scales applied, v [b, l, k_in]); u (x) v is 0 outside responses."""
        (u,), (v,) = self.lines([traced])
        u, v = self.inside(u[..., : traced.project_out.k], v[..., : traced.project_in.k])
        u = u.to(self.dtype) * traced.scale
        return u if self.scale is None else u * self.scale.unsqueeze(-1), v.to(self.dtype)

    def chunks(self, traced: TracedModule) -> Iterator[tuple[slice, Tensor]]:
        """Explicit position gradients g = u (x) v, [b, chunk, D], each with the columns it covers."""
        u, v = self.weighted(traced)
        step = max(1, chunk_elements(u.device) // (u.shape[0] * traced.dim))
        for begin in range(0, u.shape[1], step):
            part = slice(begin, begin + step)
            yield part, (u[:, part, :, None] * v[:, part, None, :]).flatten(2)

    def _take(self, columns: list[Tensor]) -> Tensor:
        """This block's lines of each [n, k], as [m, b, l, k] where scores are computed."""
        shape = (len(columns), *self.shape, -1)
        if isinstance(self.place, Tensor) and 2 * self.place.numel() < len(columns[0]):
            # Copying what other blocks need would cost more than a call for each module.
            here = self.place.flatten().to(columns[0].device)
            return torch.stack([c.index_select(0, here) for c in columns]).to(self.device).view(shape)
        if columns[0].device != self.device:
            # A GPU waits for its own copies, a program does not.
            columns = [c.to(self.device, non_blocking=self.device.type == "cuda") for c in columns]
        stacked = torch.stack(columns) if len(columns) > 1 else columns[0].unsqueeze(0)
        if isinstance(self.place, Tensor):
            return stacked.index_select(1, self.place.flatten()).view(shape)
        rows = stacked.reshape(len(columns), len(self.responses), self.place.width, -1)
        return rows.narrow(2, self.place.column, self.width)
