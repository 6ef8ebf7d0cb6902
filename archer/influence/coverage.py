"""How much of a model is traced, and what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from archer.influence.config import PREFIX
from archer.influence.modules import (
    AN_EXPERT,
    NUMBERS,
    WRAPPERS,
    TracedModule,
    linear_shape,
    output_heads,
)

ENOUGH = 0.8
"""Share of the matrix parameters below which a warning is given."""


@dataclass(frozen=True)
class Coverage:
    """Trainable matrix parameters of a model: those traced, all that count, and what was left out.

    Attributes:
        traced: parameters of traced maps.
        total: parameters of all trainable matrices but embeddings; one that is also the output head counts,
            once.
        left_out: what is not traced, by kind -> parameters, the largest first.
        uncounted: embeddings -> parameters.
    """

    traced: int
    total: int
    left_out: dict[str, int]
    uncounted: dict[str, int]

    @property
    def share(self) -> float:
        """Of the matrix parameters, those traced."""
        return self.traced / self.total if self.total else 1.0

    def lines(self, head: bool = True) -> Iterator[str]:
        """What is said of it: the share, what is not traced, and a warning where that is much.

        head: whether the forward calls the output head at every position, so that it can be traced.
        """
        yield (
            f"coverage: {self.share:.0%} of {millions(self.total)} trainable matrix parameters (embeddings "
            "not counted)"
        )
        named = [f"{kind} {millions(size)}" for kind, size in self.left_out.items()]
        named += [f"{kind} {millions(size)} (not counted)" for kind, size in self.uncounted.items()]
        yield f"not traced: {'; '.join(named) or 'nothing'}"
        if self.share < ENOUGH:
            largest = next(iter(self.left_out))
            yield (
                f"warning: scores tell nothing of {1 - self.share:.0%} of the matrix parameters, most of "
                f"them {largest}{advice(largest, head)}"
            )


HEAD, LINEAR = "output head", "linear modules"


def advice(kind: str, head: bool) -> str:
    """How what was left out can be traced, where it can."""
    if kind.startswith(HEAD):
        if not head:
            return ", which cannot be traced here"
        name = kind.split()[-1]
        return f"; {PREFIX}.module_name_filter=[all-linear,{name}] traces it, too"
    return f"; {PREFIX}.module_name_filter=all-linear names them" if kind.startswith(LINEAR) else ""


def coverage(model: nn.Module, modules: Sequence[TracedModule]) -> Coverage:
    """Add up what is traced and what is not; a weight with several names counts once."""
    owners = {WRAPPERS.sub("", name): module for name, module in model.named_modules()}
    heads = output_heads(model)
    # A weight shared by an embedding and a linear module is the linear module's.
    linear = {
        id(module.get_parameter("weight")): name
        for name, module in owners.items()
        if linear_shape(module) is not None
    }
    traced = {id(module.weight) for module in modules}
    found, total = 0, 0
    left_out: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    fused: dict[str, dict[str, None]] = {}
    for full, weight in model.named_parameters():
        if weight.dim() < 2 or not weight.requires_grad or full.endswith("bias"):
            continue  # biases of fused experts are vectors, one for each expert
        name, _, parameter = WRAPPERS.sub("", full).rpartition(".")
        name = linear.get(id(weight), name)
        owner, layer = owners[name], NUMBERS.sub(".*", name)
        if id(weight) in traced:
            found += weight.numel()
        elif isinstance(owner, nn.Embedding):
            uncounted[f"embeddings {layer}"] += weight.numel()
            continue
        elif id(owner) in heads:
            left_out[f"{HEAD} {layer}"] += weight.numel()
        elif AN_EXPERT.search(f"{name}."):
            left_out[f"experts that are modules of their own, {layer}"] += weight.numel()
        elif id(weight) in linear:
            left_out[f"{LINEAR} {layer}"] += weight.numel()
        elif weight.dim() == 3 and "expert" in f"{name} {type(owner).__name__}".lower():
            fused.setdefault(layer, {})[parameter] = None
            left_out[layer] += weight.numel()
        else:
            left_out[f"weights of {type(owner).__name__} {layer}.{parameter}"] += weight.numel()
        total += weight.numel()
    named = {
        f"fused experts {kind} ({', '.join(fused[kind])})" if kind in fused else kind: size
        for kind, size in left_out.most_common()
    }
    return Coverage(found, total, named, dict(uncounted))


def millions(parameters: int) -> str:
    """A number of parameters as it is read."""
    return f"{parameters / 1e6:,.1f} M" if parameters >= 1e5 else f"{parameters:,}"
