"""Captured factors divided into rectangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from archer.influence.block import Block, Grid, chunk_elements
from archer.influence.factors import MicroBatch
from archer.influence.modules import TracedModule
from archer.influence.transfer import send


class _Entry(NamedTuple):
    """A response of a bundle in a micro-batch."""

    member: int
    row: int
    length: int


def make_blocks(
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
    width = max(column + entry.length for column, entry in zip(first, entries, strict=True))
    return _block(batch, entries, first, width, grid, device, dtype)


def _gathered_block(
    batch: MicroBatch, entries: list[_Entry], device: torch.device, dtype: torch.dtype
) -> Block:
    positions = [batch.positions[entry.row] for entry in entries]
    index = send(torch.nn.utils.rnn.pad_sequence(positions, True, padding_value=-1), device)
    if entries[0].length != entries[-1].length:  # entries come sorted by length
        index = torch.where(index >= 0, index, index[:, :1])
    return _block(batch, entries, [0] * len(entries), index.shape[1], index, device, dtype)


def _block(
    batch: MicroBatch,
    entries: list[_Entry],
    first: list[int],
    width: int,
    place: Grid | Tensor,
    device: torch.device,
    dtype: torch.dtype,
) -> Block:
    responses = tuple(entry.member for entry in entries)
    lengths = tuple(entry.length for entry in entries)
    members = send(torch.tensor(responses), device)
    return Block(batch, responses, tuple(first), lengths, width, members, place, dtype)
