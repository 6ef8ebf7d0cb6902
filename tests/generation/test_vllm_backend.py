"""What vLLM is asked for and how its answers are read, with a stand-in for vLLM, which needs a GPU."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from archer.errors import ArcherError
from archer.generation import vllm_backend
from archer.generation.batch import RolloutLimits
from archer.generation.build import backend_name
from archer.generation.config import ModelConfig, RolloutConfig
from archer.generation.device import Compute
from archer.generation.model import BUILTIN
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.generation.vllm_backend import VllmRollout, engine_arguments, request_arguments

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LIMITS = RolloutLimits(max_response_length=6, max_num_seqs=4, max_prompt_length=9)
STREAMS = SampleStreams.named(0, "test")


@dataclass
class Engine:
    """In the place of `vllm.LLM`: notes what is asked of it, answers with random numbers.

    vLLM draws tokens from torch's, or by a seed from numpy's for each request (its model runner V2, which it
    takes for Qwen3 and Llama).
    """

    runner: ClassVar[str] = "V1"

    arguments: dict[str, Any]
    calls: list[str] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def generate(self, prompts, sampling, use_tqdm):
        self.calls.append("generate")
        return [SimpleNamespace(outputs=[self.completion(k) for k in range(sampling.n)]) for _ in prompts]

    def completion(self, number: int):
        length = 1 + number % 3
        v1 = self.runner == "V1"
        tokens = torch.randint(5, 50, (length,)).tolist() if v1 else np.random.randint(5, 50, length).tolist()
        flat = SimpleNamespace(logprobs=[-0.5 * (t + 1) for t in range(length)], start_indices=range(length))
        return SimpleNamespace(
            token_ids=tokens, logprobs=flat, finish_reason="length" if number == 2 else "stop"
        )

    def apply_model(self, function):
        self.calls.append("weights")
        function(SimpleNamespace(load_weights=lambda named: self.weights.update(named)))

    def sleep(self, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags):
        self.calls.append(f"wake {tags[0]}")

    def reset_prefix_cache(self):
        self.calls.append("forget")


@pytest.fixture
def vllm(monkeypatch):
    """A vLLM that is installed, on a device that is said to be CUDA."""
    engines: list[Engine] = []

    def make(**arguments):
        engines.append(Engine(arguments))
        return engines[-1]

    module = SimpleNamespace(LLM=make, SamplingParams=lambda **given: SimpleNamespace(**given))
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(vllm_backend, "vllm_is_installed", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return engines


def rollout(policy, **settings) -> VllmRollout:
    config = RolloutConfig(name="vllm", **settings)
    weights = lambda: ((name, p.detach()) for name, p in policy.named_parameters())  # noqa: E731
    compute = Compute(CUDA, torch.bfloat16)
    return VllmRollout(ModelConfig(path=BUILTIN), config, compute, LIMITS, (3, 7), 0, weights)


def test_the_engine_is_started_with_verls_settings_and_without_weights_of_its_own():
    config = RolloutConfig(gpu_memory_utilization=0.3, enforce_eager=True, free_cache_engine=False, seed=5)
    model = ModelConfig(path=BUILTIN, override_config={"attn_implementation": "sdpa", "rope_theta": 2.0})
    found = engine_arguments(model, config, LIMITS, torch.bfloat16)
    assert found["load_format"] == "dummy" and found["dtype"] == "bfloat16" and found["seed"] == 5
    assert (found["max_model_len"], found["max_num_seqs"]) == (15, 4)
    assert (found["gpu_memory_utilization"], found["enforce_eager"]) == (0.3, True)
    assert found["enable_sleep_mode"] is False and found["hf_overrides"] == {"rope_theta": 2.0}
    assert found["logprobs_mode"] == "raw_logprobs", "of the whole distribution, not of what top-p leaves"
    warm = engine_arguments(model, RolloutConfig(temperature=0.7), LIMITS, torch.bfloat16)
    assert warm["logprobs_mode"] == "processed_logprobs", "those at the temperature"


def test_a_greedy_request_has_temperature_0_and_all_ask_for_the_sampled_tokens_log_prob():
    sampled = request_arguments(3, SamplingParams(0.8, 0.9, 20), LIMITS, (3, 7))
    assert (sampled["n"], sampled["temperature"], sampled["top_p"], sampled["top_k"]) == (3, 0.8, 0.9, 20)
    assert sampled["stop_token_ids"] == [3, 7] and sampled["max_tokens"] == 6 and sampled["logprobs"] == 0
    greedy = request_arguments(1, SamplingParams(0.8, 0.9, 20, do_sample=False), LIMITS, (3, 7))
    assert (greedy["temperature"], greedy["top_p"], greedy["top_k"]) == (0.0, 1.0, -1)


def test_answers_become_responses_in_the_order_of_the_prompts(vllm, qwen2, make_prompts):
    prompts = make_prompts([3, 5])
    found = rollout(qwen2(tied=True)).generate(prompts, 3, SamplingParams(), STREAMS)
    assert found.prompts == tuple(p for p in prompts for _ in range(3))
    assert found.lengths.tolist() == [1, 2, 3, 1, 2, 3]
    assert found.finished.tolist() == [True, True, False] * 2
    assert found.log_probs[2].tolist() == [-0.5, -1.0, -1.5]
    assert (found.tokens[~found.mask] == 0).all() and (found.log_probs[~found.mask] == 0).all()


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_the_same_streams_give_the_same_responses_and_others_do_not(
    vllm, qwen2, make_prompts, monkeypatch, runner
):
    monkeypatch.setattr(Engine, "runner", runner)
    backend, prompts = rollout(qwen2(tied=True)), make_prompts([3, 5])
    first, again = (backend.generate(prompts, 3, SamplingParams(), STREAMS) for _ in "ab")
    other = backend.generate(prompts, 3, SamplingParams(), SampleStreams.named(1, "test"))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_it_takes_the_policys_weights_after_every_update_and_gives_its_memory_back(vllm, qwen2, make_prompts):
    policy, prompts = qwen2(tied=True), make_prompts([3])
    backend = rollout(policy)
    (engine,) = vllm
    backend.generate(prompts, 1, SamplingParams(), STREAMS)
    assert engine.calls == ["weights", "forget", "generate"]
    engine.calls.clear()
    backend.generate(prompts, 1, SamplingParams(), STREAMS)
    assert engine.calls == ["generate"], "nothing has changed"
    engine.calls.clear()
    backend.rest()
    with torch.no_grad():
        policy.model.norm.weight.fill_(3.0)
    backend.refresh()
    backend.generate(prompts, 1, SamplingParams(), STREAMS)
    assert engine.calls == ["sleep 2", "wake weights", "weights", "wake kv_cache", "generate"]
    moved = engine.weights["model.norm.weight"]
    assert moved.dtype == torch.bfloat16 and (moved == 3).all()
    assert "lm_head.weight" not in engine.weights, "tied weights go once"


def test_without_free_cache_engine_it_stays_awake(vllm, qwen2, make_prompts):
    backend = rollout(qwen2(tied=True), free_cache_engine=False)
    backend.generate(make_prompts([3]), 1, SamplingParams(), STREAMS)
    backend.rest()
    backend.refresh()
    vllm[0].calls.clear()
    backend.generate(make_prompts([3]), 1, SamplingParams(), STREAMS)
    assert vllm[0].calls == ["weights", "forget", "generate"]


def test_a_start_that_fails_says_how_much_memory_was_asked_for(vllm, monkeypatch, qwen2):
    def fail(**_):
        raise ValueError("Free memory on device cuda:0 (3.1/79.3 GiB) is less than desired\nmore")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", fail)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**30, 80 * 2**30))
    with pytest.raises(ArcherError, match="could not be started: Free memory") as raised:
        rollout(qwen2(tied=True))
    assert "gpu_memory_utilization=0.5 of 80 GiB, of which 3 are free" in str(raised.value)
    assert "rollout.name=hf" in str(raised.value) and "more" not in str(raised.value)


def test_without_vllm_or_a_gpu_the_error_says_what_to_do(monkeypatch, qwen2):
    monkeypatch.setattr(vllm_backend, "vllm_is_installed", lambda: False)
    with pytest.raises(ArcherError, match=r"vLLM is not installed.*constraints-gpu\.txt"):
        rollout(qwen2(tied=True))
    compute = Compute(CPU, torch.float32)
    with pytest.raises(ArcherError, match="needs a CUDA device"):
        VllmRollout(ModelConfig(path=BUILTIN), RolloutConfig(), compute, LIMITS, (3,), 0, lambda: ())


@pytest.mark.parametrize(
    ("installed", "model", "length", "chosen"),
    [
        (True, "qwen2", 6, "hf"),
        (True, "qwen2", 10**6, "vllm"),
        (True, "gemma2", 6, "vllm"),
        (False, "gemma2", 6, "hf"),
    ],
)
def test_auto_takes_vllm_only_where_the_built_in_decoder_would_not_do(
    monkeypatch, request, installed, model, length, chosen
):
    monkeypatch.setattr("archer.generation.build.vllm_is_installed", lambda: installed)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**30)
    )
    policy = request.getfixturevalue(model)(**({"tied": True} if model == "qwen2" else {}))
    limits = RolloutLimits(length, 4, 9)
    found = backend_name(RolloutConfig(), Compute(CUDA, torch.bfloat16), policy, limits)
    assert found == chosen
    assert backend_name(RolloutConfig(name="vllm"), Compute(CUDA, torch.bfloat16), policy, limits) == "vllm"
    assert backend_name(RolloutConfig(), Compute(CPU, torch.float32), policy, limits) == "hf"
