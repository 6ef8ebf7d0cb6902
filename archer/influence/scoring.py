"""Scores of one group: response gradients, H^-1, and one bilinear form per token, module by module."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.influence.config import InfluenceConfig
from archer.influence.counters import Counters, Stopwatch
from archer.influence.distributed import Exchange
from archer.influence.factors import Block
from archer.influence.groups import Group, contrast_weights
from archer.influence.modules import TracedModule
from archer.influence.solve import (
    Dual,
    Identity,
    InverseHessian,
    dual_inverses,
    primal_inverse,
    token_dual,
    use_dual,
)


@dataclass(frozen=True, eq=False)
class GroupTokens:
    """What a rank knows of a group.

    Attributes:
        group: its rows and accepted flags.
        blocks: the tokens captured here.
        counts: int64 [ranks, R] traced tokens of each response on each rank of the exchange.
        exchange: how ranks add up; a group that lies on one rank has `Alone`.
    """

    group: Group
    blocks: list[Block]
    counts: Tensor
    exchange: Exchange


class GroupScorer:
    """Computes the scores of groups, one after the other, with temporaries of bounded size."""

    def __init__(
        self,
        modules: list[TracedModule],
        config: InfluenceConfig,
        counters: Counters,
        stopwatch: Stopwatch,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.modules, self.config, self.counters, self.stopwatch = modules, config, counters, stopwatch
        self.device, self.dtype = device, dtype

    def scores(self, tokens: GroupTokens) -> list[Tensor]:
        """One [b, l] tensor of scores for each block; NaN throughout when some gradient of the group is not
        finite."""
        with self.stopwatch.timing("solve"):
            gradients = self._response_gradients(tokens)
            if not bool(torch.stack([G.sum() for G in gradients.values()]).isfinite().all()):
                self.counters.debug_nonfinite_groups += 1
                return [torch.full_like(block.weight, torch.nan) for block in tokens.blocks]
            duals = self._response_duals(tokens, gradients)
            contrast = contrast_weights(
                tokens.group.accepted, self.config.contrastive_agg, self.config.exclude_self_response
            ).to(self.device)
        totals = [Totals.like(block) for block in tokens.blocks]
        for traced in self.modules:
            G = gradients[traced.name]
            if self.config.hessian_source == "token" and self._dual(tokens, traced):
                with self.stopwatch.timing("solve"):
                    self._add_by_token_kernel(tokens, traced, contrast.to(G) @ G, totals)
                continue
            with self.stopwatch.timing("solve"):
                inverse = duals[traced.name] if traced.name in duals else self._inverse(tokens, traced, G)
                directions = inverse.directions(contrast, G)
            with self.stopwatch.timing("scoring"):
                self._add(tokens, traced, inverse, directions, totals)
        return [total.normalized() if self._normalize else total.score for total in totals]

    @property
    def _normalize(self) -> bool:
        return self.config.score_normalization == "token_norm"

    def _dual(self, tokens: GroupTokens, traced: TracedModule) -> bool:
        """Whether this module is solved through the kernel of the gradients that H is summed over."""
        inverse = self.config.hessian_mode == "inverse"
        return inverse and use_dual(self.config.solver, self._gradients_in_hessian(tokens), traced.dim)

    def _gradients_in_hessian(self, tokens: GroupTokens) -> int:
        of_tokens = self.config.hessian_source == "token"
        return int(tokens.counts.sum()) if of_tokens else len(tokens.group.rows)

    def _response_gradients(self, tokens: GroupTokens) -> dict[str, Tensor]:
        """G_r = mean_t u_t (x) v_t, [R, D_m] per module; one sum over ranks for all modules."""
        dims = [traced.dim for traced in self.modules]
        sums = torch.zeros(len(tokens.group.rows), sum(dims), device=self.device, dtype=self.dtype)
        for traced, part in zip(self.modules, sums.split(dims, dim=1), strict=True):
            for block in tokens.blocks:
                u, v = block.load(traced)
                part.index_add_(0, block.members, torch.bmm(u.mT, v).flatten(1))
        means = tokens.exchange.sum(sums).div_(tokens.counts.sum(0).to(self.device).unsqueeze(1))
        parts = means.split(dims, dim=1)
        return {traced.name: part for traced, part in zip(self.modules, parts, strict=True)}

    def _response_duals(self, tokens: GroupTokens, gradients: dict[str, Tensor]) -> dict[str, Dual]:
        """The R x R solves of all modules that take them, at once."""
        names = [traced.name for traced in self.modules if self._dual(tokens, traced)]
        if self.config.hessian_source == "token" or not names:
            return {}
        self.counters.debug_dual_solves += len(names)
        inverses = dual_inverses([gradients[n] for n in names], self.config.reg_lambda, self.config.reg_rule)
        return dict(zip(names, inverses, strict=True))

    def _inverse(self, tokens: GroupTokens, traced: TracedModule, G: Tensor) -> InverseHessian:
        if self.config.hessian_mode == "identity":
            return Identity()
        self.counters.debug_primal_solves += 1
        H = self._token_hessian(tokens, traced) if self.config.hessian_source == "token" else G.T @ G
        count = self._gradients_in_hessian(tokens)
        return primal_inverse(H, count, self.config.reg_lambda, self.config.reg_rule)

    def _token_hessian(self, tokens: GroupTokens, traced: TracedModule) -> Tensor:
        """sum_t g_t g_t^T over the group's tokens on all ranks, [D, D]."""
        H = torch.zeros(traced.dim, traced.dim, device=self.device, dtype=self.dtype)
        for block in tokens.blocks:
            for _, g in block.chunks(traced):
                flat = g.flatten(0, 1)
                H.addmm_(flat.T, flat)
        return tokens.exchange.sum(H)

    def _add(
        self,
        tokens: GroupTokens,
        traced: TracedModule,
        inverse: InverseHessian,
        directions: Tensor,
        totals: list[Totals],
    ) -> None:
        """score_t += u_t^T Q v_t, with Q the direction [k_out, k_in] of the token's own response or of the
        group."""
        Q = directions.view(len(directions), traced.project_out.k, traced.project_in.k)
        for block, total in zip(tokens.blocks, totals, strict=True):
            u, v = block.load(traced)
            own = Q[block.members] if self.config.exclude_self_response else Q.expand(len(u), -1, -1)
            total.score.add_((torch.bmm(u, own) * v).sum(-1))
            if self._normalize:
                for part, g in block.chunks(traced):
                    total.norm[:, part] += inverse.squared_norms(g)

    def _add_by_token_kernel(
        self, tokens: GroupTokens, traced: TracedModule, B: Tensor, totals: list[Totals]
    ) -> None:
        """score_t += [(K + lambda I)^-1 a]_t with a_t = u_t^T B v_t over all tokens of the group, B = c G [S,
        D]."""
        self.counters.debug_dual_solves += 1
        k_out, k_in = traced.project_out.k, traced.project_in.k
        loaded = [(block, *block.load(traced)) for block in tokens.blocks]
        lines = tokens.counts.sum(1).tolist()
        here = slice(sum(lines[: tokens.exchange.rank]), sum(lines[: tokens.exchange.rank + 1]))
        U = tokens.exchange.gather_lines(self._lines([u[block.mask] for block, u, _ in loaded], k_out), lines)
        V = tokens.exchange.gather_lines(self._lines([v[block.mask] for block, _, v in loaded], k_in), lines)
        solver = token_dual(U, V, self.config.reg_lambda, self.config.reg_rule)
        alignment = torch.stack([((U @ Q) * V).sum(-1) for Q in B.view(-1, k_out, k_in)], dim=1)  # [T, S]
        scores = solver.scores(alignment)[here]
        norms = solver.squared_norms()[here] if self._normalize else None
        begin = 0
        for (block, _, _), total in zip(loaded, totals, strict=True):
            end = begin + int(block.mask.sum())
            own = block.members[:, None].expand_as(block.mask)[block.mask]
            line = own if self.config.exclude_self_response else torch.zeros_like(own)
            total.score[block.mask] += scores[begin:end].gather(1, line[:, None]).squeeze(1)
            if norms is not None:
                total.norm[block.mask] += norms[begin:end]
            begin = end

    def _lines(self, parts: list[Tensor], width: int) -> Tensor:
        return torch.cat(parts) if parts else torch.zeros(0, width, device=self.device, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over modules for one block, [b, l] each: the score and the token's squared H^-1 norm."""

    score: Tensor
    norm: Tensor

    @classmethod
    def like(cls, block: Block) -> Totals:
        """Zeros."""
        return cls(torch.zeros_like(block.weight), torch.zeros_like(block.weight))

    def normalized(self) -> Tensor:
        """score / sqrt(g^T H^-1 g); 0 for a token without gradient."""
        return torch.where(self.norm > 0, self.score * self.norm.rsqrt(), 0.0)
