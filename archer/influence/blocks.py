"""Captured factors as rectangles, responses x tokens: what scoring computes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
        members: the same as `responses`, int64 [b] on the computing device.
        index: int64 [b, l] into the micro-batch, on the computing device; outside a response, any position in
            a grid, otherwise one of its own.
        weight: [b, l] the token's multiple of u, 0 outside the response, on the computing device.
        mask: bool [b, l], False outside the response, on the computing device.
        padded: whether it is False anywhere.
        grid: how to see the block without copying, where it can be.
    """

    batch: MicroBatch
    responses: tuple[int, ...]
    first: tuple[int, ...]
    members: Tensor
    index: Tensor
    weight: Tensor
    mask: Tensor
    padded: bool
    grid: Grid | None

    def lines(self, modules: Sequence[TracedModule]) -> tuple[Tensor, Tensor]:
        """(u [m, b, l, k_out], v [m, b, l, k_in]) of m modules of one shape, exactly as they were stored.

        Unweighted, perhaps with columns of zeros at the end; outside a response, the line at `index`.
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
        return u.masked_fill(outside, 0.0), v if self.grid is None else v.masked_fill(outside, 0.0)

    def weighted(self, traced: TracedModule) -> tuple[Tensor, Tensor]:
        """(u [b, l, k_out] with all scales applied, v [b, l, k_in]); u (x) v is 0 outside responses."""
        (u,), (v,) = self.lines([traced])
        u, v = self.inside(u[..., : traced.project_out.k], v[..., : traced.project_in.k])
        weight = (self.weight * traced.scale).unsqueeze(-1)
        return u.to(weight.dtype) * weight, v.to(weight.dtype)

    def chunks(self, traced: TracedModule) -> Iterator[tuple[slice, Tensor]]:
        """Explicit position gradients g = u (x) v, [b, chunk, D], each with the columns it covers."""
        u, v = self.weighted(traced)
        step = max(1, chunk_elements(u.device) // (u.shape[0] * traced.dim))
        for begin in range(0, u.shape[1], step):
            part = slice(begin, begin + step)
            yield part, (u[:, part, :, None] * v[:, part, None, :]).flatten(2)

    def _take(self, factors: list[Tensor]) -> Tensor:
        """This block's lines of each [n, k], as [m, b, l, k] where scores are computed."""
        device = self.weight.device
        shape = (len(factors), *self.index.shape, -1)
        if self.grid is None and 2 * self.index.numel() < len(factors[0]):
            # Copying what other blocks need would cost more than a call for each module.
            here = self.index.flatten().to(factors[0].device)
            return torch.stack([f.index_select(0, here) for f in factors]).to(device).view(shape)
        if factors[0].device != device:
            factors = [f.to(device, non_blocking=True) for f in factors]
        stacked = torch.stack(factors) if len(factors) > 1 else factors[0].unsqueeze(0)
        if self.grid is None:
            return stacked.index_select(1, self.index.flatten()).view(shape)
        rows = stacked.reshape(len(factors), len(self.index), self.grid.width, -1)
        return rows.narrow(2, self.grid.column, self.index.shape[1])


class _Entry(NamedTuple):
    """A response of a bundle in a micro-batch."""

    member: int
    row: int
    length: int


def blocks_of(
    batches: Sequence[MicroBatch],
    rows: list[int],
    modules: list[TracedModule],
    device: torch.device,
    dtype: torch.dtype,
) -> list[Block]:
    """The local tokens of some response rows as blocks small enough to load.

    Args:
        batches: all captured micro-batches.
        rows: the bundle's response rows; those captured elsewhere are simply absent from the blocks.
        modules: what will be loaded and summed block by block.
        device: where scores are computed.
        dtype: what they are computed in.
    """
    width = max(traced.project_in.k + traced.project_out.k for traced in modules)
    dim = max(traced.dim for traced in modules)
    room = chunk_elements(device)
    blocks = []
    for batch in batches:
        present = [
            _Entry(member, row, batch.counts[row]) for member, row in enumerate(rows) if row in batch.counts
        ]
        grid = _grid(batch, present)
        if grid is not None and len(present) * max(grid.width * width, dim) <= room:
            blocks.append(_grid_block(batch, present, grid, device, dtype))
            continue
        # Neighbours of similar length waste little padding.
        present.sort(key=lambda entry: entry.length)
        while present:
            fit = max(1, room // max(present[-1].length * width, dim))
            blocks.append(_gathered_block(batch, present[-fit:], device, dtype))
            present = present[:-fit]
    return blocks


def _grid(batch: MicroBatch, entries: list[_Entry]) -> Grid | None:
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
    return Grid(width, min(columns))


def _grid_block(
    batch: MicroBatch, entries: list[_Entry], grid: Grid, device: torch.device, dtype: torch.dtype
) -> Block:
    assert batch.runs is not None
    starts = range(grid.column, len(batch.row), grid.width)  # of the block's columns in each row
    first = [batch.runs[entry.row][0] - start for entry, start in zip(entries, starts, strict=True)]
    end = [column + entry.length for column, entry in zip(first, entries, strict=True)]
    responses = [entry.member for entry in entries]
    # A few numbers are sent, the rest is made where it is needed.
    members, start, begin, stop = send(torch.tensor([responses, list(starts), first, end]), device)
    columns = torch.arange(max(end), device=device)
    mask = (columns >= begin[:, None]) & (columns < stop[:, None])
    padded = any(first) or min(end) < max(end)
    index = start[:, None] + columns
    weight = _weight(batch, index, mask, dtype)
    return Block(batch, tuple(responses), tuple(first), members, index, weight, mask, padded, grid)


def _gathered_block(
    batch: MicroBatch, entries: list[_Entry], device: torch.device, dtype: torch.dtype
) -> Block:
    positions = [batch.positions[entry.row] for entry in entries]
    index = torch.nn.utils.rnn.pad_sequence(positions, True, padding_value=-1)
    padded = entries[0].length != entries[-1].length  # entries come sorted by length
    index = send(index, device)
    mask = index >= 0
    index = torch.where(mask, index, index[:, :1]) if padded else index
    responses = tuple(entry.member for entry in entries)
    members = send(torch.tensor(responses), device)
    weight = _weight(batch, index, mask, dtype)
    return Block(batch, responses, (0,) * len(entries), members, index, weight, mask, padded, None)


def _weight(batch: MicroBatch, index: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    if batch.scale is None:
        return mask.to(dtype)
    scale = batch.scale.to(mask.device, dtype)[index]
    return torch.where(mask, scale, torch.zeros_like(scale))
