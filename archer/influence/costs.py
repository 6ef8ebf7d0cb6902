"""What tracing costs: counts and times of a step, which also explain an empty trace, and its memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch

from archer.influence.block import chunk_elements
from archer.influence.config import InfluenceConfig
from archer.influence.modules import NUMBERS, TracedModule
from archer.influence.solve import use_dual

TIMED = ("capture", "backward", "solve", "scoring")


@dataclass
class Counters:
    """Sums over one step, named as the trainer logs them."""

    rows_emitted: int = 0
    selected_prompts: int = 0
    selected_responses: int = 0
    skipped_all_accepted: int = 0
    skipped_all_rejected: int = 0
    debug_skipped_by_cap: int = 0
    debug_micro_batches: int = 0
    debug_captured_tokens: int = 0
    debug_weight_versions: int = 0
    debug_portions: int = 0
    debug_forward_hook_calls: int = 0
    debug_forward_without_grad_calls: int = 0
    debug_forward_recomputed_calls: int = 0
    debug_forward_set_v_calls: int = 0
    debug_input_projections: int = 0
    debug_output_grad_hook_calls: int = 0
    debug_output_grad_set_u_calls: int = 0
    debug_rescaled_micro_batches: int = 0
    debug_partly_rescaled_micro_batches: int = 0
    debug_second_backwards: int = 0
    debug_second_backwards_with_parameters: int = 0
    debug_nonfinite_groups: int = 0
    debug_cross_rank_groups: int = 0
    debug_dual_solves: int = 0
    debug_primal_solves: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMED, 0.0))

    def metrics(self) -> dict[str, float]:
        """Counts as `influence_trace/<name>`, times as `timing_s/influence_<part>`."""
        counts = {
            f"influence_trace/{c.name}": float(self.__dict__[c.name]) for c in fields(self) if c.type == "int"
        }
        return counts | {f"timing_s/influence_{part}": spent for part, spent in self.seconds.items()}


class Stopwatch:
    """Adds wall time to the counters; with `wait` the device is waited for, so that times are its own."""

    def __init__(self, counters: Counters, device: torch.device, wait: bool) -> None:
        self.counters, self.device = counters, device
        self.wait = wait and device.type == "cuda"

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time spent inside to one of the TIMED parts."""
        begin = self.now()
        try:
            yield
        finally:
            self.add(part, begin)

    def now(self) -> float:
        """The time, for `add`: lighter than `timing`, for hooks that fire hundreds of times in a step."""
        if self.wait:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def add(self, part: str, begin: float) -> None:
        """Add the time since `begin`."""
        self.counters.seconds[part] += self.now() - begin


MIB = 1 << 20
LAST_MAPS = ("o_proj", "out_proj", "c_proj", "down_proj", ".dense", "fc2")
"""How architectures call the map that ends an attention or a feed-forward block."""


def describe(
    modules: list[TracedModule], config: InfluenceConfig, dtype: torch.dtype, device: torch.device
) -> str:
    """A table of the traced modules, layers of one shape together, and the peak memory estimate.

    Factors are stored in `dtype`, scores are computed on `device`.
    """
    kinds: dict[tuple[str, int, int, int, int], int] = {}
    for traced in modules:
        name = NUMBERS.sub(".*", traced.name)
        sides = (traced.project_in.d, traced.project_in.k, traced.project_out.d, traced.project_out.k)
        kinds[name, *sides] = kinds.get((name, *sides), 0) + 1
    experts = sum(traced.fused is not None for traced in modules)
    among = f", {experts:,} of them experts in fused weights" if experts else ""
    lines = [f"influence: {len(modules):,} linear modules traced{among}"]
    for (name, d_in, k_in, d_out, k_out), count in kinds.items():
        lines.append(
            f"  {count:4d} x {name}: k_in {k_in} of {d_in}, k_out {k_out} of {d_out}, D {k_in * k_out}"
        )
    factors = bytes_per_token(modules, dtype)
    lines.append(
        f"  factors: {factors / 1024:.1f} KiB per traced token in {str(dtype).removeprefix('torch.')}, kept "
        "from capture to scores"
    )
    chunk = 4 * chunk_elements(device) // MIB
    lines.append(
        f"  solve: about {solve_bytes(modules, config) / MIB:.1f} MiB at its peak, plus chunks of {chunk} MiB"
    )
    return "\n".join(lines)


def bytes_per_token(modules: list[TracedModule], dtype: torch.dtype) -> int:
    """Storage of u and v of all modules; an input that several modules share is stored once.

    A block's last map has the projection of the first ones where their widths agree, but an input of its own.
    Of fused experts a token has factors at those that it is sent to.
    """
    plain = [traced for traced in modules if traced.fused is None]
    inputs = {
        (id(traced.project_in), traced.name.partition(".lora_")[0].endswith(LAST_MAPS)): traced.k_in
        for traced in plain
    }
    numbers = sum(inputs.values()) + sum(traced.k_out for traced in plain)
    fused = {traced.fused: traced.k_in + traced.k_out for traced in modules if traced.fused is not None}
    indices = sum(8 * weight.slots for weight in fused)
    numbers += sum(weight.slots * width for weight, width in fused.items())
    return dtype.itemsize * numbers + indices


def solve_bytes(
    modules: list[TracedModule], config: InfluenceConfig, responses: int = 16, tokens: int | None = None
) -> int:
    """Response gradients of all modules, and the dense matrices of the largest solve where there is one.

    `tokens` are those of a group, which a kernel over tokens has as many lines of; None: not known.
    """
    dims = [traced.dim for traced in modules]
    gradients = 2 * 4 * responses * sum(dims)
    if config.hessian_mode == "inverse" and config.hessian_source == "token":
        return gradients + max(_token_solve(dim, config, tokens) for dim in dims)
    return gradients + (2 * 4 * max(dims) ** 2 if config.solver == "primal" else 0)


def _token_solve(dim: int, config: InfluenceConfig, tokens: int | None) -> int:
    """T x T: two products, the kernel, damped and factored, 5 at the peak. D x D: the sum and its factor."""
    if tokens is not None and use_dual(config.solver, tokens, dim):
        return 5 * 4 * tokens**2
    return 2 * 4 * dim**2
