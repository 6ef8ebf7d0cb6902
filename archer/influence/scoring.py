"""Scores of a bundle of groups: response gradients, H^-1, and one bilinear form per token and module."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.influence.bundle import Bundle
from archer.influence.config import InfluenceConfig
from archer.influence.counters import Counters, Stopwatch
from archer.influence.factors import Block, BlockReader
from archer.influence.groups import contrast_weights
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


class Scorer:
    """Computes scores, one bundle after the other, with temporaries of bounded size."""

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

    def scores(self, bundle: Bundle) -> list[Tensor]:
        """One [b, l] tensor of scores for each block; NaN in groups with a gradient that is not finite."""
        reader = BlockReader(bundle.blocks, self.modules)
        with self.stopwatch.timing("solve"):
            gradients, broken = self._response_gradients(bundle, reader)
            if bool(broken.all()):
                return [torch.full_like(block.weight, torch.nan) for block in bundle.blocks]
            duals = self._response_duals(bundle, gradients)
            contrast = torch.stack(
                [
                    contrast_weights(
                        g.accepted, self.config.contrastive_agg, self.config.exclude_self_response
                    )
                    for g in bundle.groups
                ]
            ).to(self.device)
        totals = [Totals.like(block) for block in bundle.blocks]
        for traced in self.modules:
            G = gradients[traced.name]
            if self.config.hessian_source == "token" and self._dual(bundle, traced):
                with self.stopwatch.timing("solve"):
                    self._add_by_token_kernel(bundle, traced, reader, (contrast.to(G) @ G)[0], totals)
                continue
            with self.stopwatch.timing("solve"):
                inverse = duals[traced.name] if traced.name in duals else self._inverse(bundle, traced, G)
                directions = inverse.directions(contrast, G)
            with self.stopwatch.timing("scoring"):
                self._add(bundle, traced, reader, inverse, directions, totals)
        scores = [total.normalized() if self._normalize else total.score for total in totals]
        for block, score in zip(bundle.blocks, scores, strict=True):
            score[broken[block.members // bundle.size]] = torch.nan
        return scores

    @property
    def _normalize(self) -> bool:
        return self.config.score_normalization == "token_norm"

    def _dual(self, bundle: Bundle, traced: TracedModule) -> bool:
        """Whether this module is solved through the kernel of the gradients that H is summed over."""
        inverse = self.config.hessian_mode == "inverse"
        return inverse and use_dual(self.config.solver, self._gradients_in_hessian(bundle), traced.dim)

    def _gradients_in_hessian(self, bundle: Bundle) -> int:
        of_tokens = self.config.hessian_source == "token"
        return int(bundle.counts.sum()) if of_tokens else bundle.size

    def _response_gradients(self, bundle: Bundle, reader: BlockReader) -> tuple[dict[str, Tensor], Tensor]:
        """G_r = mean_t u_t (x) v_t, [B, R, D_m] per module; and bool [B], which groups are not finite.

        One sum over ranks serves all modules. The gradients of groups that are not finite come out as 0.
        """
        dims = [traced.dim for traced in self.modules]
        members = len(bundle.groups) * bundle.size
        sums = torch.zeros(members, sum(dims), device=self.device, dtype=self.dtype)
        for traced, part in zip(self.modules, sums.split(dims, dim=1), strict=True):
            for block in bundle.blocks:
                u, v = reader.read(block, traced)
                part.index_add_(0, block.members, torch.bmm(u.mT, v).flatten(1))
        means = bundle.exchange.sum(sums).div_(bundle.counts.sum(0).to(self.device).unsqueeze(1))
        means = means.view(len(bundle.groups), bundle.size, -1)
        broken = ~means.sum(dim=(1, 2)).isfinite()
        if bool(broken.any()):
            self.counters.debug_nonfinite_groups += int(broken.sum())
            means[broken] = 0.0
        parts = means.split(dims, dim=2)
        return {traced.name: part for traced, part in zip(self.modules, parts, strict=True)}, broken

    def _response_duals(self, bundle: Bundle, gradients: dict[str, Tensor]) -> dict[str, Dual]:
        """The R x R solves of all modules that take them, at once."""
        names = [traced.name for traced in self.modules if self._dual(bundle, traced)]
        if self.config.hessian_source == "token" or not names:
            return {}
        self.counters.debug_dual_solves += len(names) * len(bundle.groups)
        inverses = dual_inverses([gradients[n] for n in names], self.config.reg_lambda, self.config.reg_rule)
        return dict(zip(names, inverses, strict=True))

    def _inverse(self, bundle: Bundle, traced: TracedModule, G: Tensor) -> InverseHessian:
        if self.config.hessian_mode == "identity":
            return Identity()
        self.counters.debug_primal_solves += 1
        H = self._token_hessian(bundle, traced) if self.config.hessian_source == "token" else G[0].T @ G[0]
        count = self._gradients_in_hessian(bundle)
        return primal_inverse(H, count, self.config.reg_lambda, self.config.reg_rule)

    def _token_hessian(self, bundle: Bundle, traced: TracedModule) -> Tensor:
        """sum_t g_t g_t^T over the group's tokens on all ranks, [D, D]."""
        H = torch.zeros(traced.dim, traced.dim, device=self.device, dtype=self.dtype)
        for block in bundle.blocks:
            for _, g in block.chunks(traced):
                flat = g.flatten(0, 1)
                H.addmm_(flat.T, flat)
        return bundle.exchange.sum(H)

    def _add(
        self,
        bundle: Bundle,
        traced: TracedModule,
        reader: BlockReader,
        inverse: InverseHessian,
        directions: Tensor,
        totals: list[Totals],
    ) -> None:
        """score_t += u_t^T Q v_t, Q [k_out, k_in] the direction of the token's group or own response."""
        Q = directions.reshape(-1, traced.project_out.k, traced.project_in.k)
        lines_each = 1 if self.config.exclude_self_response else bundle.size
        for block, total in zip(bundle.blocks, totals, strict=True):
            u, v = reader.read(block, traced)
            total.score.add_((torch.bmm(u, Q[block.members // lines_each]) * v).sum(-1))
            if self._normalize:
                for part, g in block.chunks(traced):
                    total.norm[:, part] += inverse.squared_norms(g)

    def _add_by_token_kernel(
        self, bundle: Bundle, traced: TracedModule, reader: BlockReader, B: Tensor, totals: list[Totals]
    ) -> None:
        """score_t += [(K + lambda I)^-1 a]_t with a_t = u_t^T B v_t over all tokens, B = c G [S, D]."""
        self.counters.debug_dual_solves += 1
        k_out, k_in = traced.project_out.k, traced.project_in.k
        loaded = [(block, *reader.read(block, traced)) for block in bundle.blocks]
        lines = bundle.counts.sum(1).tolist()
        here = slice(sum(lines[: bundle.exchange.rank]), sum(lines[: bundle.exchange.rank + 1]))
        U = bundle.exchange.gather_lines(self._lines([u[block.mask] for block, u, _ in loaded], k_out), lines)
        V = bundle.exchange.gather_lines(self._lines([v[block.mask] for block, _, v in loaded], k_in), lines)
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
