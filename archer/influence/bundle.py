"""Groups that are scored together, so that many small ones do not cost a solve each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.influence.block import Block, make_blocks
from archer.influence.config import InfluenceConfig
from archer.influence.distributed import Exchange
from archer.influence.factors import TokenFactors
from archer.influence.groups import Group
from archer.influence.modules import TracedModule
from archer.influence.solve import use_dual

# Elements of the response gradients that are held at once: groups are bundled up to this.
BUNDLE_ELEMENTS = 1 << 25
CUDA_BUNDLE_ELEMENTS = 1 << 27  # half a GiB; every bundle costs a round of launches


@dataclass(frozen=True, eq=False)
class Bundle:
    """Groups of one size R that are scored together, and what a rank knows of them.

    Attributes:
        groups: B of them.
        blocks: the tokens captured here; member b * R + r is response r of group b.
        counts: int64 [ranks, B * R] traced tokens of each response on each rank of the exchange.
        exchange: how ranks add up; groups that lie on one rank have nothing to add up.
    """

    groups: list[Group]
    blocks: list[Block]
    counts: Tensor
    exchange: Exchange

    @property
    def size(self) -> int:
        """R, the responses of each group."""
        return len(self.groups[0].rows)

    @property
    def crosses_ranks(self) -> bool:
        """Whether several ranks hold tokens of these groups."""
        return len(self.counts) > 1

    @property
    def counted_here(self) -> bool:
        """Whether this rank counts the groups: one of those that hold them does."""
        return not self.crosses_ranks or self.exchange.rank == 0


def bundled(
    groups: list[Group], modules: list[TracedModule], config: InfluenceConfig, device: torch.device
) -> list[list[Group]]:
    """Groups of equal size put together as far as memory allows.

    What is not solved together is left as single groups.
    """
    total = sum(traced.dim for traced in modules)
    room = CUDA_BUNDLE_ELEMENTS if device.type == "cuda" else BUNDLE_ELEMENTS
    sizes = {len(group.rows) for group in groups}
    most = {R: room // (R * total) if solved_together(R, modules, config) else 1 for R in sizes}
    bundles: list[list[Group]] = []
    for group in groups:
        R = len(group.rows)
        if bundles and len(bundles[-1][0].rows) == R and len(bundles[-1]) < most[R]:
            bundles[-1].append(group)
        else:
            bundles.append([group])
    return bundles


def solved_together(R: int, modules: list[TracedModule], config: InfluenceConfig) -> bool:
    """Whether groups of R responses, and modules, need no matrix of their own: D x D, T x T, token norms."""
    if config.score_normalization != "none":
        return False
    duals = all(use_dual(config.solver, R, traced.dim) for traced in modules)
    return config.hessian_mode == "identity" or (config.hessian_source == "response" and duals)


def make_bundles(
    groups: list[Group],
    batches: Sequence[TokenFactors],
    modules: list[TracedModule],
    config: InfluenceConfig,
    exchange: Exchange,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[Bundle]:
    """The groups spread over ranks, in the order all ranks share, then those that lie here alone."""
    problem = next(filter(None, (mixed_weights(group, batches) for group in groups)), None)
    exchange.agree(groups, problem)
    counts = token_counts(rows_of(groups), batches, exchange)
    counts_of = dict(zip(groups, counts.split([len(g.rows) for g in groups], dim=1), strict=True))
    holders = {g: counts_of[g].any(dim=1).nonzero().flatten().tolist() for g in groups}
    spread = [g for g in groups if len(holders[g]) > 1]
    here = [g for g in groups if holders[g] == [exchange.rank]]
    for chosen, among in ((spread, exchange), (here, Exchange())):
        for together in bundled(chosen, modules, config, device):
            blocks = make_blocks(batches, rows_of(together), modules, device, dtype)
            tokens = torch.cat([counts_of[group] for group in together], dim=1)
            yield Bundle(together, blocks, tokens if chosen is spread else tokens.sum(0, keepdim=True), among)


def rows_of(groups: list[Group]) -> list[int]:
    """The response rows of several groups, one group after the other."""
    return [row for group in groups for row in group.rows]


def mixed_weights(group: Group, batches: Sequence[TokenFactors]) -> str | None:
    """What is wrong when a group was captured under more than one set of weights."""
    versions = {batch.version for batch in batches if not batch.lengths.keys().isdisjoint(group.rows)}
    if len(versions) < 2:
        return None
    return (
        f"group {group.uid} was captured under {len(versions)} different sets of weights, whose gradients do "
        "not belong in one H: keep a group inside one mini-batch, or capture all of it before the optimizer "
        "steps"
    )


def token_counts(rows: list[int], batches: Sequence[TokenFactors], exchange: Exchange) -> Tensor:
    """Traced tokens of each row on each rank, int64 [ranks, rows]; an error when a row has none anywhere."""
    tokens = {row: count for batch in batches for row, count in batch.counts.items()}
    mine = torch.tensor([tokens.get(row, 0) for row in rows], dtype=torch.int64)
    counts = exchange.gather_counts(mine)
    absent = [row for row, total in zip(rows, counts.sum(0).tolist(), strict=True) if total == 0]
    if absent:
        raise ArcherError(
            f"response rows {absent[:8]} of the groups were not captured (on any rank of the tracer's "
            "process_group): each selected row has to appear in the layout of some capture"
        )
    return counts
