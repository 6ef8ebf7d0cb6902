"""Captured factors as rectangles, responses x tokens: what scoring computes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        index: int64 [b, l] into the micro-batch, on the computing device; outside a response, some position
            of its own row.
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

        Unweighted, perhaps with columns of zeros at the end; outside a response, some line of its own row.
        """
        u = self._take([self.batch.u[traced.name] for traced in modules])
        return u, self._take([self.batch.v[traced.name] for traced in modules])

    def weighted(self, traced: TracedModule) -> tuple[Tensor, Tensor]:
        """(u [b, l, k_out] with all scales applied, 0 outside responses; v [b, l, k_in]) to compute with."""
        (u,), (v,) = self.lines([traced])
        u, v = u[..., : traced.project_out.k], v[..., : traced.project_in.k]
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
        moved = [f.to(device, non_blocking=True) for f in factors]
        stacked = torch.stack(moved) if len(moved) > 1 else moved[0].unsqueeze(0)
        if self.grid is None:
            return stacked.index_select(1, self.index.flatten()).view(shape)
        rows = stacked.reshape(len(factors), len(self.index), self.grid.width, -1)
        return rows.narrow(2, self.grid.column, self.index.shape[1])


@dataclass(frozen=True, eq=False)
class _Entry:
    """A response of a bundle in a micro-batch."""

    member: int
    positions: Tensor
    begin: int  # position of the first token


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
            _Entry(member, batch.positions[row], int(batch.positions[row][0]))
            for member, row in enumerate(rows)
            if row in batch.positions
        ]
        grid = _grid(batch, present)
        if grid is not None and len(present) * max(grid.width * width, dim) <= room:
            blocks.append(_grid_block(batch, present, grid, device, dtype))
            continue
        # Neighbours of similar length waste little padding.
        present.sort(key=lambda entry: len(entry.positions))
        while present:
            longest = len(present[-1].positions)
            fit = max(1, room // max(longest * width, dim))
            blocks.append(_gathered_block(batch, present[-fit:], device, dtype))
            present = present[:-fit]
    return blocks


def _grid(batch: MicroBatch, entries: list[_Entry]) -> Grid | None:
    """The grid whose rows hold one of the entries each, all of them in order of position (sorted here)."""
    size, rows = len(batch.row), len(entries)
    if rows == 0 or size % rows or batch.begins is None:
        return None
    entries.sort(key=lambda entry: entry.begin)
    width = size // rows
    columns = [entry.begin - number * width for number, entry in enumerate(entries)]
    inside = (
        column >= 0 and column + len(entry.positions) <= width
        for column, entry in zip(columns, entries, strict=True)
    )
    return Grid(width, min(columns)) if all(inside) else None


def _grid_block(
    batch: MicroBatch, entries: list[_Entry], grid: Grid, device: torch.device, dtype: torch.dtype
) -> Block:
    starts = range(grid.column, len(batch.row), grid.width)  # of the block's columns in each row
    first = tuple(entry.begin - start for entry, start in zip(entries, starts, strict=True))
    lengths = [len(entry.positions) for entry in entries]
    columns = torch.arange(max(map(sum, zip(first, lengths, strict=True))))
    index = send(torch.tensor(starts)[:, None] + columns, device)
    begin, length = torch.tensor(first)[:, None], torch.tensor(lengths)[:, None]
    mask = (columns >= begin) & (columns < begin + length)
    return _block(batch, entries, first, index, send(mask, device), not bool(mask.all()), dtype, grid)


def _gathered_block(
    batch: MicroBatch, entries: list[_Entry], device: torch.device, dtype: torch.dtype
) -> Block:
    index = torch.nn.utils.rnn.pad_sequence([entry.positions for entry in entries], True, padding_value=-1)
    padded = len(entries[0].positions) != len(entries[-1].positions)  # entries come sorted by length
    index = send(index, device)
    mask = index >= 0
    index = torch.where(mask, index, index[:, :1]) if padded else index
    return _block(batch, entries, (0,) * len(entries), index, mask, padded, dtype, None)


def _block(
    batch: MicroBatch,
    entries: list[_Entry],
    first: tuple[int, ...],
    index: Tensor,
    mask: Tensor,
    padded: bool,
    dtype: torch.dtype,
    grid: Grid | None,
) -> Block:
    weight = mask.to(dtype)
    if batch.scale is not None:
        weight = torch.where(mask, batch.scale.to(mask.device, dtype)[index], weight)
    responses = tuple(entry.member for entry in entries)
    members = send(torch.tensor(responses), mask.device)
    return Block(batch, responses, first, members, index, weight, mask, padded, grid)
