"""A GRPO step on one GPU: Archer with vLLM and with its own decoder, TRL with and without vLLM, vLLM alone.

The same model, prompts and batch (32 prompts x 8 responses of at most 512 tokens unless told otherwise), one
optimizer step a step, each side in a process of its own. Archer writes both traces. Seconds are medians of
the steps after the first two; memory is the device's, whoever holds it, at its peak.

    archer data prepare gsm8k --out gsm8k-train.jsonl
    python benchmarks/gpu_vs_trl.py MODEL gsm8k-train.jsonl --steps 8

TRL >= 1.0 must not be on the path of a process that imports verl; `--trl-path` is put before it for TRL's
sides alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SIDES = ("archer-vllm", "archer-hf", "trl-vllm", "trl-hf", "vllm")
WARM_UP = 2  # steps that are not counted: compilation, graphs, caches


def workload_options(description: str | None) -> argparse.ArgumentParser:
    """What a benchmark of whole steps is told of its work."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("prompts", help="JSONL file of prompts, as `archer data prepare` writes it")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts-a-step", type=int, default=32)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vllm-memory", type=float, default=0.3, help="share of the GPU that vLLM may take")
    parser.add_argument("--archer", nargs="*", default=[], help="further settings of Archer's sides")
    parser.add_argument("--out", help="JSON file for all figures")
    parser.add_argument("--figures", help="file that the side run in this process writes")
    return parser


def parse() -> argparse.Namespace:
    parser = workload_options(__doc__)
    parser.add_argument("--trl-rows", type=int, default=64, help="responses per backward pass of TRL")
    parser.add_argument("--trl-path", default="", help="folder with TRL, put on the path of its sides")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help="run one side in this process")
    return parser.parse_args()


def archer_settings(options: argparse.Namespace, backend: str, folder: str) -> list[str]:
    """The workload in the words of `archer train`."""
    return [
        "recipe=qwen2.5_0.5b_gsm8k",
        f"actor_rollout_ref.model.path={options.model}",
        f"data.train_files=[{options.prompts}]",
        "data.val_files=[]",
        f"data.train_batch_size={options.prompts_a_step}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={options.prompts_a_step}",
        f"actor_rollout_ref.rollout.n={options.responses}",
        f"data.max_response_length={options.length}",
        f"actor_rollout_ref.rollout.max_num_seqs={options.prompts_a_step * options.responses}",
        f"actor_rollout_ref.rollout.name={backend}",
        f"actor_rollout_ref.rollout.gpu_memory_utilization={options.vllm_memory}",
        f"trainer.total_training_steps={options.steps}",
        "trainer.save_freq=-1",
        f"trainer.default_local_dir={folder}",
        *options.archer,
    ]


def read_prompts(path: str) -> list[dict[str, Any]]:
    with Path(path).open() as file:  # a line ends at its line feed, whatever else may look like one
        return [json.loads(line) for line in file]


def run_archer(options: argparse.Namespace, backend: str) -> dict[str, list[float]]:
    from archer.config import compose
    from archer.train import make_run

    with tempfile.TemporaryDirectory() as folder:
        make_run(compose(archer_settings(options, backend, folder)), Console()).execute()
        lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return columns_of([line for line in lines if "timing_s/step" in line])


def columns_of(steps: list[dict[str, float]]) -> dict[str, list[float]]:
    """The figures of a run's steps, by short names; verl's names and Archer's are the same."""
    names = {
        "seconds": "timing_s/step",
        "generation": "timing_s/gen",
        "old_log_prob": "timing_s/old_log_prob",
        "update": "timing_s/update_actor",
        "weights": "timing_s/update_weights",
        "length": "response_length/mean",
        "reward": "critic/rewards/mean",
        "tokens": "perf/total_num_tokens",
        "sampled": "perf/sampled_tokens",
    }
    return {name: [step[key] for step in steps] for name, key in names.items() if key in steps[0]}


def run_trl(options: argparse.Namespace, backend: str) -> dict[str, list[float]]:
    """`beta=0`: no reference model; one optimizer step for all responses of a generation, as in Archer."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from archer.rewards import RewardRequest, RewardScorer
    from archer.rewards.config import RewardConfig

    scorer = RewardScorer(RewardConfig(num_workers=2))
    seconds: list[float] = []
    rewards: list[float] = []
    lengths: list[float] = []

    def verified(completions: Any, completion_ids: Any, truth: Any, **_: Any) -> list[float]:
        requests = [
            RewardRequest("openai/gsm8k", completion[0]["content"], answer, {})
            for completion, answer in zip(completions, truth, strict=True)
        ]
        scores = [result.score for result in scorer.score(requests)]
        rewards.append(sum(scores) / len(scores))
        lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return scores

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.begun)
            print(f"step {len(seconds)}: {seconds[-1]:.2f} s", flush=True)

    rows = read_prompts(options.prompts)
    total = options.prompts_a_step * options.responses
    vllm = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": options.vllm_memory}
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=options.trl_rows,
            gradient_accumulation_steps=total // options.trl_rows,
            num_generations=options.responses,
            max_completion_length=options.length,
            beta=0.0,
            bf16=True,
            learning_rate=1e-6,
            max_steps=options.steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            gradient_checkpointing=False,
            use_vllm=backend == "vllm",
            **(vllm if backend == "vllm" else {}),
        )
        data = [{"prompt": r["prompt"], "truth": r["reward_model"]["ground_truth"]} for r in rows]
        GRPOTrainer(
            model=options.model,
            reward_funcs=verified,
            args=config,
            train_dataset=Dataset.from_list(data),
            callbacks=[Clock()],
        ).train()
    scorer.close()
    return {"seconds": seconds, "reward": rewards, "length": lengths}


def run_vllm(options: argparse.Namespace) -> dict[str, list[float]]:
    """vLLM as it comes, an engine in a process of its own: generation of a step's responses, nothing else."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        options.model,
        dtype="bfloat16",
        gpu_memory_utilization=options.vllm_memory,
        max_model_len=512 + options.length,
        max_num_seqs=options.prompts_a_step * options.responses,
    )
    rows = [row["prompt"] for row in read_prompts(options.prompts)]
    sampling = SamplingParams(temperature=1.0, max_tokens=options.length, n=options.responses, logprobs=0)
    figures: dict[str, list[float]] = {"generation": [], "sampled": []}
    for step in range(options.steps):
        begin = step * options.prompts_a_step
        started = time.perf_counter()
        found = engine.chat(rows[begin : begin + options.prompts_a_step], sampling, use_tqdm=False)
        figures["generation"].append(time.perf_counter() - started)
        figures["sampled"].append(sum(len(one.token_ids) for request in found for one in request.outputs))
    return figures


def run_side(options: argparse.Namespace) -> None:
    if options.side == "vllm":
        figures = run_vllm(options)
    else:
        program, _, backend = options.side.partition("-")
        figures = (run_archer if program == "archer" else run_trl)(options, backend)
    Path(options.figures).write_text(json.dumps(figures))


def device_memory() -> float:
    """GiB in use on the device, by all processes."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) / 1024


def measure(side: str, trl_path: str = "") -> dict[str, Any]:
    """Run one side of this script in a process of its own and watch the device's memory."""
    figures = Path(tempfile.mkdtemp()) / "figures.json"
    command = [sys.executable, *sys.argv, "--side", side, "--figures", str(figures)]
    path = os.pathsep.join(filter(None, [trl_path, os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | ({"PYTHONPATH": path} if side.startswith("trl") else {})
    peak, before, done = 0.0, device_memory(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.3):
            peak = max(peak, device_memory() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    ended = subprocess.run(command, env=environment).returncode
    done.set()
    watcher.join()
    found = json.loads(figures.read_text()) if ended == 0 else {"failed": [ended]}
    return {name: values[WARM_UP:] or values for name, values in found.items()} | {"memory": [peak]}


def main() -> None:
    options = parse()
    if options.side:
        run_side(options)
        return
    found: dict[str, Any] = {}
    for side in options.sides:
        found[side] = measure(side, options.trl_path)
        print(side, {name: statistics.median(values) for name, values in found[side].items()}, flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps(found, indent=1))
    title = f"{options.prompts_a_step} x {options.responses} x {options.length}, {options.steps} steps"
    columns = ("seconds", "generation", "update", "length", "reward", "memory")
    Console(width=120).print(as_table(title, columns, found))


def as_table(title: str, columns: Sequence[str], found: dict[str, Any]) -> Table:
    """Medians, a row for each side."""
    table = Table(title=title)
    for heading in ("side", *(f"{name}, GiB" if name == "memory" else name for name in columns), "sampled/s"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for side, figures in found.items():
        cells = [f"{statistics.median(figures[n]):.3g}" if figures.get(n) else "" for n in columns]
        speed = ""
        if figures.get("sampled"):
            speed = f"{sum(figures['sampled']) / sum(figures['generation']):,.0f}"
        table.add_row(side, *cells, speed)
    return table


if __name__ == "__main__":
    main()
