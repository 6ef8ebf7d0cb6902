"""Loading of the policy, its tokenizer and the frozen reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from archer.config.model import ModelConfig
from archer.data.builtin import tiny_reasoner_path
from archer.engines.local.device import Compute
from archer.errors import ArcherError

BUILTIN = "builtin:tiny_reasoner"


def model_folder(path: str) -> str:
    """Return what `from_pretrained` is given: a folder for the built-in model, otherwise `path` itself."""
    if path == BUILTIN:
        return str(tiny_reasoner_path())
    if path.startswith("builtin:"):
        raise ArcherError(f"actor_rollout_ref.model.path={path}: the only built-in model is {BUILTIN}.")
    looks_local = path.startswith(("/", ".", "~")) or path.count("/") > 1 or Path(path).exists()
    folder = Path(path).expanduser()
    if looks_local and not folder.is_dir():
        raise ArcherError(f"actor_rollout_ref.model.path={path}: there is no such folder.")
    if looks_local and not (folder / "config.json").is_file():
        raise ArcherError(
            f"actor_rollout_ref.model.path={path} has no config.json: expected a folder written by "
            "save_pretrained, e.g. an Archer checkpoint (checkpoints/global_step_N)."
        )
    return str(folder) if looks_local else path


def load_tokenizer(config: ModelConfig) -> Any:
    """Return the tokenizer, with a chat template and a padding token."""
    path = config.tokenizer_path or config.path
    tokenizer = _load(AutoTokenizer.from_pretrained, path, trust_remote_code=config.trust_remote_code)
    if config.custom_chat_template is not None:
        tokenizer.chat_template = config.custom_chat_template
    if not tokenizer.chat_template:
        raise ArcherError(
            f"The tokenizer of {path} has no chat template, so chat messages cannot become a prompt. "
            "Set actor_rollout_ref.model.custom_chat_template, or "
            "actor_rollout_ref.model.tokenizer_path to a tokenizer that has one."
        )
    if tokenizer.eos_token_id is None:
        raise ArcherError(f"The tokenizer of {path} has no end-of-sequence token: responses could never end.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(config: ModelConfig, compute: Compute) -> PreTrainedModel:
    """Return the trainable policy: float32 weights, dropout off (log-probs must not be random)."""
    options = {"dtype": torch.float32, "trust_remote_code": config.trust_remote_code}
    model_config = _load(AutoConfig.from_pretrained, config.path, trust_remote_code=config.trust_remote_code)
    for name, value in config.override_config.items():
        setattr(model_config, name, value)
    model = _load(AutoModelForCausalLM.from_pretrained, config.path, config=model_config, **options)
    model.to(compute.device)
    if config.enable_gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # checkpointing is active in training mode only
    else:
        model.eval()
    disable_dropout(model)
    return model


def load_reference(config: ModelConfig, compute: Compute) -> PreTrainedModel:
    """Return the initial policy, never trained: the reference of KL terms."""
    model = load_policy(replace(config, enable_gradient_checkpointing=False), compute)
    model.requires_grad_(False)
    return model


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to zero: ratios of two forward passes must differ by weights alone."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif "attention_dropout" in vars(module):
            vars(module)["attention_dropout"] = 0.0


def stop_token_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that ends a response: the tokenizer's and the generation configuration's."""
    ids = {tokenizer.eos_token_id}
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    if isinstance(configured, int):
        ids.add(configured)
    elif configured is not None:
        ids.update(configured)
    return tuple(sorted(ids))


def _load(loader: Any, path: str, **options: Any) -> Any:
    folder = model_folder(path)
    try:
        return loader(folder, **options)
    except (OSError, ValueError, ImportError) as error:
        raise ArcherError(
            f"{path} could not be loaded: {str(error).splitlines()[0]} "
            "Expected a local folder or a hub id of a causal language model."
        ) from error
