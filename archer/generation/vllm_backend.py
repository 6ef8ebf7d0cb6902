"""Sampling through vLLM, in this process and on the policy's own GPU.

vLLM keeps a model of its own. After an update it is handed the policy's weights tensor by tensor, without a
file; while the policy is updated it gives its memory back. What it has read of prompts is forgotten with the
weights that it was read by.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archer.data.prompts import Prompt
from archer.errors import ArcherError, install_hint
from archer.generation.batch import Responses, RolloutLimits
from archer.generation.config import ModelConfig, RolloutConfig
from archer.generation.device import Compute
from archer.generation.model import model_folder
from archer.generation.sampling import SampleStreams, SamplingParams

NamedWeights = Callable[[], Iterable[tuple[str, Tensor]]]


def vllm_is_installed() -> bool:
    """Whether vLLM can be imported here; it is not, for that takes seconds."""
    return find_spec("vllm") is not None


def engine_arguments(
    model: ModelConfig, rollout: RolloutConfig, limits: RolloutLimits, dtype: torch.dtype
) -> dict[str, Any]:
    """What `vllm.LLM` is started with."""
    overrides = {k: v for k, v in model.override_config.items() if k != "attn_implementation"}
    return {
        "model": model_folder(model.path),
        "load_format": "dummy",  # its weights come from the policy
        "skip_tokenizer_init": True,
        "trust_remote_code": model.trust_remote_code,
        "hf_overrides": overrides or None,
        "dtype": str(dtype).removeprefix("torch."),
        "seed": rollout.seed % 2**32,
        "max_model_len": limits.max_prompt_length + limits.max_response_length,
        "max_num_seqs": limits.max_num_seqs,
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "enforce_eager": rollout.enforce_eager,
        "enable_sleep_mode": rollout.free_cache_engine,
        "enable_prefix_caching": True,  # a prompt is read once for all responses of its group
        # Of the distribution at the temperature, before top-k and top-p cut it, where vLLM can tell.
        "logprobs_mode": "raw_logprobs" if rollout.temperature == 1 else "processed_logprobs",
    }


def request_arguments(
    n: int, params: SamplingParams, limits: RolloutLimits, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """What `vllm.SamplingParams` is made with."""
    return {
        "n": n,
        "temperature": params.temperature if params.do_sample else 0.0,
        "top_p": params.top_p if params.do_sample else 1.0,
        "top_k": params.top_k if params.do_sample else -1,
        "max_tokens": limits.max_response_length,
        "stop_token_ids": list(stop_ids),
        "logprobs": 0,  # that of the sampled token alone
        "flat_logprobs": True,
        "detokenize": False,
    }


class VllmRollout:
    """Draws responses from the policy's weights inside vLLM."""

    def __init__(
        self,
        model: ModelConfig,
        rollout: RolloutConfig,
        compute: Compute,
        limits: RolloutLimits,
        stop_ids: Sequence[int],
        pad_id: int,
        weights: NamedWeights,
    ) -> None:
        self.limits, self.stop_ids, self.pad_id = limits, tuple(stop_ids), pad_id
        self.compute = compute
        self._weights, self._sleeps = weights, rollout.free_cache_engine
        self._asleep, self._stale = False, True
        self._vllm = _import_vllm(compute)
        self._engine = self._start(engine_arguments(model, rollout, limits, compute.dtype), rollout)

    def generate(
        self, prompts: Sequence[Prompt], n: int, params: SamplingParams, streams: SampleStreams
    ) -> Responses:
        """Return n responses per prompt; the responses of a prompt are consecutive rows.

        One seed for the whole batch: the same prompts with the same seed give the same responses, as far as
        the GPU's products are the same from run to run.
        """
        self._wake()
        asked = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
        sampling = self._vllm.SamplingParams(**request_arguments(n, params, self.limits, self.stop_ids))
        seed = streams.seed + streams.first_prompt
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # its model runner V2 draws a seed for each request
        outputs = self._engine.generate(asked, sampling, use_tqdm=False)
        sampled = [completion for output in outputs for completion in output.outputs]
        responses = _responses(tuple(p for p in prompts for _ in range(n)), sampled, self.pad_id)
        return replace(responses, seeds=torch.full((len(sampled),), seed))

    def rest(self) -> None:
        """Give the memory back until the next responses are wanted."""
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=2)  # weights are handed over again anyway
            self._asleep = self._stale = True

    def refresh(self) -> None:
        """The policy has moved: its weights are taken over before the next responses."""
        self._stale = True

    def _wake(self) -> None:
        if self._asleep:
            torch.cuda.empty_cache()  # of what the update has left
            self._engine.wake_up(tags=["weights"])
        if self._stale:
            named = ((name, tensor.to(self.compute.dtype)) for name, tensor in self._weights())
            self._engine.apply_model(lambda model: _load(model, named))
            self._stale = False
            if not self._asleep:
                self._engine.reset_prefix_cache()
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False

    def _start(self, arguments: dict[str, Any], rollout: RolloutConfig) -> Any:
        try:
            return self._vllm.LLM(**arguments)
        except Exception as error:  # vLLM raises whatever the model, the memory or its kernels bring up
            free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ArcherError(
                f"vLLM could not be started: {first} It was asked for actor_rollout_ref.rollout."
                f"gpu_memory_utilization={rollout.gpu_memory_utilization:g} of {total:.0f} GiB, of which "
                f"{free:.0f} are free. Set another share, fewer rollout.max_num_seqs or "
                "rollout.enforce_eager=True; or sample without vLLM: actor_rollout_ref.rollout.name=hf."
            ) from error


def _import_vllm(compute: Compute) -> Any:
    """Import vLLM so that its engine runs in this process, where weights can be handed over in place."""
    if compute.device.type != "cuda":
        raise ArcherError(
            f"actor_rollout_ref.rollout.name=vllm needs a CUDA device; this run is on {compute.device.type}. "
            "Use actor_rollout_ref.rollout.name=hf."
        )
    if not vllm_is_installed():
        raise ArcherError(
            "actor_rollout_ref.rollout.name=vllm, but vLLM is not installed. Versions that fit together: "
            f"{install_hint('gpu')} (docs/cluster.md); rollout.name=hf samples without it."
        )
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import vllm

    return vllm


def _load(model: Any, named: Iterable[tuple[str, Tensor]]) -> None:
    """Runs inside vLLM: copy the policy's tensors into its own, which it joins and names differently."""
    model.load_weights(named)


def _responses(prompts: tuple[Prompt, ...], sampled: Sequence[Any], pad_id: int) -> Responses:
    """Completions of vLLM as responses, right-padded to the longest."""
    lengths = torch.tensor([len(completion.token_ids) for completion in sampled])
    shape = (len(sampled), int(lengths.max()))
    tokens, log_probs = torch.full(shape, pad_id), torch.zeros(shape)
    for row, completion in enumerate(sampled):
        length, flat = int(lengths[row]), completion.logprobs
        tokens[row, :length] = torch.tensor(completion.token_ids)
        log_probs[row, :length] = torch.tensor([flat.logprobs[first] for first in flat.start_indices])
    return Responses(
        prompts=prompts,
        tokens=tokens,
        mask=torch.arange(shape[1]) < lengths[:, None],
        log_probs=log_probs,
        finished=torch.tensor([completion.finish_reason == "stop" for completion in sampled]),
    )
