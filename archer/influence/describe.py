"""What is traced and what it costs, in words."""

from __future__ import annotations

import re

import torch

from archer.influence.block import chunk_elements
from archer.influence.config import InfluenceConfig
from archer.influence.modules import TracedModule

MIB = 1 << 20


def describe(
    modules: list[TracedModule], config: InfluenceConfig, dtype: torch.dtype, device: torch.device
) -> str:
    """A table of the traced modules, layers of one shape together, and the peak memory estimate.

    Args:
        modules: what is traced.
        config: the knobs.
        dtype: what factors are stored in.
        device: where scores are computed.
    """
    kinds: dict[tuple[str, int, int, int, int], int] = {}
    for traced in modules:
        name = re.sub(r"\.\d+\.", ".*.", traced.name)
        sides = (traced.project_in.d, traced.project_in.k, traced.project_out.d, traced.project_out.k)
        kinds[name, *sides] = kinds.get((name, *sides), 0) + 1
    lines = [f"influence: {len(modules)} linear modules traced"]
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
    """Storage of u and v of all modules; an input that several modules share is stored once."""
    inputs = {id(traced.project_in): traced.project_in.k for traced in modules}
    return dtype.itemsize * (sum(inputs.values()) + sum(traced.project_out.k for traced in modules))


def solve_bytes(modules: list[TracedModule], config: InfluenceConfig, responses: int = 16) -> int:
    """Response gradients of all modules, and the D x D matrix with its factor where there is one."""
    dims = [traced.dim for traced in modules]
    gradients = 2 * 4 * responses * sum(dims)
    of_tokens = config.hessian_source == "token" and config.hessian_mode == "inverse"
    dense = config.solver == "primal" or of_tokens
    return gradients + (2 * 4 * max(dims) ** 2 if dense else 0)
