"""Groups that are scored together, so that many small ones do not cost a solve each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archer.influence.config import InfluenceConfig
from archer.influence.distributed import Exchange
from archer.influence.factors import Block
from archer.influence.groups import Group
from archer.influence.modules import TracedModule
from archer.influence.solve import use_dual

# Elements of the response gradients that are held at once: groups are bundled up to this.
BUNDLE_ELEMENTS = 1 << 25


@dataclass(frozen=True, eq=False)
class Bundle:
    """Groups of one size R that are scored together, and what a rank knows of them.

    Attributes:
        groups: B of them.
        blocks: the tokens captured here; member b * R + r is response r of group b.
        counts: int64 [ranks, B * R] traced tokens of each response on each rank of the exchange.
        exchange: how ranks add up; groups that lie on one rank have `Alone`.
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
    def rows(self) -> list[int]:
        """The response row of every member."""
        return [row for group in self.groups for row in group.rows]


def bundled(groups: list[Group], modules: list[TracedModule], config: InfluenceConfig) -> list[list[Group]]:
    """Groups of equal size put together as far as memory allows.

    What needs a matrix for each group (D x D, T x T, token norms) is left as single groups.
    """
    total = sum(traced.dim for traced in modules)
    bundles: list[list[Group]] = []
    for group in groups:
        R = len(group.rows)
        duals = all(use_dual(config.solver, R, traced.dim) for traced in modules)
        shared = config.hessian_mode == "identity" or (config.hessian_source == "response" and duals)
        most = BUNDLE_ELEMENTS // (R * total) if shared and config.score_normalization == "none" else 1
        if bundles and len(bundles[-1][0].rows) == R and len(bundles[-1]) < most:
            bundles[-1].append(group)
        else:
            bundles.append([group])
    return bundles
