"""Which modules are traced, and the projections of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from archer.errors import ArcherError
from archer.influence.config import PREFIX, InfluenceConfig
from archer.influence.projection import AnyProjection, NoProjection, Projection, projected_dims

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
    def dim(self) -> int:
        """D = k_in * k_out, the length of a projected position gradient."""
        return self.project_in.k * self.project_out.k

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
