"""Rectangles of captured factors, responses x tokens: what scoring computes on, and how they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from archer.influence.factors import TokenFactors, send
from archer.influence.modules import TracedModule

# Elements of the largest temporary while scoring; memory stays near this whatever the number of tokens.
CHUNK_ELEMENTS = 1 << 24
CUDA_CHUNK_ELEMENTS = 1 << 26  # a GPU is idle between small pieces


def chunk_elements(device: torch.device) -> int:
    """The largest temporary on a device."""
    return CUDA_CHUNK_ELEMENTS if device.type == "cuda" else CHUNK_ELEMENTS


@dataclass(frozen=True)
class RowGrid:
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

    batch: TokenFactors
    responses: tuple[int, ...]
    first: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int
    members: Tensor
    place: RowGrid | Tensor
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
        if modules[0].fused is not None:
            return self._expert_lines(modules, 0), self._expert_lines(modules, 1)
        u = self._take([self.batch.u[traced.name] for traced in modules])
        return u, self._take([self.batch.v[traced.name] for traced in modules])

    def _expert_lines(self, modules: Sequence[TracedModule], side: int) -> Tensor:
        """The same of experts: those of one fused weight are spread out over all positions together."""
        columns: list[Tensor] = []
        for name, alike in groupby(modules, key=lambda traced: traced.fused and traced.fused.name):
            assert name is not None
            factors = self.batch.experts[name][side]
            columns += factors.dense([traced.expert for traced in alike], self.device)
        return self._take(columns)

    def inside(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(u, v) of the block, [..., b, l, k], so that u (x) v is 0 outside responses.

        Other responses may lie in a grid's rows, and 0 times what is not finite in them would not be 0.
        """
        if not self.padded:
            return u, v
        outside = ~self.mask.unsqueeze(-1)
        in_grid = isinstance(self.place, RowGrid)
        return u.masked_fill(outside, 0.0), v.masked_fill(outside, 0.0) if in_grid else v

    def weighted(self, traced: TracedModule) -> tuple[Tensor, Tensor]:
        """(u [b, l, k_out] with all scales applied, v [b, l, k_in]); u (x) v is 0 outside responses."""
        (u,), (v,) = self.lines([traced])
        u, v = self.inside(u[..., : traced.k_out], v[..., : traced.k_in])
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


class _Entry(NamedTuple):
    """A response of a bundle in a micro-batch."""

    member: int
    row: int
    length: int


def make_blocks(
    batches: Sequence[TokenFactors],
    rows: list[int],
    modules: list[TracedModule],
    device: torch.device,
    dtype: torch.dtype,
) -> list[Block]:
    """The captured tokens of a bundle's response rows as blocks small enough to load and sum.

    Rows captured elsewhere are simply absent from the blocks. Scores are computed on `device` in `dtype`.
    """
    width = max(traced.k_in + traced.k_out for traced in modules)
    dim = max(traced.dim for traced in modules)
    room = chunk_elements(device)
    blocks = []
    for batch in batches:
        present = [
            _Entry(member, row, batch.counts[row]) for member, row in enumerate(rows) if row in batch.counts
        ]
        grid = _grid(batch, present)
        if grid is not None and len(present) * max(grid.width * width, dim) <= room:
            assert batch.runs is not None
            starts = range(grid.column, len(batch.row), grid.width)  # of the block's columns in each row
            first = [batch.runs[entry.row][0] - start for entry, start in zip(present, starts, strict=True)]
            columns = max(column + entry.length for column, entry in zip(first, present, strict=True))
            blocks.append(_block(batch, present, first, columns, grid, device, dtype))
            continue
        # Neighbours of similar length waste little padding.
        present.sort(key=lambda entry: entry.length)
        while present:
            fit = max(1, room // max(present[-1].length * width, dim))
            blocks.append(_gathered_block(batch, present[-fit:], device, dtype))
            present = present[:-fit]
    return blocks


def _grid(batch: TokenFactors, entries: list[_Entry]) -> RowGrid | None:
    """The grid whose rows hold one of the entries each, all of them in order of position (sorted here).

    None where there is none, or where most of it would belong to others.
    """
    size, rows, runs = len(batch.row), len(entries), batch.runs
    if rows == 0 or size % rows or runs is None or 2 * sum(entry.length for entry in entries) < size:
        return None
    entries.sort(key=lambda entry: runs[entry.row])
    width = size // rows
    columns = [runs[entry.row][0] - number * width for number, entry in enumerate(entries)]
    for column, entry in zip(columns, entries, strict=True):
        if column < 0 or column + entry.length > width:
            return None
    return RowGrid(width, min(columns))


def _gathered_block(
    batch: TokenFactors, entries: list[_Entry], device: torch.device, dtype: torch.dtype
) -> Block:
    positions = [batch.positions[entry.row] for entry in entries]
    index = send(torch.nn.utils.rnn.pad_sequence(positions, True, padding_value=-1), device)
    if entries[0].length != entries[-1].length:  # entries come sorted by length
        index = torch.where(index >= 0, index, index[:, :1])
    return _block(batch, entries, [0] * len(entries), index.shape[1], index, device, dtype)


def _block(
    batch: TokenFactors,
    entries: list[_Entry],
    first: list[int],
    width: int,
    place: RowGrid | Tensor,
    device: torch.device,
    dtype: torch.dtype,
) -> Block:
    responses = tuple(entry.member for entry in entries)
    lengths = tuple(entry.length for entry in entries)
    members = send(torch.tensor(responses), device)
    return Block(batch, responses, tuple(first), lengths, width, members, place, dtype)
