"""Loading of the policy, its tokenizer and the frozen reference."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.generation.config import ModelConfig
from archer.generation.device import Compute
from archer.generation.fused import fuse
from archer.generation.grouped import use_grouped_attention
from archer.generation.packed import NAME, can_pack, is_packed, use_packed_attention

BUILTIN = "builtin:tiny_reasoner"
ADAPTER_FOLDER = "lora_adapter"  # of a checkpoint, as verl calls it


def model_folder(path: str) -> str:
    """Return what `from_pretrained` is given for a model: a folder that holds one, or a hub id as it is."""
    folder = _local_folder(path, "actor_rollout_ref.model.path")
    if folder is None:
        return path
    if not (folder / "config.json").is_file():
        if (folder / ADAPTER_FOLDER).is_dir():
            raise ArcherError(
                f"actor_rollout_ref.model.path={path} holds a LoRA adapter, not a whole model. Set it to the "
                f"adapter's base model and actor_rollout_ref.model.lora_adapter_path={path}, or merge both: "
                f"archer export-model {path} OUT."
            )
        raise ArcherError(
            f"actor_rollout_ref.model.path={path} has no config.json: expected a folder written by "
            "save_pretrained, e.g. an Archer checkpoint (checkpoints/global_step_N)."
        )
    return str(folder)


def tokenizer_folder(config: ModelConfig) -> str:
    """Return what `from_pretrained` is given for the tokenizer: the model's folder, or one of its own."""
    if config.tokenizer_path is None:
        return model_folder(config.path)
    folder = _local_folder(config.tokenizer_path, "actor_rollout_ref.model.tokenizer_path")
    return config.tokenizer_path if folder is None else str(folder)


def load_tokenizer(config: ModelConfig) -> Any:
    """Return the tokenizer, with a chat template and a padding token."""
    path = config.tokenizer_path or config.path
    tokenizer = _load(
        AutoTokenizer, path, tokenizer_folder(config), trust_remote_code=config.trust_remote_code
    )
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


def read_tokenizer(folder: str) -> Any:
    """Return the tokenizer of a model's folder as it is, for reading texts; no code of the folder is run."""
    if not Path(folder).is_dir():
        raise ArcherError(f"{folder} is not a folder; expected that of a model, with its tokenizer files.")
    return _load(AutoTokenizer, folder, folder, trust_remote_code=False)


def load_policy(config: ModelConfig, compute: Compute, exact: bool = False) -> PreTrainedModel:
    """Return the trainable policy: float32 weights, dropout off (log-probs must not be random)."""
    return set_up_policy(load_weights(config, exact), config, compute)


def load_weights(config: ModelConfig, exact: bool = False) -> PreTrainedModel:
    """Return the model in float32, in main memory.

    A tensor that the files lack is an error: it would be random. `exact`: so is one that the model lacks, as
    in a checkpoint of another model.
    """
    options = {"dtype": torch.float32, "trust_remote_code": config.trust_remote_code}
    model_config = load_model_config(config)
    folder = model_folder(config.path)
    model, loaded = _load(
        AutoModelForCausalLM, config.path, folder, config=model_config, output_loading_info=True, **options
    )
    _check_tensors(model, loaded, config.path, exact)
    return model


def set_up_policy(model: PreTrainedModel, config: ModelConfig, compute: Compute) -> PreTrainedModel:
    """Bring a model to its device and make its forward passes repeatable."""
    model.to(compute.device)
    set_gradient_checkpointing(model, bool(config.enable_gradient_checkpointing))
    disable_dropout(model)
    _repair_generation_config(model)
    prepare_for_cuda(model, compute)
    return model


def set_gradient_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Compute activations again in the backward pass, or keep them."""
    if on:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # checkpointing is active in training mode only
    else:
        model.gradient_checkpointing_disable()
        model.eval()


def prepare_for_cuda(model: PreTrainedModel, compute: Compute) -> None:
    """Let sequences go without padding and fuse what can be fused, where the GPU's 16-bit kernels allow."""
    if compute.device.type != "cuda" or not compute.mixed or not can_pack(model):
        return
    if not is_packed(model):  # flash-attention's own package, where it was asked for, packs as well
        use_packed_attention(model)
    fuse(model)


def _check_tensors(model: PreTrainedModel, loaded: dict[str, Any], path: str, exact: bool) -> None:
    """Refuse weights that are not the model's: missing, of another shape, surplus or not finite."""
    parameters = dict(model.named_parameters())
    problems = {
        "lack {} of its tensors, which would be random": [
            k for k in loaded["missing_keys"] if k in parameters
        ],
        "have {} tensors of another shape": [item[0] for item in loaded["mismatched_keys"]],
        "have {} tensors that the model does not have": list(loaded["unexpected_keys"]) if exact else [],
        "have NaN or infinite values in {} tensors": list(not_finite(model)),
    }
    for problem, names in problems.items():
        if names:
            raise ArcherError(
                f"{path}: its weights {problem.format(len(names))}, e.g. {min(names)}. config.json and the "
                "weights do not belong together, or one is damaged: copy or download the model again."
            )


def not_finite(model: torch.nn.Module) -> Iterator[str]:
    """Yield the names of parameters with values that are not finite; one look at the device for all."""
    named = [(name, p.detach()) for name, p in model.named_parameters() if p.numel()]
    largest = torch._foreach_norm([p for _, p in named], ord=torch.inf)
    finite = torch.stack([value.float() for value in largest]).isfinite().tolist()
    yield from (name for (name, _), good in zip(named, finite, strict=True) if not good)


def _repair_generation_config(model: PreTrainedModel) -> None:
    """Keep only the token ids of a generation configuration that could be read but not be saved again."""
    config = model.generation_config
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )


def load_reference(config: ModelConfig, compute: Compute) -> PreTrainedModel:
    """Return the initial policy, never trained: the reference of KL terms."""
    model = load_policy(replace(config, enable_gradient_checkpointing=False), compute)
    model.requires_grad_(False)
    return model


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to zero: ratios of two forward passes must differ by weights alone.

    Architectures keep it in dropout modules (as `p`) or in numbers of their own layers, such as
    `attention_dropout`, `hidden_dropout` or `layerdrop`.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                vars(module)[name] = 0.0


def stop_token_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that ends a response: the tokenizer's and the generation configuration's."""
    ids = {tokenizer.eos_token_id}
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids.update(configured if isinstance(configured, list | tuple) else [configured])
    known = model.get_input_embeddings().weight.shape[0]
    usable = sorted(i for i in ids if isinstance(i, int) and 0 <= i < known)
    if not usable:
        raise ArcherError(
            f"No token that ends a response ({sorted(map(str, ids))}) is one of the model's {known}: "
            "responses could never end. The tokenizer is not the model's; check "
            "actor_rollout_ref.model.tokenizer_path."
        )
    return tuple(usable)


def load_model_config(config: ModelConfig) -> Any:
    """Return the model's configuration with the user's changes; a field that it does not have is an error."""
    model_config, unknown = _load(
        AutoConfig,
        config.path,
        model_folder(config.path),
        trust_remote_code=config.trust_remote_code,
        return_unused_kwargs=True,
        **config.override_config,
    )
    if unknown:
        raise ArcherError(
            f"actor_rollout_ref.model.override_config: the configuration of {config.path} "
            f"({model_config.model_type}) has no field {', '.join(unknown)}. "
            f"Its fields are listed in {config.path}/config.json."
        )
    return model_config


SHAPE_FIELDS = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "tie_word_embeddings"),
)


def check_same_model(config: ModelConfig, source: ModelConfig) -> None:
    """Refuse to resume from the checkpoint `source` of another model than the run's."""
    ours, theirs = load_model_config(config).get_text_config(), load_model_config(source).get_text_config()
    for name in SHAPE_FIELDS:
        here, there = getattr(ours, name, None), getattr(theirs, name, None)
        if here != there:
            raise ArcherError(
                f"{source.path} is a checkpoint of another model: its {name} is {there}, that of "
                f"{config.path} is {here}. Resume with the model it began with, or begin a new run."
            )


def _local_folder(path: str, key: str) -> Path | None:
    """Return the folder that `path` names, or None for a hub id; `key` is what an error points at."""
    if path == BUILTIN:
        return tiny_reasoner_path()
    if path.startswith("builtin:"):
        raise ArcherError(f"{key}={path}: the only built-in model is {BUILTIN}.")
    folder = Path(path).expanduser()
    looks_local = path.startswith(("/", ".", "~")) or path.count("/") > 1 or folder.exists()
    if looks_local and not folder.is_dir():
        raise ArcherError(f"{key}={path}: there is no such folder.")
    return folder if looks_local else None


def _load(kind: Any, path: str, source: str, **options: Any) -> Any:
    """Call `kind.from_pretrained(source)`; `path` is how the user named it."""
    try:
        return kind.from_pretrained(source, **options)
    except Exception as error:  # readers of foreign files raise whatever occurs to them
        text = str(error).strip() or type(error).__name__
        if isinstance(error, KeyError | AttributeError | TypeError | IndexError):
            text = f"{type(error).__name__}: {text}; a file of it is damaged, or does not fit the others."
        raise ArcherError(
            f"{path} could not be loaded: {text.splitlines()[0]} "
            "Expected a local folder or a hub id of a causal language model."
        ) from error


class SamplingWeights:
    """The weights that the rollout uses: the policy itself in float32, a narrower copy otherwise.

    Decoding under autocast would convert every weight for every token. A policy that is not trained needs no
    copy: it is narrowed itself. The copy is made when it is first asked for; a backend with weights of its
    own takes `named_weights` and needs none.
    """

    def __init__(self, policy: PreTrainedModel, compute: Compute, trains: bool = True) -> None:
        self._policy, self._compute, self._trains = policy, compute, trains
        if not trains:
            narrow(policy, compute)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model that samples."""
        return self._make()

    def _make(self) -> PreTrainedModel:
        if not self._compute.mixed or not self._trains:
            return self._policy
        copied = copy.deepcopy(self._policy)
        narrow(copied, self._compute)
        if is_packed(copied) and copied.config._attn_implementation != NAME:
            use_packed_attention(copied)  # which also decodes
        elif self._compute.device.type == "cpu":
            use_grouped_attention(copied)
        return copied

    @property
    def _made(self) -> bool:
        return "model" in vars(self)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's current weights."""
        if self._made and self.model is not self._policy:
            for target, source in zip(self.model.parameters(), self._policy.parameters(), strict=True):
                target.copy_(source)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of the current weights, as Hugging Face names them, in the products' format.

        Weights that two modules share come once, under the first name.
        """
        for name, parameter in self._policy.named_parameters():
            yield name, parameter.detach().to(self._compute.dtype)


def narrow(model: PreTrainedModel, compute: Compute) -> None:
    """Turn a model into one that only samples: its weights take the number format of the products."""
    model.eval()
    model.requires_grad_(False)
    # Buffers stay as they are: rounded rotary frequencies give late positions wrong angles.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(compute.dtype)
