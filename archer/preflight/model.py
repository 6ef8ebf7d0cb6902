"""The model of a run, known from its configuration alone: parameters are counted on the meta device."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch
from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import nn
from transformers import AutoModelForCausalLM

from archer.errors import ArcherError
from archer.generation.adapter_files import adapter_source, chosen_config
from archer.generation.config import ModelConfig
from archer.generation.lora import attach
from archer.generation.model import load_model_config, model_folder
from archer.influence.modules import linear_shape
from archer.preflight.report import Finding, note, ok, problem

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True)
class ModelShape:
    """The sizes that memory depends on."""

    parameters: int
    layers: int
    hidden: int
    query: int  # heads x head size
    key_value: int  # key-value heads x head size
    intermediate: int
    vocabulary: int


@dataclass(frozen=True)
class AdapterShape:
    """What LoRA adds to a model and what it leaves alone, in numbers of parameters."""

    trained: int  # A and B of all layers
    adapted: int  # frozen weights that have an adapter
    linear: int  # frozen weights and biases of all linear layers
    inner: int  # sum of the ranks: what the layers keep of a token, A x


@dataclass(frozen=True)
class ModelFacts:
    """A model without its weights."""

    name: str
    config: Any
    skeleton: nn.Module  # on the meta device
    shape: ModelShape  # without adapters
    adapters: AdapterShape | None = None


def read_model(config: ModelConfig) -> ModelFacts:
    """Read the model's configuration, from its folder or the hub, and lay it out without weights."""
    check_hub(config.path)
    model_config = load_model_config(config)
    try:
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(
                model_config, trust_remote_code=config.trust_remote_code
            )
    except ValueError as error:
        raise ArcherError(
            f"{config.path} ({model_config.model_type}) is no causal language model that transformers knows: "
            f"{str(error).splitlines()[0]}"
        ) from error
    facts = ModelFacts(config.path, model_config, skeleton, shape_of(model_config, skeleton))
    return with_adapters(facts, config) if config.lora_rank > 0 else facts


def with_adapters(facts: ModelFacts, config: ModelConfig) -> ModelFacts:
    """Return the model with the adapters that it would be trained with."""
    skeleton: Any = copy.deepcopy(facts.skeleton)
    adapters = attach(skeleton, chosen_config(config, adapter_source(config, None)))
    pairs = adapters.named_parameters()
    embeddings = {id(p) for m in skeleton.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    frozen = {
        id(p): p.numel()
        for m in skeleton.modules()
        if isinstance(m, nn.Linear)
        for p in m.parameters()
        if not p.requires_grad and id(p) not in embeddings
    }
    shape = AdapterShape(
        trained=sum(p.numel() for p in pairs.values()),
        adapted=sum(layer.base_layer.weight.numel() for layer in adapters.layers.values()),
        linear=sum(frozen.values()),
        inner=sum(p.shape[0] for name, p in pairs.items() if ".lora_A." in name),
    )
    return replace(facts, skeleton=skeleton, adapters=shape)


def shape_of(config: Any, skeleton: nn.Module) -> ModelShape:
    """Return the sizes of a decoder.

    Widths that configurations name differently are read off the layers: the widest linear map beside the
    output head is the feed-forward layer's.
    """
    text = config.get_text_config()
    head = skeleton.get_output_embeddings()  # type: ignore[operator]
    widths = [max(shape) for m in skeleton.modules() if m is not head and (shape := linear_shape(m))]
    heads = text.num_attention_heads
    # Architectures without grouped queries have no such field; the others may leave it empty.
    kv_heads = (text.num_key_value_heads if hasattr(text, "num_key_value_heads") else None) or heads
    head_size = (text.head_dim if hasattr(text, "head_dim") else None) or text.hidden_size // heads
    return ModelShape(
        parameters=sum(p.numel() for p in skeleton.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        query=heads * head_size,
        key_value=kv_heads * head_size,
        intermediate=max(widths, default=text.hidden_size),
        vocabulary=text.vocab_size,
    )


def check_hub(path: str) -> None:
    """Refuse a hub id that is neither in the cache nor to be had, after seconds instead of many retries."""
    try:
        if Path(model_folder(path)).is_dir() or try_to_load_from_cache(path, "config.json") is not None:
            return
    except HFValidationError as error:
        raise ArcherError(
            f"actor_rollout_ref.model.path={path} is neither a folder here nor the id of a model on the hub."
        ) from error
    reason = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            httpx.head(constants.ENDPOINT, timeout=5.0, follow_redirects=True)
            return
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
    raise ArcherError(
        f"Model {path} is no folder here and not in the hub's cache, and the hub at {constants.ENDPOINT} "
        f"cannot be reached ({reason}). Fetch it where there is a network (`hf download {path} --local-dir "
        f"models/{Path(path).name}`) and set actor_rollout_ref.model.path to that folder."
    )


def check_weights(facts: ModelFacts) -> Finding:
    """Find out whether the weights are here, in the hub's cache, or yet to be downloaded."""
    folder = Path(model_folder(facts.name))
    size = f"{facts.shape.parameters / 1e6:,.1f} M parameters"
    if folder.is_dir():
        if any((folder / name).is_file() for name in WEIGHT_FILES):
            return ok("weights", f"{size} in {facts.name}")
        return problem(
            "weights",
            f"{facts.name} has a config.json but no weights.",
            f"Expected {WEIGHT_FILES[0]} or its shards with {WEIGHT_FILES[1]} beside it.",
        )
    if any(isinstance(try_to_load_from_cache(facts.name, name), str) for name in WEIGHT_FILES):
        return ok("weights", f"{size} in the hub's cache")
    return note("weights", f"{size}, to be downloaded from the hub at the start")
