"""verl's FSDP engines on a CPU: what they take for granted on an accelerator is taken back."""

from typing import Any
from unittest import mock

import verl.workers.engine.fsdp.transformer_impl as fsdp
from torch import nn
from transformers import AutoModelForTokenClassification
from verl.workers.engine import EngineRegistry


class _NoPinnedMemory:
    """A reference model is offloaded to pinned memory, which needs an accelerator."""

    def _build_fsdp_module(self, module: nn.Module) -> nn.Module:
        with mock.patch.object(fsdp, "CPUOffloadPolicy", return_value=None):
            return super()._build_fsdp_module(module)  # type: ignore[misc]


@EngineRegistry.register("language_model", ["fsdp2"], device="cpu")
class CpuLanguageModelEngine(_NoPinnedMemory, fsdp.FSDPEngineWithLMHead):
    """Actor and reference."""


@EngineRegistry.register("value_model", ["fsdp2"], device="cpu")
class CpuValueModelEngine(_NoPinnedMemory, fsdp.FSDPEngineWithValueHead):
    """Critic; verl loads it with flash-attention whatever the configuration says."""

    def _build_module(self) -> nn.Module:
        def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> nn.Module:
            return AutoModelForTokenClassification.from_pretrained(
                local_path,
                dtype=torch_dtype,
                config=model_config,
                attn_implementation="sdpa",
                trust_remote_code=trust_remote_code,
            )

        with mock.patch("verl.utils.model.load_valuehead_model", load):
            return super()._build_module()
