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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sides import measure_all, run_archer, workload_options

SIDES = ("archer-vllm", "archer-hf", "trl-vllm", "trl-hf", "vllm")


def parse() -> argparse.Namespace:
    parser = workload_options(__doc__)
    parser.add_argument("--trl-rows", type=int, default=64, help="responses per backward pass of TRL")
    parser.add_argument("--trl-path", default="", help="folder with TRL, put on the path of its sides")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help="run one side in this process")
    return parser.parse_args()


def read_prompts(path: str) -> list[dict[str, Any]]:
    with Path(path).open() as file:  # a line ends at its line feed, whatever else may look like one
        return [json.loads(line) for line in file]


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


def main() -> int:
    options = parse()
    if options.side:
        run_side(options)
        return 0
    columns = ("seconds", "generation", "update", "length", "reward", "memory")
    trl = {side: options.trl_path for side in SIDES if side.startswith("trl")}
    return measure_all(options, columns, trl)


if __name__ == "__main__":
    sys.exit(main())
