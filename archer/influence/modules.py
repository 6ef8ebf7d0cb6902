"""Which modules are traced, and the random projections of each.

Projections of activations and gradients are the same on every device and in every run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from archer.errors import ArcherError
from archer.influence.config import PREFIX, InfluenceConfig

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
    """A linear map y = W x whose input and output gradients are captured."""

    name: str
    module: nn.Module
    project_in: AnyProjection
    project_out: AnyProjection

    @property
    def weight(self) -> nn.Parameter:
        """W, or its transpose (Conv1D)."""
        return self.module.get_parameter("weight")

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
    """Trainable linear modules that the filter names, in the model's own order.

    A module whose weight is frozen takes no step, so it is not traced: of a LoRA layer the adapters `lora_A`
    and `lora_B` are, each as a linear map of its own, and the frozen base layer is not. Weights shared with
    another module (a tied output head) are traced through the linear module only.
    """
    shapes = {
        WRAPPERS.sub("", name): (module, shape)
        for name, module in model.named_modules()
        if (shape := linear_shape(module)) is not None and module.get_parameter("weight").requires_grad
    }
    projections: dict[str, AnyProjection] = {}
    traced = []
    for name in _chosen(list(shapes), config):
        module, (d_in, d_out) = shapes[name]
        if config.projection == "none":
            traced.append(TracedModule(name, module, NoProjection(d_in), NoProjection(d_out)))
            continue
        k_in, k_out = projected_dims(
            d_in, d_out, config.projection_dim_factor, config.max_proj_vector_sum, config.max_hessian_dim
        )
        # One object for modules that may share an input, so that the capture can project it once.
        key = f"in/{input_key(name)}/{d_in}/{k_in}"
        project_in = projections.setdefault(key, Projection(key, d_in, k_in))
        traced.append(TracedModule(name, module, project_in, Projection(f"out/{name}", d_out, k_out)))
    return traced


def linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """(d_in, d_out) of modules that compute y = W x + b, None for others."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
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


def _chosen(names: list[str], config: InfluenceConfig) -> list[str]:
    entries = config.module_name_filter or ("",)
    chosen: set[str] = set()
    for entry in entries:
        matches = [name for name in names if entry in name]
        chosen.update(matches[-config.max_modules :] if config.max_modules > 0 else matches)
    if not chosen:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ArcherError(
            f"{PREFIX}.module_name_filter={','.join(entries)} names no trainable linear module; this model "
            f"has {some or 'none at all'}"
        )
    return [name for name in names if name in chosen]
