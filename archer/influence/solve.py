"""H^-1, in whichever space is small.

Notation: m modules of one shape and B groups solved together, R responses each, T tokens, D = k_out * k_in,
gradients as rows of length D.

    G [m, B, R, D] response gradients     g [..., D] position gradients     c [B, S, R] contrast weights
    H = sum over rows of A, A^T A + lambda I,  A = G (hessian_source=response) or all g of the group (token)

A score is <q, g_t> with the direction q = H^-1 G^T c: one solve per group, none per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.influence.config import RegRule, Solver
from archer.influence.factors import send

AUTO_DAMPING = 0.1


def noise_floor(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """The trace of H below which a module's gradients are rounding noise: (32 eps)^2 * max over modules.

    A gradient of a backward pass is a sum of terms of the size of its neighbours' gradients. eps is the
    relative error of a term in the format that scores are computed in, and the error of a sum of a thousand
    terms is about sqrt(1000) = 32 times as large. A module whose gradient vanishes by cancellation has a norm
    of that size or less beside the module with the largest; damped relative to its own trace it would count
    like any other.

    Args:
        largest: largest trace of all modules.
        dtype: what is computed in.
    """
    return (32 * torch.finfo(dtype).eps) ** 2 * largest


def damping(
    trace: Tensor,
    dim: int | Tensor,
    count: int,
    reg_lambda: float,
    reg_rule: RegRule,
    floor: Tensor | float = 0.0,
) -> Tensor:
    """lambda, shaped like the traces.

    hessian_trace: reg_lambda itself, or 0.1 * trace(H) / D when it is <= 0.
    kernel_trace: c * trace(H) / n with c = reg_lambda, or 0.1 when it is <= 0.

    A trace below `floor` counts as `floor`, so that noise stays small (`noise_floor`). Without any gradient
    (trace 0) every score is 0 whatever lambda is, and 1 keeps the solve defined.

    Args:
        trace: trace of H before damping, equal to the trace of the n x n kernel.
        dim: D, one for each trace or one for all.
        count: n, the number of gradients in H.
        reg_lambda, reg_rule: the knobs.
        floor: smallest trace that lambda is made from, one for each trace or one for all.
    """
    if reg_rule == "hessian_trace" and reg_lambda > 0:
        return torch.full_like(trace, reg_lambda)
    share = AUTO_DAMPING if reg_lambda <= 0 else reg_lambda
    size = dim if reg_rule == "hessian_trace" else count
    floor = torch.as_tensor(floor, dtype=trace.dtype, device=trace.device)
    return trace.maximum(floor) * (share / size) + (trace == 0)


def use_dual(solver: Solver, count: int, dim: int) -> bool:
    """Whether to solve with the n x n kernel instead of the D x D matrix."""
    return solver == "dual" or (solver == "auto" and count <= dim)


class InverseHessian:
    """H^-1 of m modules in each of B groups; here of H = I."""

    def directions(self, contrast: Tensor, G: Tensor) -> Tensor:
        """q = H^-1 G^T c for each line of `contrast` [B, S, R]: [m, B, S, D]."""
        return contrast.to(G) @ G

    def squared_norms(self, g: Tensor) -> Tensor:
        """g^T H^-1 g for gradients [..., D] of a single module and group: [...]."""
        return g.square().sum(-1)


@dataclass(frozen=True, eq=False)
class Dual(InverseHessian):
    """H = G^T G + lambda I through K = G G^T: (G^T G + lambda I)^-1 G^T = G^T (K + lambda I)^-1.

    Attributes:
        G: [m, B, R, D].
        inverse_kernel: float64 [m, B, R, R], (K + lambda I)^-1.
        lam: [m, B], lambda.
        failed: bool on the device, see `check_solved`.
    """

    G: Tensor
    inverse_kernel: Tensor
    lam: Tensor
    failed: Tensor

    def directions(self, contrast: Tensor, G: Tensor) -> Tensor:
        """c (K + lambda I)^-1 G."""
        return (contrast.to(self.inverse_kernel) @ self.inverse_kernel).to(G) @ G

    def squared_norms(self, g: Tensor) -> Tensor:
        """(|g|^2 - m^T (K + lambda I)^-1 m) / lambda with m = G g.

        The subtraction cancels when g lies in the span of G, so the result is held above the Cauchy-Schwarz
        bound |g|^4 / (g^T H g), which is exact when g is an eigenvector of H.
        """
        ((G,),), ((inverse_kernel,),), ((lam,),) = self.G, self.inverse_kernel, self.lam
        m = (g @ G.T).to(inverse_kernel)
        square = g.square().sum(-1).to(m)
        norm = (square - ((m @ inverse_kernel) * m).sum(-1)) / lam
        energy = lam * square + m.square().sum(-1)
        bound = square.square() / energy.clamp(min=torch.finfo(m.dtype).tiny)
        return torch.maximum(norm, bound).to(g)


@dataclass(frozen=True, eq=False)
class Primal(InverseHessian):
    """H of a single module and group as a D x D matrix, by its Cholesky factor [D, D]."""

    factor: Tensor
    failed: Tensor

    def directions(self, contrast: Tensor, G: Tensor) -> Tensor:
        """Solve H q = G^T c for every line of the contrast at once."""
        return torch.cholesky_solve((contrast.to(G) @ G).mT, self.factor).mT

    def squared_norms(self, g: Tensor) -> Tensor:
        """|L^-1 g|^2 with H = L L^T."""
        flat = g.reshape(-1, g.shape[-1])
        solved = torch.linalg.solve_triangular(self.factor, flat.T, upper=False)
        return solved.square().sum(0).view(g.shape[:-1])


def dual_inverses(
    Gs: list[Tensor], reg_lambda: float, reg_rule: RegRule, floor: Tensor | float = 0.0
) -> list[Dual]:
    """The dual inverse for each stack's G [m, B, R, D], in one batched solve.

    Kernels are formed and inverted in float64: with lambda = 0.1 trace / D their condition number reaches
    10 D, and R x R matrices cost nothing.
    """
    wide = torch.float64 if Gs[0].device.type != "mps" else torch.float32
    kernels = [G @ G.mT for G in (G.to(wide) for G in Gs)]
    K = torch.cat(kernels) if len(kernels) > 1 else kernels[0]  # [M, B, R, R]
    trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)  # [M, B]
    sizes = [G.shape[-1] for G in Gs for _ in range(len(G))]
    dims: int | Tensor = sizes[0]
    if len(Gs) > 1:
        dims = send(torch.tensor(sizes, dtype=trace.dtype).unsqueeze(1), trace.device)
    lam = damping(trace, dims, K.shape[-1], reg_lambda, reg_rule, floor)
    K.diagonal(dim1=-2, dim2=-1).add_(lam.unsqueeze(-1))
    factor, failed = _cholesky(K)
    # On CUDA cholesky_inverse takes the matrices one after the other, a triangular solve all at once.
    one = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    root = torch.linalg.solve_triangular(factor, one.expand_as(K), upper=False)
    counts = [len(G) for G in Gs]
    parts = zip(Gs, (root.mT @ root).split(counts), lam.split(counts), strict=True)
    return [Dual(G, inverse, lam, failed) for G, inverse, lam in parts]


def primal_inverse(
    H: Tensor, count: int, reg_lambda: float, reg_rule: RegRule, floor: Tensor | float = 0.0
) -> Primal:
    """The primal inverse of H [D, D] (undamped, overwritten), a sum over `count` gradients."""
    lam = damping(H.diagonal().sum(), H.shape[0], count, reg_lambda, reg_rule, floor)
    H.diagonal().add_(lam)
    return Primal(*_cholesky(H))


@dataclass(frozen=True, eq=False)
class TokenDual:
    """H over tokens through the T x T kernel K = (U U^T) * (V V^T), for groups with fewer tokens than D.

    With all T gradients as rows of A, A (A^T A + lambda I)^-1 = (K + lambda I)^-1 A, so the scores of all
    tokens come out of one solve and no gradient is ever formed.
    """

    kernel: Tensor
    factor: Tensor
    failed: Tensor

    def scores(self, alignment: Tensor) -> Tensor:
        """(K + lambda I)^-1 of alignment [T, S], whose entry is <G^T c_s, g_t>: [T, S]."""
        return torch.cholesky_solve(alignment, self.factor)

    def squared_norms(self) -> Tensor:
        """g_t^T H^-1 g_t = [(K + lambda I)^-1 K]_tt for every token: [T].

        Not by cholesky_inverse, which raises its own error where the solve has failed.
        """
        return torch.cholesky_solve(self.kernel, self.factor).diagonal()


def token_dual(
    U: Tensor, V: Tensor, reg_lambda: float, reg_rule: RegRule, floor: Tensor | float = 0.0
) -> TokenDual:
    """The token kernel of U [T, k_out] and V [T, k_in], damped and factored."""
    K = (U @ U.T) * (V @ V.T)
    lam = damping(K.diagonal().sum(), U.shape[1] * V.shape[1], len(U), reg_lambda, reg_rule, floor)
    return TokenDual(K, *_cholesky(K + lam * torch.eye(len(U), dtype=K.dtype, device=K.device)))


def check_solved(failed: list[Tensor]) -> None:
    """Raise when one of the solves failed, whose results mean nothing then.

    Each solve leaves its answer, a bool, on the device: asking a GPU means to wait for it, so all are asked
    at once.
    """
    if failed and bool(torch.stack(failed).any()):
        raise ArcherError(
            "H + lambda I is not positive definite in this precision: raise "
            "trainer.influence_trace.reg_lambda, or leave it at 0 for the automatic damping"
        )


def _cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor, info.any()
