"""Rollout by `transformers.generate` on a CPU: one Ray actor a replica, requests gathered into batches.

For tests and trials; real runs use vLLM or SGLang as verl provides them.
"""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from archer.engines.verl.translate import CPU_ROLLOUT as ROLLOUT
from archer.generation.sampling import stream_seed

GATHERING_S = 0.05  # how long a batch waits for further requests
MOST_TOGETHER = 256


@dataclass(frozen=True)
class Sampling:
    """How a request wants its tokens drawn; requests that agree are decoded together."""

    temperature: float
    top_p: float
    top_k: int
    log_probs: bool
    max_tokens: int

    @classmethod
    def of(cls, params: dict[str, Any], longest: int) -> "Sampling":
        """Read verl's sampling parameters."""
        return cls(
            float(params.get("temperature", 1.0)),
            float(params.get("top_p", 1.0)),
            max(int(params.get("top_k", -1)), 0),
            bool(params.get("logprobs", False)),
            int(params.get("max_tokens") or longest),
        )


class Server:
    """Holds a copy of the policy and answers generation requests."""

    def __init__(self, model_config: Any, response_length: int, seed: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        config: HFModelConfig = omega_conf_to_dataclass(model_config)
        self.seed = seed
        self.tokenizer, self.response_length = config.tokenizer, response_length
        self.model = AutoModelForCausalLM.from_config(config.hf_config).float().eval()
        self.stop_ids = _stop_ids(config)
        self.step: int | None = None
        self._requests: asyncio.Queue[tuple[list[int], Sampling, asyncio.Future[TokenOutput]]] | None = None

    async def load_weights(self, weights: list[tuple[str, np.ndarray]], step: int | None) -> None:
        """Take the trainer's weights."""
        tensors = {name: torch.from_numpy(array.copy()) for name, array in weights}
        missing, unexpected = self.model.load_state_dict(tensors, strict=False)
        tied = [name for name in missing if name != "lm_head.weight"]
        if unexpected or tied:
            raise RuntimeError(f"weights do not fit the rollout's model: {unexpected or tied}")
        self.model.tie_weights()
        self.step = step
        torch.manual_seed(stream_seed(self.seed, "rollout", step or 0))

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """Answer one request; those that come together are decoded together."""
        if self._requests is None:
            self._requests = asyncio.Queue()
            self._task = asyncio.create_task(self._serve(self._requests))
        answer: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        sampling = Sampling.of(sampling_params, self.response_length)
        await self._requests.put((list(prompt_ids), sampling, answer))
        return await answer

    async def _serve(self, requests: "asyncio.Queue[Any]") -> None:
        while True:
            together = [await requests.get()]
            await asyncio.sleep(GATHERING_S)
            while not requests.empty() and len(together) < MOST_TOGETHER:
                together.append(requests.get_nowait())
            for sampling in dict.fromkeys(request[1] for request in together):
                alike = [request for request in together if request[1] == sampling]
                try:
                    outputs = await asyncio.to_thread(self.decode, [r[0] for r in alike], sampling)
                except Exception as error:
                    for request in alike:
                        request[2].set_exception(error)
                    continue
                for request, output in zip(alike, outputs, strict=True):
                    request[2].set_result(output)

    @torch.no_grad()
    def decode(self, prompts: list[list[int]], sampling: Sampling) -> list[TokenOutput]:
        """Sample one response a prompt, with log-probs at the sampling temperature."""
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        drawn: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            drawn = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
            }
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            pad_token_id=pad,
            eos_token_id=self.stop_ids,
            return_dict_in_generate=True,
            output_logits=True,
            max_new_tokens=sampling.max_tokens,
            **drawn,
        )
        new = out.sequences[:, width:]
        logits = torch.stack(out.logits, 1).float() / (sampling.temperature or 1.0)
        log_probs = logits.log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
        return [self._output(tokens, line, sampling) for tokens, line in zip(new, log_probs, strict=True)]

    def _output(self, tokens: Tensor, log_probs: Tensor, sampling: Sampling) -> TokenOutput:
        stops = torch.isin(tokens, torch.tensor(self.stop_ids)).nonzero()
        length = int(stops[0]) + 1 if len(stops) else len(tokens)
        return TokenOutput(
            token_ids=tokens[:length].tolist(),
            log_probs=log_probs[:length].tolist() if sampling.log_probs else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.step},
        )

    async def ready(self) -> None:
        """Answer once the model is built."""

    async def no_op(self, *_: Any, **__: Any) -> None:
        """A CPU server has no cache to release, nothing to wake and no profile."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = no_op
    abort_all_requests = resume_generation = start_profile = stop_profile = no_op


class Replica(RolloutReplica):
    """Starts the server of one replica."""

    async def launch_servers(self) -> None:
        """Start it."""
        name = server_name(self.replica_rank)
        server = (
            ray.remote(Server)
            .options(name=name, num_cpus=0, max_concurrency=1000)
            .remote(self.model_config, self.config.response_length, self.config.seed + self.replica_rank)
        )
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name


class Adapter(BaseRollout):
    """In each training worker: hands the new weights to its replica's server."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        size = (
            config.tensor_model_parallel_size
            * config.data_parallel_size
            * config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self._server_name = server_name(rank // size if replica_rank == -1 else replica_rank)
        self._sends = rank % size == 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing to release."""

    async def update_weights(
        self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        """Send all weights; every rank reads them, because gathering a sharded one is collective."""
        arrays = [(name, tensor.detach().float().cpu().numpy()) for name, tensor in weights]
        if self._sends:
            await ray.get_actor(self._server_name).load_weights.remote(arrays, global_steps)


def server_name(replica: int) -> str:
    """Ray's name of a replica's server."""
    return f"{ROLLOUT}_{replica}"


def _stop_ids(config: HFModelConfig) -> list[int]:
    ids = {config.tokenizer.eos_token_id}
    configured = config.generation_config.eos_token_id if config.generation_config is not None else None
    if configured is not None:
        ids.update([configured] if isinstance(configured, int) else configured)
    return sorted(ids)
