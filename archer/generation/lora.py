"""LoRA: small trainable matrices beside frozen linear maps, and the plain weights that both amount to.

    y = W x + s B A x,    W frozen [d_out, d_in],  A [r, d_in],  B [d_out, r],  s = lora_alpha / r

PEFT puts the adapters into the Hugging Face model in place, so the policy stays what it was to everything
else: its head, its layers, its hooks. Responses are sampled by a plain model with the weights W + s B A,
which are made anew from W after every update: nothing is ever added to a sum that was rounded before.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from archer.errors import ArcherError, install_hint
from archer.generation.batch import MicroBatch
from archer.generation.config import ModelConfig, module_pattern
from archer.generation.device import Compute
from archer.generation.model import SamplingWeights, narrow
from archer.generation.policy import Policy, TokenStats
from archer.influence.head import HeadSketch
from archer.influence.modules import linear_shape

ADAPTER = "default"  # PEFT's name for the only adapter of a model
KEY = "actor_rollout_ref.model"
SAMPLED = 1024  # values of a tensor that the digest looks at
UNFIT = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters"),
    "layer_replication",
)
"""Fields of PEFT's configuration that make more of an adapter than A and B beside linear maps."""


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ArcherError(f"{KEY}.lora_rank needs peft: {install_hint('lora')}.") from error
    return peft


def lora_config(model: ModelConfig) -> Any:
    """Return PEFT's configuration of the adapters that the settings ask for; dropout is always 0."""
    return _peft().LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=module_pattern(model.target_modules),
        exclude_modules=module_pattern(model.exclude_modules),
        bias="none",
        task_type="CAUSAL_LM",
    )


def read_lora_config(folder: Path) -> Any:
    """Return the configuration of a saved adapter; one that a plain model could not take in is refused."""
    peft = _peft()
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ArcherError(
            f"{folder}/adapter_config.json cannot be read ({str(error).splitlines()[0]}). Expected a LoRA "
            "adapter as PEFT's save_pretrained writes it: copy it again."
        ) from error
    if not isinstance(config, peft.LoraConfig):
        raise ArcherError(f"{folder} holds an adapter of type {config.peft_type.value}; expected LORA.")
    unfit = [name for name in UNFIT if getattr(config, name, None)]
    unfit += ["bias"] if config.bias != "none" else []
    if unfit:
        raise ArcherError(
            f"{folder}/adapter_config.json sets {', '.join(unfit)}: engine=local trains plain LoRA on linear "
            "layers only. Merge that adapter into its model with PEFT and train the result."
        )
    config.inference_mode, config.lora_dropout = False, 0.0
    config.init_lora_weights = True  # other ways change the model's own weights, for a new adapter only
    return config


@dataclass(frozen=True)
class Adapters:
    """The adapters inside a model; everything else of the model is frozen."""

    model: PreTrainedModel
    config: Any  # peft.LoraConfig
    layers: Mapping[str, Any]  # PEFT's layer, by the name of the linear module that it stands around
    base_digest: str  # of the frozen weights as they were loaded

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """A and B of every layer, by the names that PEFT's files have."""
        return {
            f"base_model.model.{name}.{part}.weight": getattr(layer, part)[ADAPTER].weight
            for name, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }

    @torch.no_grad()
    def merged(self, name: str) -> Tensor:
        """W + s B A of one layer, in float32 (float64 where the weights are)."""
        layer = self.layers[name]
        weight = layer.base_layer.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        return weight.to(wide) + layer.get_delta_weight(ADAPTER).to(wide)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of every parameter of the plain model, merged where there are adapters."""
        adapters = {id(parameter) for parameter in self.named_parameters().values()}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in adapters:
                continue
            owner, _, kind = name.rpartition(".")
            layer = owner.removesuffix(".base_layer")
            if kind == "weight" and layer in self.layers:
                yield f"{layer}.weight", self.merged(layer)
            else:
                yield f"{layer}.{kind}", parameter.detach()

    def plain_copy(self, compute: Compute) -> PreTrainedModel:
        """Return a model without adapters for sampling, whose weights are yet to be merged.

        Frozen weights that need no conversion are not copied: both models have the same ones.
        """
        adapted = {id(layer.base_layer.weight) for layer in self.layers.values()}
        shared = {
            id(p): p
            for p in self.model.parameters()
            if not p.requires_grad and p.dtype == compute.dtype and id(p) not in adapted
        }
        plain = copy.deepcopy(self.model, shared)
        _unwrap(plain, self.layers)
        narrow(plain, compute)
        return plain

    def merge(self) -> PreTrainedModel:
        """Turn the model itself into a plain one with merged weights; the adapters are gone then."""
        for name, layer in self.layers.items():
            layer.base_layer.weight.data = self.merged(name)
        _unwrap(self.model, self.layers)
        return self.model

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, the model is the one that training began from."""
        for layer in self.layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.enable_adapters(True)


def _unwrap(model: PreTrainedModel, names: Mapping[str, Any]) -> None:
    for name in names:
        model.set_submodule(name, model.get_submodule(name).base_layer)
    del model.peft_config


def attach(model: PreTrainedModel, config: Any) -> Adapters:
    """Freeze a model and put adapters into it: A random, B zero, so that it computes what it did before.

    Inside a model without weights (on the meta device) they have none either.
    """
    laid_out = next(model.parameters()).is_meta
    linears = {name for name, module in model.named_modules() if linear_shape(module) is not None}
    base = "" if laid_out else base_digest(model)
    wanted, unwanted = config.target_modules, config.exclude_modules
    try:
        _peft().inject_adapter_in_model(config, model, low_cpu_mem_usage=laid_out)
    except ValueError as error:
        raise _nothing_to_adapt("target_modules", wanted, linears, str(error).splitlines()[0]) from error
    kind = _peft().tuners.lora.LoraLayer
    layers = {name: module for name, module in model.named_modules() if isinstance(module, kind)}
    for setting, entries, names in (
        ("target_modules", wanted, set(layers)),
        ("exclude_modules", unwanted, linears),
    ):
        for entry in entries if isinstance(entries, list | set) else ():
            if not any(name == entry or name.endswith(f".{entry}") for name in names):
                raise _nothing_to_adapt(setting, entries, linears, f"no module is called {entry}")
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    for name, layer in layers.items():
        inside = layer.base_layer
        if linear_shape(inside) is None or layer.lora_variant:
            raise ArcherError(
                f"{KEY}.target_modules names {name}, a {type(inside).__name__}: engine=local trains plain "
                f"LoRA on linear layers only. Name some of these: {_ends(linears)}."
            )
        if id(inside.weight) in embeddings:
            raise ArcherError(
                f"{KEY}.target_modules names {name}, whose weights are those of the input embeddings "
                "(tie_word_embeddings): an adapter there cannot be merged. Leave it out."
            )
        layer.cast_input_dtype_enabled = False  # autocast converts what a product needs, once
    return Adapters(model, config, layers, base)


def _nothing_to_adapt(setting: str, entries: Any, linears: set[str], reason: str) -> ArcherError:
    shown = entries if isinstance(entries, str) else f"[{', '.join(sorted(entries or ()))}]"
    return ArcherError(
        f"{KEY}.{setting}={shown}: {reason.rstrip('.')}. This model has linear modules {_ends(linears)}; or "
        "set all-linear."
    )


def _ends(names: set[str]) -> str:
    return ", ".join(sorted({name.rpartition(".")[2] for name in names})) or "none"


def narrow_frozen(model: nn.Module, compute: Compute) -> None:
    """Keep frozen weights of linear layers in the format that products convert them to anyway.

    So no result changes; embeddings and norms stay float32, and with them the sums between layers.
    """
    elsewhere = {
        id(p) for m in model.modules() if not isinstance(m, nn.Linear) for p in m.parameters(recurse=False)
    }
    for module in model.modules():
        for parameter in module.parameters(recurse=False) if isinstance(module, nn.Linear) else ():
            if not parameter.requires_grad and id(parameter) not in elsewhere:
                parameter.data = parameter.data.to(compute.dtype)


@torch.no_grad()
def base_digest(model: nn.Module) -> str:
    """SHA-256 over evenly spread values of every parameter: whether a model is the one an adapter was for."""
    state = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.flatten()[:: max(1, parameter.numel() // SAMPLED)]
        state.update(f"{name} {tuple(parameter.shape)}".encode())
        state.update(values.float().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()


class MergedWeights(SamplingWeights):
    """A plain model that samples what the adapted policy would."""

    def __init__(self, adapters: Adapters, compute: Compute) -> None:
        super().__init__(adapters.model, compute)
        self._adapters = adapters

    def _make(self) -> PreTrainedModel:
        plain = self._adapters.plain_copy(self._compute)
        self._merge_into(plain)
        return plain

    def refresh(self) -> None:
        """Merge the adapters as they are now."""
        if self._made:
            self._merge_into(self.model)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of the plain model, as Hugging Face names them, merged one at a time."""
        for name, tensor in self._adapters.named_weights():
            yield name, tensor.to(self._compute.dtype)

    @torch.no_grad()
    def _merge_into(self, plain: PreTrainedModel) -> None:
        for name in self._adapters.layers:
            plain.get_submodule(name).get_parameter("weight").copy_(self._adapters.merged(name))


class BasePolicy(Policy):
    """The reference of KL terms: the policy with its adapters switched off, for no memory at all."""

    def __init__(self, adapters: Adapters, compute: Compute, temperature: float) -> None:
        super().__init__(adapters.model, compute, temperature)
        self._adapters = adapters

    def token_stats(
        self, batch: MicroBatch, entropy_grad: bool = False, sketch: HeadSketch | None = None
    ) -> TokenStats:
        """Run the frozen model on a micro-batch; there is nothing that a gradient could flow to."""
        with self._adapters.disabled(), torch.no_grad():
            return super().token_stats(batch, entropy_grad, sketch)
