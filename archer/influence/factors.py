"""The captured token factors: what is kept between the backward and the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from archer.influence.modules import TracedModule

# Elements of the largest temporary while scoring; memory stays near this whatever the number of tokens.
CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The factors of one capture, n tokens in layout order.

    Attributes:
        row: int64 [n] on the CPU, response row of each token.
        token: int64 [n] on the CPU, index within the response.
        u: per module name [n, k_out], signs of P_out times the output gradient.
        v: per module name [n, k_in], signs of P_in times the input; modules with one input share one tensor.
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
        return dict(zip(rows.tolist(), order.split(counts.tolist()), strict=True))


@dataclass(frozen=True, eq=False)
class Block:
    """Some responses of a bundle within one micro-batch, padded to the longest: b responses x l tokens.

    Attributes:
        batch: where the factors are.
        members: int64 [b], which responses of the bundle these are.
        index: int64 [b, l] into the micro-batch, on the factors' device.
        weight: [b, l] the token's multiple of u, 0 where padded, on the computing device.
        mask: bool [b, l], False where padded, on the computing device.
    """

    batch: MicroBatch
    members: Tensor
    index: Tensor
    weight: Tensor
    mask: Tensor

    def load_u(self, traced: TracedModule) -> Tensor:
        """u with all scales applied, [b, l, k_out]; 0 where padded."""
        return self._take(self.batch.u[traced.name]).mul_((self.weight * traced.scale).unsqueeze(-1))

    def load_v(self, traced: TracedModule) -> Tensor:
        """v, [b, l, k_in]; anything where padded."""
        return self._take(self.batch.v[traced.name])

    def chunks(self, traced: TracedModule) -> Iterator[tuple[slice, Tensor]]:
        """Explicit position gradients g = u (x) v, [b, chunk, D], each with the columns it covers."""
        u, v = self.load_u(traced), self.load_v(traced)
        step = max(1, CHUNK_ELEMENTS // (u.shape[0] * traced.dim))
        for begin in range(0, u.shape[1], step):
            part = slice(begin, begin + step)
            yield part, (u[:, part, :, None] * v[:, part, None, :]).flatten(2)

    def _take(self, factors: Tensor) -> Tensor:
        rows = factors.index_select(0, self.index.flatten())
        return rows.to(self.weight.device, self.weight.dtype).view(*self.index.shape, -1)


class BlockReader:
    """Loads blocks for the two passes of scoring; few tokens are kept from the first pass for the second."""

    def __init__(self, blocks: list[Block], modules: list[TracedModule]) -> None:
        width = sum(traced.project_in.k + traced.project_out.k for traced in modules)
        self._keeps = width * sum(block.mask.numel() for block in blocks) <= CHUNK_ELEMENTS
        self._kept: dict[tuple[int, int], Tensor] = {}

    def read(self, block: Block, traced: TracedModule) -> tuple[Tensor, Tensor]:
        """(u [b, l, k_out], v [b, l, k_in]) of a block."""
        u = self._once(block, block.batch.u[traced.name], lambda: block.load_u(traced))
        v = self._once(block, block.batch.v[traced.name], lambda: block.load_v(traced))
        return u, v

    def _once(self, block: Block, stored: Tensor, load: Callable[[], Tensor]) -> Tensor:
        key = (id(block), id(stored))  # an input that modules share is one tensor
        if key in self._kept:
            return self._kept[key]
        loaded = load()
        if self._keeps:
            self._kept[key] = loaded
        return loaded


def blocks_of(
    batches: list[MicroBatch],
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
    blocks = []
    for batch in batches:
        present = [
            (member, batch.positions[row]) for member, row in enumerate(rows) if row in batch.positions
        ]
        # Neighbours of similar length waste little padding.
        present.sort(key=lambda entry: len(entry[1]))
        while present:
            longest = len(present[-1][1])
            fit = max(1, CHUNK_ELEMENTS // max(longest * width, dim))
            blocks.append(_block(batch, present[-fit:], device, dtype))
            present = present[:-fit]
    return blocks


def _block(
    batch: MicroBatch, entries: list[tuple[int, Tensor]], device: torch.device, dtype: torch.dtype
) -> Block:
    index = torch.nn.utils.rnn.pad_sequence([positions for _, positions in entries], True, padding_value=-1)
    mask = index >= 0
    index = index.clamp(min=0)
    weight = mask.to(dtype) if batch.scale is None else mask * batch.scale.to("cpu", dtype)[index]
    home = next(iter(batch.u.values())).device
    members = torch.tensor([member for member, _ in entries])
    return Block(batch, members.to(device), index.to(home), weight.to(device), mask.to(device))
