"""Traced modules of one projected shape, computed on together.

A model has hundreds of traced modules but a handful of shapes, and one module's share of the scoring is too
small to keep a GPU busy between two launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.influence.blocks import Block, chunk_elements
from archer.influence.modules import TracedModule


@dataclass(frozen=True, eq=False)
class ModuleStack:
    """m modules that share k_in and k_out."""

    modules: tuple[TracedModule, ...]

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def k_in(self) -> int:
        """Length of v."""
        return self.modules[0].project_in.k

    @property
    def k_out(self) -> int:
        """Length of u."""
        return self.modules[0].project_out.k

    @property
    def dim(self) -> int:
        """D of each module."""
        return self.modules[0].dim


def stacks_of(modules: Sequence[TracedModule], blocks: Sequence[Block], most: int = 0) -> list[ModuleStack]:
    """All modules by shape, in stacks whose loaded factors stay within the chunk size.

    The order of the modules depends on their shapes alone, not on the blocks: every rank has the same.

    Args:
        modules: what is traced.
        blocks: what will be loaded, block by block.
        most: at most so many modules in a stack; 0: as memory allows.
    """
    by_shape: dict[tuple[int, int], list[TracedModule]] = {}
    for traced in modules:
        by_shape.setdefault((traced.project_in.k, traced.project_out.k), []).append(traced)
    tokens = max((block.mask.numel() for block in blocks), default=1)
    stacks = []
    for (k_in, k_out), alike in by_shape.items():
        room = chunk_elements(blocks[0].mask.device) // (tokens * (k_in + k_out)) if blocks else len(alike)
        size = max(1, min(room, most or len(alike)))
        stacks += [ModuleStack(tuple(alike[i : i + size])) for i in range(0, len(alike), size)]
    return stacks


class BlockReader:
    """Loads blocks for the two passes of scoring; few tokens are kept from the first pass for the second."""

    def __init__(self, blocks: Sequence[Block], modules: Sequence[TracedModule]) -> None:
        width = sum(traced.project_in.k + traced.project_out.k for traced in modules)
        tokens = sum(block.mask.numel() for block in blocks)
        self._keeps = bool(blocks) and width * tokens <= chunk_elements(blocks[0].mask.device)
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def read(self, block: Block, stack: ModuleStack) -> tuple[Tensor, Tensor]:
        """(u [m, b, l, k_out], v [m, b, l, k_in]) as stored: see `Block.lines`."""
        key = (id(block), id(stack))
        if key not in self._kept:
            loaded = block.lines(stack.modules)
            if not self._keeps:
                return loaded
            self._kept[key] = loaded
        return self._kept[key]


def response_sums(
    stacks: Sequence[ModuleStack], blocks: Sequence[Block], members: int, reader: BlockReader, like: Tensor
) -> Tensor:
    """sum_t u_t (x) v_t of every response, all stacks in one flat tensor that ranks can add up.

    Args:
        stacks: the modules.
        blocks: the tokens captured here.
        members: responses of the bundle.
        reader: loads the blocks.
        like: device and dtype of the result.
    """
    total = sum(len(stack) * stack.dim for stack in stacks)
    sums = torch.zeros(members * total, device=like.device, dtype=like.dtype)
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
    """sum_t w_t u_t (x) v_t of each response of the block, w_t its token weights and the modules' scale.

    Products of bfloat16 numbers are exact in float32, where tensor cores add them up: only weights other than
    0 and 1 need wider factors.
    """
    dtype = block.weight.dtype
    u, v = block.inside(u, v)
    if block.batch.scale is not None:
        u = u.to(dtype) * block.weight.unsqueeze(-1)
    if u.dtype == torch.bfloat16 and u.is_cuda and dtype == torch.float32:
        sums = torch.bmm(u.flatten(0, 1).mT, v.flatten(0, 1), out_dtype=dtype)
    else:
        sums = torch.bmm(u.to(dtype).flatten(0, 1).mT, v.to(dtype).flatten(0, 1))
    sums = sums[:, : stack.k_out, : stack.k_in].mul_(stack.modules[0].scale)
    return sums.reshape(len(stack), -1, stack.dim)


def views(flat: Tensor, stacks: Sequence[ModuleStack], members: int) -> list[Tensor]:
    """Each stack's part of a flat tensor, [m, members, D]."""
    parts = flat.split([len(stack) * members * stack.dim for stack in stacks])
    return [part.view(len(stack), members, stack.dim) for stack, part in zip(stacks, parts, strict=True)]
