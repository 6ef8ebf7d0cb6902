"""The captured token factors: what is kept between the backward and the scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from archer.influence.modules import TracedModule
from archer.influence.transfer import send

# Elements of the largest temporary while scoring; memory stays near this whatever the number of tokens.
CHUNK_ELEMENTS = 1 << 24
CUDA_CHUNK_ELEMENTS = 1 << 26  # a GPU is idle between small pieces


def chunk_elements(device: torch.device) -> int:
    """The largest temporary on a device."""
    return CUDA_CHUNK_ELEMENTS if device.type == "cuda" else CHUNK_ELEMENTS


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


@dataclass(frozen=True, eq=False)
class Block:
    """Some responses of a bundle within one micro-batch, padded to the longest: b responses x l tokens.

    Attributes:
        batch: where the factors are.
        responses: b numbers, which responses of the bundle these are.
        members: the same, int64 [b] on the computing device.
        index: int64 [b, l] into the micro-batch, on the computing device; the response's first where padded.
        weight: [b, l] the token's multiple of u, 0 where padded, on the computing device.
        mask: bool [b, l], False where padded, on the computing device.
        padded: whether it is False anywhere.
    """

    batch: MicroBatch
    responses: tuple[int, ...]
    members: Tensor
    index: Tensor
    weight: Tensor
    mask: Tensor
    padded: bool

    def lines(self, modules: Sequence[TracedModule]) -> tuple[Tensor, Tensor]:
        """(u [m, b, l, k_out], v [m, b, l, k_in]) of m modules of one shape, exactly as they were stored.

        Unweighted, perhaps with columns of zeros at the end; where padded, the response's first line.
        """
        u = self._take([self.batch.u[traced.name] for traced in modules])
        return u, self._take([self.batch.v[traced.name] for traced in modules])

    def weighted(self, traced: TracedModule) -> tuple[Tensor, Tensor]:
        """(u [b, l, k_out] with all scales applied, 0 where padded; v [b, l, k_in]) to compute with."""
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
        index, device = self.index.flatten(), self.weight.device
        if 2 * len(index) >= len(factors[0]):
            stacked = torch.stack([f.to(device, non_blocking=True) for f in factors])
            lines = stacked.index_select(1, index)
        else:  # copying what other blocks need would cost more than a call for each module
            here = index.to(factors[0].device)
            lines = torch.stack([f.index_select(0, here) for f in factors]).to(device)
        return lines.view(len(factors), *self.index.shape, -1)


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
    blocks = []
    for batch in batches:
        present = [
            (member, batch.positions[row]) for member, row in enumerate(rows) if row in batch.positions
        ]
        # Neighbours of similar length waste little padding.
        present.sort(key=lambda entry: len(entry[1]))
        while present:
            longest = len(present[-1][1])
            fit = max(1, chunk_elements(device) // max(longest * width, dim))
            blocks.append(_block(batch, present[-fit:], device, dtype))
            present = present[:-fit]
    return blocks


def _block(
    batch: MicroBatch, entries: list[tuple[int, Tensor]], device: torch.device, dtype: torch.dtype
) -> Block:
    index = torch.nn.utils.rnn.pad_sequence([positions for _, positions in entries], True, padding_value=-1)
    padded = len(entries[0][1]) != len(entries[-1][1])  # entries come sorted by length
    index = send(index, device)
    mask = index >= 0
    index = torch.where(mask, index, index[:, :1]) if padded else index
    weight = mask.to(dtype) if batch.scale is None else mask * batch.scale.to(device, dtype)[index]
    responses = tuple(member for member, _ in entries)
    return Block(batch, responses, send(torch.tensor(responses), device), index, weight, mask, padded)
