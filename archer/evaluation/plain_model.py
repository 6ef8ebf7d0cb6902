"""`archer export-model`: any checkpoint as a plain Hugging Face folder, adapters merged into their base."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch

from archer.errors import ArcherError
from archer.evaluation.choice import ModelChoice, model_settings
from archer.files import sync_tree
from archer.generation.adapter_files import load_adapted
from archer.generation.device import Compute
from archer.generation.model import load_policy, load_tokenizer

IN_FLOAT32 = Compute(torch.device("cpu"), torch.float32)


def export_model(
    choice: ModelChoice,
    out: Path,
    dtype: str = "float32",
    base: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Write the plain model; the folder appears when it is complete."""
    if out.exists():
        raise ArcherError(f"{out} exists already: name a folder that does not, or remove it.")
    config = replace(
        model_settings(choice, base), enable_gradient_checkpointing=False, trust_remote_code=trust_remote_code
    )
    tokenizer = load_tokenizer(config)
    if config.lora_rank > 0:
        model, _ = load_adapted(config, IN_FLOAT32, trains=False)
    else:
        model = load_policy(config, IN_FLOAT32)
    temporary = out.parent / f".saving-{out.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model.to(getattr(torch, dtype)).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        sync_tree(temporary)
        temporary.rename(out)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ArcherError(f"{out} could not be written: {error}. Make room, or name another.") from error
