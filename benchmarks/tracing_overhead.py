"""What influence tracing costs: a full update step of the local engine with and without it.

All linear modules of the decoder layers, all tokens, inverse mode, scores included. Both sides update the
same model on the same responses, in turn, in one process; the ratio is of median times. Peak memory is that
of a process (CPU) or an allocator (CUDA) of its own for each side.

    python benchmarks/tracing_overhead.py                           # the tiny model on the CPU
    python benchmarks/tracing_overhead.py --model 1.5b --rows 64 --length 1024 --budget 16384   # on a GPU
    python benchmarks/tracing_overhead.py --model 0.5b --rows 256 --prompt 100 --length 512 --ragged

`--model 0.5b` and `1.5b` have the shapes of Qwen2.5's with random weights.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from qwen_shape import qwen_0_5b, qwen_1_5b
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from archer.config.actor import actor_config
from archer.config.trainer import EngineConfig
from archer.data.builtin import tiny_reasoner_path
from archer.data.prompts import Prompt
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater
from archer.generation.batch import Responses
from archer.generation.device import Compute, set_up
from archer.generation.judge import Judged
from archer.generation.model import prepare_for_cuda, set_gradient_checkpointing
from archer.generation.policy import Policy
from archer.influence import InfluenceConfig
from archer.rewards import RewardResult

OFF, ON = "without", "with"
GROUP = 8


def size_options(description: str | None) -> argparse.ArgumentParser:
    """What a benchmark of the update is told of its model and batch."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["tiny", "0.5b", "1.5b"], default="tiny")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--rows", type=int, default=128, help="responses per step")
    parser.add_argument("--prompt", type=int, default=11, help="tokens per prompt")
    parser.add_argument("--length", type=int, default=34, help="tokens per response")
    parser.add_argument("--ragged", action="store_true", help="lengths from a tenth of --length up to it")
    parser.add_argument("--budget", type=int, default=16384, help="tokens per micro-batch")
    parser.add_argument("--rounds", type=int, default=10, help="updates per side")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    return parser


def parse() -> argparse.Namespace:
    parser = size_options(__doc__)
    parser.add_argument("--groups", type=int, default=0, help="prompts that are traced; 0: all")
    parser.add_argument("--profile", help="write a table of one traced update's kernels to this file")
    parser.add_argument("--factor", type=int, default=InfluenceConfig().projection_dim_factor)
    parser.add_argument("--objective", default="training_loss", help="output_function")
    parser.add_argument("--side", choices=[OFF, ON], help="measure the peak memory of one side and print it")
    return parser.parse_args()


def make_model(options: argparse.Namespace, compute: Compute) -> torch.nn.Module:
    torch.manual_seed(0)
    if options.model == "tiny":
        model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32)
    else:
        with torch.device(compute.device):
            model = Qwen2ForCausalLM(qwen_0_5b() if options.model == "0.5b" else qwen_1_5b())
    model.to(compute.device)
    set_gradient_checkpointing(model, options.checkpointing)
    prepare_for_cuda(model, compute)
    return model


def make_experience(options: argparse.Namespace, vocabulary: int) -> Experience:
    """Random responses, half of each group accepted, with the advantages GRPO would give them."""
    generator = torch.Generator().manual_seed(0)
    rows, length = options.rows, options.length
    lengths = torch.full((rows,), length)
    if options.ragged:
        lengths = torch.randint(length // 10, length + 1, (rows,), generator=generator)
    prompt = Prompt(0, (), tuple(range(1, options.prompt + 1)), "none", "", {})
    responses = Responses(
        prompts=(prompt,) * rows,
        tokens=torch.randint(1, vocabulary, (rows, length), generator=generator),
        mask=torch.arange(length) < lengths[:, None],
        log_probs=torch.zeros(rows, length),
        finished=torch.ones(rows, dtype=torch.bool),
    )
    verdicts = [row % 2 == 0 for row in range(rows)]
    judged = Judged(
        responses,
        torch.arange(rows) // GROUP,
        tuple(RewardResult.of_verdict(verdict) for verdict in verdicts),
        torch.zeros(rows),
    )
    advantages = torch.tensor([1.0 if verdict else -1.0 for verdict in verdicts])[:, None].expand(
        rows, length
    )
    return Experience(judged, advantages.clone(), None, None)


def make_updater(options: argparse.Namespace, policy: Policy, optimizer: torch.optim.Optimizer) -> Updater:
    config = replace(
        actor_config(), ppo_mini_batch_size=options.rows, ppo_max_token_len_per_gpu=options.budget
    )
    knobs = InfluenceConfig(
        enable=True,
        projection_dim_factor=options.factor,
        output_function=options.objective,
        max_prompts_per_step=options.groups,
    )
    recorder = InfluenceRecorder(policy.model, knobs)
    return Updater(policy, optimizer, config, options.length, recorder=recorder)


def one_update(updater: Updater, experience: Experience, side: str) -> float:
    device = updater.policy.compute.device
    started = time.perf_counter()
    updater.update(experience, 1, traced=side == ON)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def peak_memory(side: str) -> float:
    """GiB, measured in a process that runs this side alone."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])["peak_gb"]


def main() -> None:
    options = parse()
    # Before this process holds a model of its own: both would not fit on one device.
    memory = {} if options.side else {side: peak_memory(side) for side in (OFF, ON)}
    compute = set_up(EngineConfig(device=options.device))
    model = make_model(options, compute)
    policy = Policy(model, compute, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, fused=True)
    updater = make_updater(options, policy, optimizer)
    experience = make_experience(options, model.config.vocab_size)
    if options.side:
        for _ in range(2):
            one_update(updater, experience, options.side)
        print(json.dumps({"peak_gb": compute.peak_memory_gb()}))
        return
    times: dict[str, list[float]] = {OFF: [], ON: []}
    for side in (OFF, ON):
        one_update(updater, experience, side)  # warm-up
    for _ in range(options.rounds):
        for side in (OFF, ON):
            times[side].append(one_update(updater, experience, side))
    median = {side: statistics.median(values) for side, values in times.items()}
    table = Table(
        title=f"{options.model} model, {compute.device.type}, {options.rows} x {options.length} tokens, "
        f"projection_dim_factor {options.factor}"
    )
    for heading in ("influence", "update, median s", "fastest s", "peak memory GiB"):
        table.add_column(heading, justify="right")
    for side in (OFF, ON):
        table.add_row(side, f"{median[side]:.4f}", f"{min(times[side]):.4f}", f"{memory[side]:.3f}")
    table.add_row(
        "ratio",
        f"{median[ON] / median[OFF]:.3f}",
        f"{min(times[ON]) / min(times[OFF]):.3f}",
        f"{memory[ON] / memory[OFF]:.3f}",
    )
    Console().print(table)
    tokens = sum(len(prompt.token_ids) for prompt in experience.responses.prompts)
    tokens += int(experience.responses.mask.sum())
    Console().print(f"{tokens:,} tokens, {tokens / median[OFF]:,.0f} a second without influence")
    if options.profile:
        profile(updater, experience, options.profile)


def profile(updater: Updater, experience: Experience, path: str) -> None:
    """Write which kernels the time of an update goes to, without and with influence."""
    with Path(path).open("w") as file:
        for side in (OFF, ON):
            with torch.profiler.profile() as seen:
                one_update(updater, experience, side)
            key = "self_cuda_time_total" if updater.policy.compute.device.type == "cuda" else "cpu_time_total"
            file.write(f"{side} influence\n{seen.key_averages().table(sort_by=key, row_limit=45)}\n")


if __name__ == "__main__":
    main()
