"""Scores of a bundle of groups: response gradients, H^-1, and one bilinear form per token and module."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.influence.block import Block
from archer.influence.bundle import Bundle, solved_together
from archer.influence.config import InfluenceConfig
from archer.influence.costs import Counters, Stopwatch
from archer.influence.factors import send
from archer.influence.groups import contrast_weights
from archer.influence.modules import TracedModule
from archer.influence.solve import (
    Dual,
    InverseHessian,
    check_solved,
    dual_inverses,
    noise_floor,
    primal_inverse,
    token_dual,
    use_dual,
)
from archer.influence.stacks import BlockReader, ModuleStack, response_sums, stacks_of, views


class Scorer:
    """Computes scores, one bundle after the other, with temporaries of bounded size.

    Nothing is asked of a GPU on the way, but by the kernels of tokens, so that it is never kept waiting:
    scores and what went wrong are read together at the end, by `read`.
    """

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
        self._failed: list[Tensor] = []  # bool scalars: some solve came to nothing
        self._broken: list[Tensor] = []  # bool [B] of each bundle: groups with a gradient that is not finite

    def scores(self, bundle: Bundle) -> list[Tensor]:
        """One [b, l] tensor of scores for each block; NaN in groups with a gradient that is not finite."""
        reader = BlockReader(bundle.blocks, self.modules)
        together = solved_together(bundle.size, self.modules, self.config)
        stacks = stacks_of(self.modules, bundle.blocks, most=0 if together else 1)
        with self.stopwatch.timing("solve"):
            gradients, broken = self._response_gradients(bundle, stacks, reader)
            floor = self._noise_floor(bundle, gradients)
            duals = self._response_duals(bundle, stacks, gradients, floor)
            contrast = self._contrast(bundle, broken)
        totals = [Totals.like(block, self._normalize) for block in bundle.blocks]
        for stack, G in zip(stacks, gradients, strict=True):
            if self.config.hessian_source == "token" and self._dual(bundle, stack):
                with self.stopwatch.timing("solve"):
                    direction = (contrast.to(G) @ G)[0, 0]
                    self._add_by_token_kernel(bundle, stack, direction, broken, floor, totals)
                continue
            with self.stopwatch.timing("solve"):
                inverse = duals[stack] if stack in duals else self._inverse(bundle, stack, G, broken, floor)
                directions = inverse.directions(contrast, G)
            with self.stopwatch.timing("scoring"):
                self._add(bundle, stack, reader, inverse, directions, totals)
        return [total.normalized() if self._normalize else total.score for total in totals]

    def gradients_of(self, bundle: Bundle) -> dict[str, Tensor]:
        """G_r of every response of a bundle, [B * R, D] for each module; those not finite as 0."""
        reader = BlockReader(bundle.blocks, self.modules)
        stacks = stacks_of(self.modules, bundle.blocks)
        gradients, _ = self._response_gradients(bundle, stacks, reader)
        return {
            traced.name: G.flatten(0, 1)
            for stack, part in zip(stacks, gradients, strict=True)
            for traced, G in zip(stack, part, strict=True)
        }

    def read(self, scores: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Scores of any bundles on the CPU; an error when a solve behind them failed.

        The one moment at which the device is waited for.
        """
        with self.stopwatch.timing("scoring"):
            flat = torch.cat([score.flatten() for score in scores]) if scores else torch.empty(0)
            values = flat.to("cpu", dtype)
        check_solved(self._failed)
        if self._broken:
            self.counters.debug_nonfinite_groups += int(torch.cat(self._broken).sum())
        self._failed, self._broken = [], []
        parts = values.split([score.numel() for score in scores])
        return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]

    @property
    def _normalize(self) -> bool:
        return self.config.score_normalization == "token_norm"

    def _contrast(self, bundle: Bundle, broken: Tensor) -> Tensor:
        """c, [B, S, R]; NaN in groups with a gradient that is not finite, and so are all their scores."""
        agg, exclude = self.config.contrastive_agg, self.config.exclude_self_response
        accepted = torch.tensor([group.accepted for group in bundle.groups])
        contrast = send(contrast_weights(accepted, agg, exclude), self.device)
        if self._any_or_unknown(broken):
            contrast = contrast.masked_fill(broken[:, None, None], torch.nan)
        return contrast

    def _any_or_unknown(self, flags: Tensor) -> bool:
        """Whether some flag is set, as far as can be said without waiting for a GPU."""
        return self.device.type == "cuda" or bool(flags.any())

    def _dual(self, bundle: Bundle, stack: ModuleStack) -> bool:
        """Whether these modules are solved through the kernel of the gradients that H is summed over."""
        inverse = self.config.hessian_mode == "inverse"
        return inverse and use_dual(self.config.solver, self._gradients_in_hessian(bundle), stack[0].dim)

    def _gradients_in_hessian(self, bundle: Bundle) -> int:
        of_tokens = self.config.hessian_source == "token"
        return int(bundle.counts.sum()) if of_tokens else bundle.size

    def _response_gradients(
        self, bundle: Bundle, stacks: list[ModuleStack], reader: BlockReader
    ) -> tuple[list[Tensor], Tensor]:
        """G_r = mean_t u_t (x) v_t, [m, B, R, D] per stack; bool [B], which groups are not finite.

        One sum over ranks serves all modules. The gradients of groups that are not finite come out as 0.
        """
        members = len(bundle.groups) * bundle.size
        sums = response_sums(stacks, bundle.blocks, members, reader, self.device, self.dtype)
        sums = bundle.exchange.sum(sums)
        counts = send(bundle.counts.sum(0).unsqueeze(1), self.device)
        gradients = [
            part.div_(counts).view(len(stack), len(bundle.groups), bundle.size, -1)
            for stack, part in zip(stacks, views(sums, stacks, members), strict=True)
        ]
        total = torch.stack([G.sum(dim=(0, 2, 3)) for G in gradients]).sum(0)
        broken = (total - total) != 0  # inf - inf is NaN
        if bundle.counted_here:
            self._broken.append(broken)
        if self._any_or_unknown(broken):
            for G in gradients:
                G.masked_fill_(broken[:, None, None], 0.0)
        return gradients, broken

    def _noise_floor(self, bundle: Bundle, gradients: list[Tensor]) -> Tensor:
        """[B], of each group; see `noise_floor`."""
        if self.config.hessian_mode == "inverse" and self.config.hessian_source == "token":
            largest = torch.stack([self._token_trace(bundle, traced) for traced in self.modules]).amax(0)
            largest = torch.where(largest.isfinite(), largest, 0.0).unsqueeze(0)
        else:
            largest = torch.stack([G.square().sum(dim=(2, 3)).amax(0) for G in gradients]).amax(0)
        return noise_floor(largest, self.dtype)

    def _token_trace(self, bundle: Bundle, traced: TracedModule) -> Tensor:
        """sum_t |g_t|^2 = sum_t |u_t|^2 |v_t|^2 over the tokens of a single group on all ranks."""
        total = torch.zeros((), device=self.device, dtype=self.dtype)
        for block in bundle.blocks:
            u, v = block.weighted(traced)
            total += (u.square().sum(-1) * v.square().sum(-1)).sum()
        return bundle.exchange.sum(total)

    def _response_duals(
        self, bundle: Bundle, stacks: list[ModuleStack], gradients: list[Tensor], floor: Tensor
    ) -> dict[ModuleStack, Dual]:
        """The R x R solves of all modules that take them, at once."""
        chosen = {s: G for s, G in zip(stacks, gradients, strict=True) if self._dual(bundle, s)}
        if self.config.hessian_source == "token" or not chosen:
            return {}
        self.counters.debug_dual_solves += sum(len(stack) for stack in chosen) * len(bundle.groups)
        inverses = dual_inverses(list(chosen.values()), self.config.reg_lambda, self.config.reg_rule, floor)
        self._failed.append(inverses[0].failed)
        return dict(zip(chosen, inverses, strict=True))

    def _inverse(
        self, bundle: Bundle, stack: ModuleStack, G: Tensor, broken: Tensor, floor: Tensor
    ) -> InverseHessian:
        if self.config.hessian_mode == "identity":
            return InverseHessian()
        (traced,) = stack
        self.counters.debug_primal_solves += 1
        of_tokens = self.config.hessian_source == "token"
        H = self._token_hessian(bundle, traced) if of_tokens else G[0, 0].T @ G[0, 0]
        count = self._gradients_in_hessian(bundle)
        inverse = primal_inverse(H, count, self.config.reg_lambda, self.config.reg_rule, floor[0])
        self._failed.append(inverse.failed & ~broken.all())
        return inverse

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
        stack: ModuleStack,
        reader: BlockReader,
        inverse: InverseHessian,
        directions: Tensor,
        totals: list[Totals],
    ) -> None:
        """score_t += u_t^T Q v_t, Q [k_out, k_in] the direction of the token's group or own response."""
        shape = stack[0]
        Q = directions.reshape(len(stack), -1, shape.k_out, shape.k_in)
        lines_each = 1 if self.config.exclude_self_response else bundle.size
        for block, total in zip(bundle.blocks, totals, strict=True):
            u, v = reader.read(block, stack)
            u, v = u[..., : shape.k_out].to(self.dtype), v[..., : shape.k_in]
            own = Q[:, block.members // lines_each].flatten(0, 1)  # [m * b, k_out, k_in]
            forms = torch.bmm(u.flatten(0, 1), own).view(v.shape).mul_(v).sum(-1).sum(0)  # [b, l]
            if block.scale is None:
                total.score.add_(forms, alpha=shape.scale)
            else:
                total.score.addcmul_(forms, block.scale, value=shape.scale)
            if self._normalize:
                for part, g in block.chunks(shape):
                    total.norm[:, part] += inverse.squared_norms(g)

    def _add_by_token_kernel(
        self,
        bundle: Bundle,
        stack: ModuleStack,
        B: Tensor,
        broken: Tensor,
        floor: Tensor,
        totals: list[Totals],
    ) -> None:
        """score_t += [(K + lambda I)^-1 a]_t with a_t = u_t^T B v_t over all tokens, B = c G [S, D]."""
        self.counters.debug_dual_solves += 1
        (traced,) = stack
        k_out, k_in = traced.k_out, traced.k_in
        loaded = [(block, *block.weighted(traced)) for block in bundle.blocks]
        lines = bundle.counts.sum(1).tolist()
        here = slice(sum(lines[: bundle.exchange.rank]), sum(lines[: bundle.exchange.rank + 1]))
        none = torch.zeros(0, device=self.device, dtype=self.dtype)
        us, vs = [u[block.mask] for block, u, _ in loaded], [v[block.mask] for block, _, v in loaded]
        U = bundle.exchange.gather_lines(torch.cat([none.view(0, k_out), *us]), lines)
        V = bundle.exchange.gather_lines(torch.cat([none.view(0, k_in), *vs]), lines)
        solver = token_dual(U, V, self.config.reg_lambda, self.config.reg_rule, floor[0])
        self._failed.append(solver.failed & ~broken.all())  # tokens that are not finite have no solution
        alignment = torch.stack([((U @ Q) * V).sum(-1) for Q in B.view(-1, k_out, k_in)], dim=1)  # [T, S]
        scores = solver.scores(alignment)[here]
        norms = solver.squared_norms()[here] if self._normalize else None
        begin = 0
        for (block, _, _), total in zip(loaded, totals, strict=True):
            end = begin + sum(block.lengths)
            own = block.members[:, None].expand_as(block.mask)[block.mask]
            line = own if self.config.exclude_self_response else torch.zeros_like(own)
            total.score[block.mask] += scores[begin:end].gather(1, line[:, None]).squeeze(1)
            if norms is not None:
                total.norm[block.mask] += norms[begin:end]
            begin = end


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over modules for one block: the score [b, l] and, where it is wanted, the squared H^-1 norm [b, l]
    of the token."""

    score: Tensor
    norm: Tensor

    @classmethod
    def like(cls, block: Block, with_norm: bool) -> Totals:
        """Zeros."""
        score = torch.zeros(block.shape, device=block.device, dtype=block.dtype)
        return cls(score, torch.zeros_like(score) if with_norm else score.new_empty(0))

    def normalized(self) -> Tensor:
        """score / sqrt(g^T H^-1 g); 0 for a token whose gradient is too small to have a norm."""
        nothing = (self.norm <= 0) & self.score.isfinite()  # rounding may leave a tiny norm below 0
        return torch.where(nothing, 0.0, self.score * self.norm.rsqrt())
