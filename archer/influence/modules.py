"""Which linear maps are traced, and the random projections of each.

Projections of activations and gradients are the same on every device and in every run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from archer.errors import ArcherError
from archer.influence.config import ALL_LINEAR, PREFIX, InfluenceConfig
from archer.influence.experts import FusedExperts, fused_experts

ALIGNMENT = 8  # columns: 16 bytes of 16-bit numbers for tensor cores, a vector of float32 for a CPU


def projected_dims(
    d_in: int, d_out: int, factor: int, max_vector_sum: int, max_hessian_dim: int
) -> tuple[int, int]:
    """k = max(1, d // factor) on both sides, then the larger side shrinks, not below 1, until both caps hold.

    Caps: k_in + k_out <= max_vector_sum and k_in * k_out <= max_hessian_dim; a cap <= 0 is none.
    """
    k_in, k_out = max(1, d_in // factor), max(1, d_out // factor)
    while max(k_in, k_out) > 1 and (0 < max_vector_sum < k_in + k_out or 0 < max_hessian_dim < k_in * k_out):
        if k_in > k_out:
            k_in -= 1
        else:
            k_out -= 1
    return k_in, k_out


class Projection:
    """P = signs / sqrt(k) with independent +-1 signs, so that E[P^T P] = I whatever the shape.

    `__call__` multiplies by the signs alone and leaves `scale` = 1/sqrt(k) to the scoring: signs are exact in
    every floating-point type, a rounded 1/sqrt(k) would reweight modules against each other.
    """

    def __init__(self, key: str, d: int, k: int) -> None:
        self.key, self.d, self.k = key, d, k
        self.scale = k**-0.5
        self._cast: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """signs x: [n, d] -> [n, k], with the columns of zeros that `signs` brings."""
        return F.linear(x, self.signs(x.device, x.dtype))

    def signs(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """[k, d] of +-1, drawn on the CPU from a generator seeded by the key.

        Lines of zeros follow where that makes the product faster, see `computed_columns`.
        """
        where = (device, dtype)
        if where not in self._cast:
            generator = torch.Generator().manual_seed(stable_seed(self.key))
            bits = torch.randint(0, 2, (self.k, self.d), generator=generator, dtype=torch.int8)
            zeros = computed_columns(self.k, device, dtype) - self.k
            self._cast[where] = F.pad(2 * bits - 1, (0, 0, 0, zeros)).to(device, dtype)
        return self._cast[where]

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """P itself, [k, d] on the CPU."""
        return self.signs(torch.device("cpu"), dtype)[: self.k] * self.scale


class NoProjection:
    """P = I: the exact factors, for small models and for tests."""

    scale = 1.0

    def __init__(self, d: int) -> None:
        self.d = self.k = d

    def __call__(self, x: Tensor) -> Tensor:
        """A copy of x: keeping x itself would keep the activation alive."""
        return x.clone()

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """P itself, [d, d] on the CPU."""
        return torch.eye(self.d, dtype=dtype)


AnyProjection = Projection | NoProjection


def computed_columns(k: int, device: torch.device, dtype: torch.dtype) -> int:
    """How many columns are computed for k that are wanted.

    In 16-bit formats on CUDA other numbers than multiples of 8 take a slow, old kernel. In float32 on a CPU
    12 columns take a third longer than 16; up to 8 there is nothing to gain.
    """
    on_tensor_cores = device.type == "cuda" and dtype.itemsize == 2
    in_vectors = device.type == "cpu" and dtype == torch.float32 and k > ALIGNMENT
    return k + -k % ALIGNMENT if on_tensor_cores or in_vectors else k


def stable_seed(key: str) -> int:
    """A 63-bit seed from a text, the same in every process (Python's own hash is salted)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


# Wrappers put these into module names; without them a projection does not depend on how the model is run.
WRAPPERS = re.compile(r"(?:^|(?<=\.))(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod|module)\.")


@dataclass(frozen=True, eq=False)
class TracedModule:
    """A linear map y = W x whose input and output gradients are captured.

    Attributes:
        name: full name; of an expert in a fused weight, that of the weight and the expert's number.
        module: what holds the weight.
        project_in, project_out: P_in and P_out.
        fused: where W is one expert's slice of a weight, that weight.
        expert: the slice.
    """

    name: str
    module: nn.Module
    project_in: AnyProjection
    project_out: AnyProjection
    fused: FusedExperts | None = None
    expert: int = 0

    @property
    def weight(self) -> nn.Parameter:
        """W, or its transpose (Conv1D); of an expert, the weight of all."""
        return self.module.get_parameter("weight" if self.fused is None else self.fused.parameter)

    @property
    def k_in(self) -> int:
        """Length of v."""
        return self.project_in.k

    @property
    def k_out(self) -> int:
        """Length of u."""
        return self.project_out.k

    @property
    def dim(self) -> int:
        """D = k_in * k_out, the length of a projected position gradient."""
        return self.k_in * self.k_out

    @property
    def scale(self) -> float:
        """What the captured sign products still have to be multiplied by."""
        return self.project_in.scale * self.project_out.scale


def traced_modules(model: nn.Module, config: InfluenceConfig) -> list[TracedModule]:
    """Trainable linear maps that the filter names, in the model's own order.

    A module whose weight is frozen takes no step, so it is not traced: of a LoRA layer the adapters `lora_A`
    and `lora_B` are, each as a linear map of its own, and the frozen base layer is not. Weights shared with
    another module (a tied output head) are traced through the linear module only. Of fused experts each is a
    map of its own.
    """
    refuse_dora(model)
    maps = linear_maps(model)
    projections: dict[str, AnyProjection] = {}
    traced = []
    for name in _chosen(maps, output_heads(model), config):
        found = maps[name]
        if isinstance(found, FusedExperts):
            into, out = _projections(f"{name}.in", name, found.d_in, found.d_out, config, {})
            traced += [
                TracedModule(f"{name}.{e}", found.module, into, out, found, e) for e in range(found.count)
            ]
            continue
        d_in, d_out = linear_shape(found)  # type: ignore[misc]
        into, out = _projections(input_key(name), name, d_in, d_out, config, projections)
        traced.append(TracedModule(name, found, into, out))
    return traced


def linear_maps(model: nn.Module) -> dict[str, nn.Module | FusedExperts]:
    """Everything in the model that can be traced, by name: trainable linear modules and fused experts.

    An expert that is a module of its own runs on a part of the tokens, which hooks cannot tell: left out.
    """
    found: dict[str, nn.Module | FusedExperts] = {}
    for full, module in model.named_modules():
        name = WRAPPERS.sub("", full)
        if linear_shape(module) is not None:
            if module.get_parameter("weight").requires_grad and not AN_EXPERT.search(name):
                found[name] = module
        else:
            found |= {fused.name: fused for fused in fused_experts(name, module)}
    return found


def _projections(
    key_in: str,
    name: str,
    d_in: int,
    d_out: int,
    config: InfluenceConfig,
    shared: dict[str, AnyProjection],
) -> tuple[AnyProjection, AnyProjection]:
    """(P_in, P_out); one object P_in for modules that may share an input, so that it is projected once."""
    if config.projection == "none":
        return NoProjection(d_in), NoProjection(d_out)
    k_in, k_out = projected_dims(
        d_in, d_out, config.projection_dim_factor, config.max_proj_vector_sum, config.max_hessian_dim
    )
    key = f"in/{key_in}/{d_in}/{k_in}"
    project_in = shared.setdefault(key, Projection(key, d_in, k_in))
    return project_in, Projection(f"out/{name}", d_out, k_out)


AN_EXPERT = re.compile(r"(?:^|\.)experts\.\d+(?:\.|$)")


def output_heads(model: nn.Module) -> set[int]:
    """Identities of the modules that turn hidden states into logits."""
    heads: set[int] = set()
    module: Any
    for module in model.modules():
        if hasattr(module, "get_output_embeddings"):
            head = module.get_output_embeddings()
            heads |= set() if head is None else {id(inside) for inside in head.modules()}
    return heads


def refuse_dora(model: nn.Module) -> None:
    """DoRA's layers multiply A and B by more than their input, so that neither is a linear map of it."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_magnitude_vector") and len(module.lora_magnitude_vector) > 0:
            raise ArcherError(
                f"{WRAPPERS.sub('', name)} has DoRA adapters (use_dora=True), whose output depends on A and "
                "B through the norm of the whole weight, too: no gradient of a token is an outer product "
                "there. Train plain LoRA (use_dora=False), or set trainer.influence_trace.enable=False"
            )


def linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """(d_in, d_out) of modules that compute y = W x + b, None for others.

    A subclass of nn.Linear with a forward of its own is one only if its name says so: Llama 4's router
    returns scores beside its logits.
    """
    if isinstance(module, nn.Linear):
        own = type(module).forward is not nn.Linear.forward and "Linear" not in type(module).__name__
        return None if own else (module.in_features, module.out_features)
    if type(module).__name__ == "Conv1D" and module.get_parameter("weight").dim() == 2:
        # GPT-2's linear layer in transformers: the weight is [d_in, d_out].
        d_in, d_out = module.get_parameter("weight").shape
        return d_in, d_out
    return None


def input_key(name: str) -> str:
    """What modules with a common input have in common: their parent's name.

    `layers.0.self_attn.q_proj` -> `layers.0.self_attn`, and the same for k_proj and v_proj; LoRA's
    `layers.0.self_attn.q_proj.lora_A.default` -> `layers.0.self_attn.lora_A.default`.
    """
    stem, lora, adapter = name.partition(".lora_")
    return stem.rpartition(".")[0] + lora + adapter


def _chosen(maps: dict[str, nn.Module | FusedExperts], heads: set[int], config: InfluenceConfig) -> list[str]:
    names = list(maps)
    entries = config.module_name_filter or ("",)
    chosen: set[str] = set()
    for entry in entries:
        if entry != ALL_LINEAR:
            kinds = {entry: [name for name in names if entry in name]}
        else:
            kinds = {}
            for name in names:
                if id(maps[name]) not in heads:
                    kinds.setdefault(NUMBERS.sub(".*", name), []).append(name)
        for matches in kinds.values():
            chosen.update(matches[-config.max_modules :] if config.max_modules > 0 else matches)
    if not chosen:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ArcherError(
            f"{PREFIX}.module_name_filter={','.join(entries)} names no trainable linear module; this model "
            f"has {some or 'none at all'}"
        )
    return [name for name in names if name in chosen]


NUMBERS = re.compile(r"\.\d+(?=\.|$)")
"""Of layers and experts, in names."""
