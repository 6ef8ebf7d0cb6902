"""Influence scores by the kernel solve against a D x D Cholesky solve of every token, same numbers in, same
scores out.

    python benchmarks/influence_solve.py                     # sizes that suit the device
    python benchmarks/influence_solve.py --device cuda --modules 16 --responses 16 --tokens 2048
    python benchmarks/influence_solve.py --dims 256 1024 --tokens 128

Both routes start from stored token factors u, v (float32) and end with the contrastive score of every token
in inverse mode, hessian_source=response. The Cholesky route does what the definition says: H = G^T G + lambda
I, factor it, solve for each token's gradient (in chunks), multiply by G. The kernel route is the one the
tracer runs. Differences are relative to the largest score, against the kernel route in float64.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from archer.influence.block import CHUNK_ELEMENTS, make_blocks
from archer.influence.bundle import Bundle
from archer.influence.config import InfluenceConfig
from archer.influence.costs import Counters, Stopwatch
from archer.influence.distributed import Exchange
from archer.influence.factors import TokenFactors
from archer.influence.groups import Group
from archer.influence.modules import NoProjection, TracedModule
from archer.influence.scoring import Scorer

SHAPES = {256: (16, 16), 1024: (32, 32), 4096: (64, 64), 13440: (48, 280)}


def factors(modules: int, responses: int, tokens: int, dim: int, device: torch.device) -> TokenFactors:
    """Random factors with a common direction per response, so that response gradients do not vanish in the
    mean."""
    k_in, k_out = SHAPES[dim]
    generator = torch.Generator(device).manual_seed(0)
    row = torch.arange(responses).repeat_interleave(tokens)

    def side(k: int) -> Tensor:
        common = torch.randn(responses, k, generator=generator, device=device)
        return torch.randn(len(row), k, generator=generator, device=device) + common[row.to(device)]

    names = [str(m) for m in range(modules)]
    return TokenFactors(
        row=row,
        token=torch.arange(tokens).repeat(responses),
        u={name: side(k_out) for name in names},
        v={name: side(k_in) for name in names},
        scale=None,
        lengths=dict.fromkeys(range(responses), tokens),
        version=0,
    )


class KernelRoute:
    """Scores [R * tokens] as the tracer computes them; what it makes once per model is made here once."""

    def __init__(
        self, batch: TokenFactors, group: Group, dim: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        k_in, k_out = SHAPES[dim]
        self.batch, self.group, self.device, self.dtype = batch, group, device, dtype
        self.modules = [
            TracedModule(name, nn.Identity(), NoProjection(k_in), NoProjection(k_out)) for name in batch.u
        ]
        counters = Counters()
        watch = Stopwatch(counters, device, False)
        config = InfluenceConfig(solver="dual")
        self.scorer = Scorer(self.modules, config, counters, watch, device, dtype)
        self.counts = torch.tensor([[batch.lengths[row] for row in group.rows]])

    def __call__(self) -> Tensor:
        """From stored factors to one score per token."""
        blocks = make_blocks([self.batch], list(self.group.rows), self.modules, self.device, self.dtype)
        scores = self.scorer.scores(Bundle([self.group], blocks, self.counts, Exchange()))
        total = torch.empty(
            len(self.group.rows), int(self.counts[0, 0]), device=self.device, dtype=self.dtype
        )
        for block, part in zip(blocks, scores, strict=True):
            total[block.members] = part
        return total.flatten()


def cholesky_route(batch: TokenFactors, group: Group, dim: int, device: torch.device) -> Tensor:
    """Scores [R * tokens] by a dense factorisation and a solve for every token."""
    R = len(group.rows)
    sign = torch.tensor([1.0 if flag else -1.0 for flag in group.accepted], device=device)
    total = torch.zeros(len(batch.row), device=device)
    chunk = max(1, CHUNK_ELEMENTS // dim)
    for name, u in batch.u.items():
        v = batch.v[name]
        G = torch.bmm(u.view(R, -1, u.shape[1]).mT, v.view(R, -1, v.shape[1])).flatten(1) / (len(u) // R)
        H = G.T @ G
        H.diagonal().add_(0.1 * H.diagonal().sum() / dim)
        L = torch.linalg.cholesky(H)
        for begin in range(0, len(u), chunk):
            part = slice(begin, begin + chunk)
            g = (u[part, :, None] * v[part, None, :]).flatten(1)  # [n, D]
            infl = G @ torch.cholesky_solve(g.T, L)  # [R, n]
            total[part] += sign @ infl
    return total


def timed(action: Callable[[], Tensor], device: torch.device, repeats: int) -> tuple[float, Tensor]:
    """Median seconds and the result; what is quick is repeated for half a second.

    On a CPU seconds of its processor: a long solve is interrupted by other programs, a short one is not.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    spent: list[float] = []
    while len(spent) < repeats or (repeats > 1 and sum(spent) < 0.5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = clock()
        result = action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append(clock() - begin)
    return statistics.median(spent), result


def difference(found: Tensor, reference: Tensor) -> float:
    return float((found.double() - reference).abs().max() / reference.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dims", type=int, nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--modules", type=int, help="default: 16 on a GPU, 1 on a CPU")
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--tokens", type=int, help="tokens per response; default: 2048 on a GPU, 32 on a CPU")
    parser.add_argument(
        "--repeats", type=int, default=7, help="at least, of each route; one more before them warms up"
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    modules = arguments.modules or (16 if device.type == "cuda" else 1)
    tokens = arguments.tokens or (2048 if device.type == "cuda" else 32)
    group = Group(
        "a", tuple(range(arguments.responses)), tuple(r % 2 == 0 for r in range(arguments.responses))
    )
    name = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    )
    print(
        f"{name}, torch {torch.__version__}: {modules} modules, {arguments.responses} responses x {tokens} "
        "tokens\n"
    )
    print(
        "|      D | Cholesky s | kernel s |   ratio | Cholesky - exact | kernel - exact | kernel - Cholesky |"
    )
    print(
        "|-------:|-----------:|---------:|--------:|-----------------:|---------------:|------------------:|"
    )
    for dim in arguments.dims:
        batch = factors(modules, arguments.responses, tokens, dim, device)
        exact = KernelRoute(batch, group, dim, device, torch.float64)()
        kernel_in_float32 = KernelRoute(batch, group, dim, device, torch.float32)
        cholesky = partial(cholesky_route, batch, group, dim, device)
        kernel_in_float32()
        fast, kernel = timed(kernel_in_float32, device, arguments.repeats)
        once = dim > 4096 and device.type == "cpu"  # a minute or more: neither warmed up nor repeated
        if not once:
            cholesky()
        slow, dense = timed(cholesky, device, 1 if once else arguments.repeats)
        differences = (
            difference(dense, exact),
            difference(kernel, exact),
            difference(kernel, dense.double()),
        )
        assert all(math.isfinite(d) for d in differences)
        print(
            f"| {dim:6d} | {slow:10.4f} | {fast:8.4f} | {slow / fast:6.1f}x | {differences[0]:16.1e} "
            f"| {differences[1]:14.1e} | {differences[2]:17.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
