"""Norms, rotary angles and gated activations of a model as one kernel each, on CUDA.

Between the matrix products of a decoder layer transformers runs some 30 elementwise operations, each a pass
over memory of its own and, in mixed precision, often in float32. Here each group of them is one function that
torch.compile turns into one kernel and that hands on what the products want. A model's own part is replaced
only where a trial on random numbers gives the same result.
"""

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

RECOMPILE_LIMIT = 64
TOLERANCE = 1e-5  # of the trial, in float32


def rms_norm(
    x: Tensor,  # [n, h]
    weight: Tensor,  # [h]
    eps: float,
    dtype: torch.dtype,
) -> Tensor:  # [n, h]
    """weight * x / sqrt(mean(x^2) + eps), computed in float32, in the format of the products that follow."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight.float() * scaled).to(dtype)


def rotate(
    x: Tensor,  # [n, heads, d]
    cos: Tensor,  # [n, d]
    sin: Tensor,  # [n, d]
) -> Tensor:  # [n, heads, d]
    """x cos + (-x2, x1) sin with x = (x1, x2), in float32, in the format of x."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x.float() * cos.float()[:, None] + turned * sin.float()[:, None]).to(x.dtype)


def rotate_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of the same n positions."""
    return rotate(q, cos, sin), rotate(k, cos, sin)


def gated(
    gate: Tensor,  # [n, i]
    up: Tensor,  # [n, i]
) -> Tensor:  # [n, i]
    """silu(gate) * up, in float32, in the format of its inputs."""
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def _call(function: Callable[..., Any], *lines: Tensor, **others: Any) -> Any:
    """Run the compiled function on tensors of n lines, n being any number."""
    for tensor in lines:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return _compiled(function)(*lines, **others)


def fuse(model: PreTrainedModel) -> list[str]:
    """Replace what can be replaced in a model on CUDA; returns what was, for the log and for tests."""
    # Each is compiled anew with and without gradients, autocast and decoding: more often than is the default.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm") and _is_rms_norm(m)]
    for norm in norms:
        norm.forward = MethodType(_norm_forward, norm)
    gates = [m for m in model.modules() if type(m).__name__.endswith("MLP") and _is_gated(m)]
    for gate in gates:
        gate.forward = MethodType(_gated_forward, gate)
    done = [f"{len(norms)} norms"] if norms else []
    done += [f"{len(gates)} gated layers"] if gates else []
    return done + (["rotary angles"] if _fuse_rotation(model) else [])


def _norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
    kind = hidden_states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_states.dtype
    lines = hidden_states.reshape(-1, hidden_states.shape[-1])
    return _call(rms_norm, lines, weight=self.weight, eps=eps, dtype=dtype).view(hidden_states.shape)


def _gated_forward(self: Any, x: Tensor) -> Tensor:
    gate, up = self.gate_proj(x), self.up_proj(x)
    inside = _call(gated, gate.flatten(0, -2), up.flatten(0, -2)).view(gate.shape)
    return self.down_proj(inside)


def _rotation(original: Callable[..., Any]) -> Callable[..., Any]:
    """The fused rotation for heads in the second dimension on CUDA; all else goes to the original."""

    @functools.wraps(original)
    def rotation(
        q: Tensor,  # [B, heads, T, d]
        k: Tensor,  # [B, groups, T, d]
        cos: Tensor,  # [B or 1, T, d]
        sin: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        if args or kwargs or not q.is_cuda:
            return original(q, k, cos, sin, *args, **kwargs)
        batch, _, length, size = q.shape
        angles = (x.expand(batch, length, size).reshape(-1, size) for x in (cos, sin))
        lines = (x.transpose(1, 2).flatten(0, 1) for x in (q, k))
        turned = _call(rotate_both, *lines, *angles)
        return tuple(x.view(batch, length, -1, size).transpose(1, 2) for x in turned)

    rotation.fused = True  # type: ignore[attr-defined]
    return rotation


@torch.no_grad()
def _is_rms_norm(module: nn.Module) -> bool:
    """Whether a module computes what `rms_norm` does: some architectures scale by 1 + weight."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return False
    x = _noise(4, len(weight), device=weight.device)
    expected = module(x).float()
    return _close(expected, rms_norm(x, weight, eps, torch.float32))


@torch.no_grad()
def _is_gated(module: nn.Module) -> bool:
    """Whether a module is down(act(gate(x)) * up(x)) with silu for act, and nothing else."""
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(isinstance(getattr(module, name, None), nn.Module) for name in names):
        return False
    gate = module.get_submodule("gate_proj")  # a linear map, perhaps with an adapter around it
    width = getattr(gate, "in_features", None)
    if not isinstance(width, int):
        return False
    weight = next(gate.parameters())
    x = _noise(4, width, device=weight.device).to(weight.dtype)
    mixed = len({parameter.dtype for parameter in module.parameters()}) > 1  # adapters wider than the rest
    with torch.autocast(weight.device.type, torch.bfloat16, enabled=mixed):
        inside = gated(gate(x), module.get_submodule("up_proj")(x))
        found, expected = module.get_submodule("down_proj")(inside).float(), module(x).float()
    return _close(expected, found, torch.bfloat16 if mixed else weight.dtype)


def _fuse_rotation(model: PreTrainedModel) -> bool:
    """Replace the function that the model's file rotates with, if it is the usual one."""
    name = "apply_rotary_pos_emb"
    file = sys.modules[type(model).__module__]
    original = getattr(file, name, None)
    if original is None or not _is_usual_rotation(original):
        return False
    if not hasattr(original, "fused"):
        setattr(file, name, _rotation(original))
    return True


@torch.no_grad()
def _is_usual_rotation(original: Callable[..., Any]) -> bool:
    q, k = _noise(2, 3, 5, 8), _noise(2, 1, 5, 8)
    cos, sin = _noise(2, 5, 8), _noise(2, 5, 8) + 1
    try:
        found = original(q, k, cos, sin)
    except (TypeError, RuntimeError):  # other arguments, or another division of the head
        return False

    def lines(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    expected = rotate_both(lines(q), lines(k), cos.flatten(0, 1), sin.flatten(0, 1))
    return all(_close(lines(a), b) for a, b in zip(found, expected, strict=True))


def _noise(*shape: int, device: torch.device | str = "cpu") -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def _close(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    tolerance = max(TOLERANCE, 4 * torch.finfo(dtype).eps)
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * a.abs().max())
