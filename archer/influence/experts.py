"""Experts whose weights are fused into one parameter [experts, ., .]: which there are, and their products.

transformers keeps the experts of a layer in one module with `gate_up_proj` and `down_proj`, and computes them
in one of several ways (`experts_implementation`: a loop, batched or grouped products). `ExpertProducts`
changes none of them: it watches the products with a fused weight while the module runs, and tells of each
line which token it belongs to and which expert it met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from archer.errors import ArcherError


@dataclass(frozen=True, eq=False)
class FusedExperts:
    """One weight of all experts of a layer: E linear maps of one shape.

    Attributes:
        name: full name of the parameter.
        module: the experts' module.
        parameter: its name there, e.g. `gate_up_proj`.
        count: E.
        d_in, d_out: shape of each map.
        slots: experts that a token is sent to, as the configuration says; E where it does not.
    """

    name: str
    module: nn.Module
    parameter: str
    count: int
    d_in: int
    d_out: int
    slots: int


def fused_experts(name: str, module: nn.Module) -> Iterator[FusedExperts]:
    """The trainable fused weights of a module, where it is one that can be watched."""
    transposed = transposed_weights(module)
    if transposed is None:
        return
    for parameter, weight in module.named_parameters(recurse=False):
        if weight.dim() != 3 or not weight.requires_grad:
            continue
        count, rows, columns = weight.shape
        d_in, d_out = (rows, columns) if transposed else (columns, rows)
        yield FusedExperts(
            f"{name}.{parameter}", module, parameter, count, d_in, d_out, _slots(module, count)
        )


def transposed_weights(module: nn.Module) -> bool | None:
    """Whether weights are [E, d_in, d_out] rather than [E, d_out, d_in]; None: no experts that are known."""
    if takes_every_token(module):
        return True
    if hasattr(module, "is_transposed") and hasattr(module, "has_gate"):  # transformers' experts
        return bool(module.is_transposed)
    return None


def takes_every_token(module: nn.Module) -> bool:
    """Whether experts are given every token, one expert after the other: [E * T, d], zero where not sent."""
    return type(module).__name__ == "Llama4TextExperts"


def _slots(module: Any, count: int) -> int:
    if hasattr(module, "config") and hasattr(module.config, "num_experts_per_tok"):
        return min(count, int(module.config.num_experts_per_tok))
    return count


@dataclass(frozen=True, eq=False)
class Product:
    """One product with a fused weight, P lines.

    Attributes:
        parameter: which weight.
        token: int64 [P], the line of the module's input that each belongs to.
        expert: int64 [P].
        x: [P, d_in].
        y: the result as the model goes on with it.
        lines: turns a tensor like y into [P, d_out].
    """

    parameter: str
    token: Tensor
    expert: Tensor
    x: Tensor
    y: Tensor
    lines: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class _Weight:
    """A fused weight, or what was taken out of it: one expert's slice, or one slice for each line."""

    parameter: str
    expert: Tensor | int | None = None


PRODUCTS = frozenset({"linear", "matmul", "__matmul__", "mm", "bmm", "_grouped_mm", "grouped_mm"})
PRODUCTS |= {"grouped_mm_fallback"}
SAME = frozenset({"transpose", "permute", "t", "contiguous", "to", "type_as", "clone", "__get__"})
ALIASES = frozenset({"view", "reshape", "flatten", "contiguous", "to"})


class ExpertProducts(TorchFunctionMode):
    """Active while an experts' module runs: hands each product with one of its fused weights to `watch`.

    What is known of a line comes from how the module gathers it: `hidden[token]`, or every token repeated
    once for each of its experts; and from how its weight was chosen: `W[expert]`, or offsets of a grouped
    product.
    """

    def __init__(
        self, module: nn.Module, parameters: list[str], hidden: Tensor, watch: Callable[[Product], None]
    ) -> None:
        super().__init__()
        self.hidden = WeakTensorKeyDictionary({hidden: True})
        self.tokens = hidden.numel() // hidden.shape[-1]
        self.watch = watch
        self.token: Tensor | None = None  # of the lines gathered last
        self.weights = WeakTensorKeyDictionary(
            {module.get_parameter(name): _Weight(name) for name in parameters}
        )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__ if hasattr(func, "__name__") else ""
        if name in PRODUCTS:
            self._product(name, args, kwargs or {}, out)
        elif isinstance(out, Tensor) and args and isinstance(args[0], Tensor):
            self._follow(name, args[0], args[1:], out)
        return out

    def _follow(self, name: str, owner: Tensor, rest: tuple[Any, ...], out: Tensor) -> None:
        """Note what a tensor is that was made of a weight or of the module's input."""
        if owner in self.weights:
            of = self.weights[owner]
            if name == "__getitem__" and of.expert is None and isinstance(rest[0], Tensor | int):
                self.weights[out] = _Weight(of.parameter, rest[0])
            elif name in SAME and out.numel() == owner.numel():
                self.weights[out] = of
        elif owner in self.hidden:
            if name == "__getitem__" and isinstance(rest[0], Tensor) and rest[0].dim() == 1:
                self.token = rest[0]
            elif name == "repeat_interleave":
                each = out.shape[0] // self.tokens
                self.token = torch.arange(self.tokens, device=out.device).repeat_interleave(each)
            elif name in ALIASES and out.shape[-1] == owner.shape[-1]:
                self.hidden[out] = True

    def _product(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor) -> None:
        side = next((i for i, a in enumerate(args[:2]) if isinstance(a, Tensor) and a in self.weights), None)
        if side is None:
            return
        of, x = self.weights[args[side]], args[1 - side]
        if of.expert is None and name == "bmm":
            self.watch(_dense(of.parameter, x, y))
            return
        width = max(x.shape[1:]) if x.dim() == 3 else x.shape[-1]
        x = x.reshape(-1, width)
        if self.token is None or len(self.token) != len(x):
            raise ArcherError(
                f"{of.parameter} of fused experts was multiplied by {len(x)} lines whose tokens are not "
                "known: these experts cannot be traced; name other modules in "
                "trainer.influence_trace.module_name_filter"
            )
        if of.expert is None:
            ends = kwargs["offs"] if "offs" in kwargs else args[2]
            expert = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)
        elif isinstance(of.expert, Tensor):
            expert = of.expert.expand(len(x))
        else:
            expert = torch.full((len(x),), of.expert, device=x.device)
        width_out = y.numel() // max(1, len(x))
        self.watch(Product(of.parameter, self.token, expert, x, y, lambda g: g.reshape(-1, width_out)))


def _dense(parameter: str, x: Tensor, y: Tensor) -> Product:
    """Every token at every expert, x [E, T, d_in]: a token that is not sent to an expert is zero there.

    Only as many experts of each token are kept as some token has that are not zero.
    """
    E, T, _ = x.shape
    active = (x.detach() != 0).any(-1)
    slots = max(1, int(active.sum(0).max()))
    expert = active.int().topk(slots, dim=0).indices  # [slots, T]
    token = torch.arange(T, device=x.device).expand(slots, T)
    return Product(
        parameter, token.flatten(), expert.flatten(), x[expert, token].flatten(0, 1), y,
        lambda g: g.view(E, T, -1)[expert, token].flatten(0, 1),
    )  # fmt: skip
