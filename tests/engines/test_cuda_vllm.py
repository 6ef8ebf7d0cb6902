"""Runs with vLLM on a CUDA device, started as a user starts them: both engines, LoRA, resumed.

Skipped where there is no CUDA device or no vLLM.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from archer.data.builtin import tiny_reasoner_path
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("vllm") is None, reason="needs a CUDA device and vLLM"
)

RUN = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
    "actor_rollout_ref.rollout.enforce_eager=True",
    "data.val_max_samples=16",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=2",
]
ENGINES = {
    "local": ["engine.device=cuda"],
    "verl": [
        "engine=verl",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "ray_kwargs.ray_init.address=local",
        "ray_kwargs.ray_init.num_cpus=16",
    ],
}
LORA = ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16"]


def train(folder: Path, steps: int, *settings: str) -> list[dict[str, float]]:
    """Run `archer train` up to a step, and return what it measured."""
    command = [sys.executable, "-m", "archer", "train", *RUN, f"trainer.total_training_steps={steps}"]
    ended = subprocess.run(
        [*command, f"trainer.default_local_dir={folder}", *settings],
        env=os.environ | {"VLLM_USE_FLASHINFER_SAMPLER": "0"},
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "timing_s/step" in line]


@pytest.mark.parametrize("adapters", [[], LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_with_vllm_samples_from_the_policys_weights_traces_and_resumes(tmp_path, engine, adapters):
    """Responses are drawn from the weights of the step: log-probs of vLLM are those of the update."""
    rate = "actor_rollout_ref.actor.optim.lr=1e-3"  # after a step the weights of the start would show
    train(tmp_path, 2, rate, *ENGINES[engine], *adapters)
    steps = train(tmp_path, 4, rate, *ENGINES[engine], *adapters)
    assert [step["step"] for step in steps] == [1, 2, 3, 4], "resumed, not begun again"
    for step in steps:
        assert step["training/rollout_probs_diff_mean"] < 0.02, "bfloat16 in another order of sums"
    for kind in ("entropy_trace", "influence_trace"):
        report = check_trace(tmp_path / kind)
        assert report.whole and len(report.steps) == 4


def sampled(run: Path) -> list[list[int]]:
    """The tokens of the first step's responses."""
    step = TraceReader(run / "entropy_trace").read(1).arrays
    return [row[mask].tolist() for row, mask in zip(step.responses, step.response_mask, strict=True)]


def test_a_model_that_vllm_runs_by_its_other_model_runner_samples_from_the_policys_weights(tmp_path):
    """vLLM takes its model runner V2 for Llama and Qwen3, V1 for the embedded model's architecture."""
    model = tmp_path / "model"
    shutil.copytree(tiny_reasoner_path(), model)
    sizes = AutoConfig.from_pretrained(model).to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**{n: sizes[n] for n in names}, max_position_embeddings=256))
    llama.save_pretrained(model)
    settings = ["recipe=arithmetic", f"actor_rollout_ref.model.path={model}"]
    for folder in ("first", "second"):
        steps = train(tmp_path / folder, 2, *ENGINES["local"], *settings)
        assert all(step["training/rollout_probs_diff_mean"] < 0.02 for step in steps)
    pairs = zip(sampled(tmp_path / "first"), sampled(tmp_path / "second"), strict=True)
    same = [one == other for one, other in pairs]
    assert sum(same) > 0.9 * len(same), "the same seed; a rounding may change a response here and there"
