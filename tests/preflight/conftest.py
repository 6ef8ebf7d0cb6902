"""Models by their public sizes, without weights; a folder without data and a hub that cannot be reached."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from archer.config.root import TrainConfig
from archer.preflight.model import ModelFacts, shape_of, with_adapters

QWEN25_15B = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )


MODELS: dict[str, Callable[[], PreTrainedConfig]] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": lambda: Qwen2Config(**QWEN25_15B, tie_word_embeddings=False),
    "Qwen/Qwen2.5-1.5B-Instruct": lambda: Qwen2Config(**QWEN25_15B, tie_word_embeddings=True),
    "Qwen/Qwen2.5-0.5B-Instruct": lambda: Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen3-0.6B": lambda: _qwen3(1024, 3072, 28, 16),
    "Qwen/Qwen3-1.7B": lambda: _qwen3(2048, 6144, 28, 16),
    "Qwen/Qwen3-4B": lambda: _qwen3(2560, 9728, 36, 32),
    "HuggingFaceTB/SmolLM2-135M-Instruct": lambda: LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    ),
}


@cache
def by_name(name: str) -> ModelFacts:
    """A model of the table."""
    return laid_out(MODELS[name](), name)


def laid_out(config: PreTrainedConfig, name: str = "model") -> ModelFacts:
    """A model on the meta device."""
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    return ModelFacts(name, config, skeleton, shape_of(config, skeleton))


@pytest.fixture
def facts() -> Callable[[str], ModelFacts]:
    """`facts("Qwen/Qwen3-4B")`: that model, without its weights."""
    return by_name


@pytest.fixture
def facts_of() -> Callable[[TrainConfig], ModelFacts]:
    """`facts_of(config)`: the model of a run, with its adapters."""

    def find(config: TrainConfig) -> ModelFacts:
        model = config.actor_rollout_ref.model
        found = by_name(model.path)
        return with_adapters(found, model) if model.lora_rank > 0 else found

    return find


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without models and data, a hub's cache without models, no Ray to join."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("archer.engines.verl.cluster.RAY_RUNS_HERE", tmp_path / "no-ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path
