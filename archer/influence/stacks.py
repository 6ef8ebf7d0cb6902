"""Traced modules of one projected shape, k_in and k_out, computed on together.

A model has hundreds of traced modules but a handful of shapes, and one module's share of the scoring is too
small to keep a GPU busy between two launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from archer.influence.block import Block, chunk_elements
from archer.influence.modules import TracedModule

ModuleStack = tuple[TracedModule, ...]
"""m modules of one shape: k_in, k_out, D and the scale of the first are those of all."""


def stacks_of(modules: Sequence[TracedModule], blocks: Sequence[Block], most: int = 0) -> list[ModuleStack]:
    """All modules by shape, in stacks whose loaded factors stay within the chunk size.

    The order of the modules depends on their shapes alone, not on the blocks: every rank has the same. A
    stack holds at most `most` modules; 0: as many as memory allows.
    """
    by_shape: dict[tuple[int, int, bool], list[TracedModule]] = {}
    for traced in modules:  # experts apart: their factors are stored in another way
        by_shape.setdefault((traced.k_in, traced.k_out, traced.fused is not None), []).append(traced)
    tokens = max((math.prod(block.shape) for block in blocks), default=1)
    stacks: list[ModuleStack] = []
    for (k_in, k_out, _), alike in by_shape.items():
        room = chunk_elements(blocks[0].device) // (tokens * (k_in + k_out)) if blocks else len(alike)
        size = max(1, min(room, most or len(alike)))
        stacks += [tuple(alike[i : i + size]) for i in range(0, len(alike), size)]
    return stacks


class BlockReader:
    """Loads blocks for the two passes of scoring; few tokens are kept from the first pass for the second."""

    def __init__(self, blocks: Sequence[Block], modules: Sequence[TracedModule]) -> None:
        width = sum(traced.k_in + traced.k_out for traced in modules)
        tokens = sum(math.prod(block.shape) for block in blocks)
        self._keeps = bool(blocks) and width * tokens <= chunk_elements(blocks[0].device)
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def read(self, block: Block, stack: ModuleStack) -> tuple[Tensor, Tensor]:
        """(u [m, b, l, k_out], v [m, b, l, k_in]) as stored: see `Block.lines`."""
        key = (id(block), id(stack))
        if key not in self._kept:
            loaded = block.lines(stack)
            if not self._keeps:
                return loaded
            self._kept[key] = loaded
        return self._kept[key]


def response_sums(
    stacks: Sequence[ModuleStack],
    blocks: Sequence[Block],
    members: int,
    reader: BlockReader,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """sum_t u_t (x) v_t of each of the bundle's `members` responses, over the tokens captured here.

    All stacks are in one flat tensor, [sum of m * members * D], that ranks can add up.
    """
    total = sum(len(stack) * stack[0].dim for stack in stacks)
    sums = torch.zeros(members * total, device=device, dtype=dtype)
    for stack, part in zip(stacks, views(sums, stacks, members), strict=True):
        for block in blocks:
            part.index_add_(1, block.members, block_sums(stack, block, *reader.read(block, stack)))
    return sums


def block_sums(
    stack: ModuleStack,
    block: Block,
    u: Tensor,  # [m, b, l, k_out] as stored
    v: Tensor,  # [m, b, l, k_in] as stored
) -> Tensor:  # [m, b, D]
    """sum_t w_t u_t (x) v_t of each response of the block, w_t the token's scale and the modules'.

    Products of bfloat16 numbers are exact in float32, where tensor cores add them up: only scales of tokens
    need wider factors.
    """
    dtype = block.dtype
    u, v = block.inside(u, v)
    if block.scale is not None:
        u = u.to(dtype) * block.scale.unsqueeze(-1)
    if u.dtype == torch.bfloat16 and u.is_cuda and dtype == torch.float32:
        sums = torch.bmm(u.flatten(0, 1).mT, v.flatten(0, 1), out_dtype=dtype)
    else:
        sums = torch.bmm(u.to(dtype).flatten(0, 1).mT, v.to(dtype).flatten(0, 1))
    shape = stack[0]
    sums = sums[:, : shape.k_out, : shape.k_in].reshape(len(stack), -1, shape.dim)
    return sums if shape.scale == 1.0 else sums.mul_(shape.scale)


def views(flat: Tensor, stacks: Sequence[ModuleStack], members: int) -> list[Tensor]:
    """Each stack's part of a flat tensor, [m, members, D]."""
    parts = flat.split([len(stack) * members * stack[0].dim for stack in stacks])
    return [part.view(len(stack), members, stack[0].dim) for stack, part in zip(stacks, parts, strict=True)]
