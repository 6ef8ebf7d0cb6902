"""What influence tracing costs inside verl: its real update, FSDP2 included, with tracing on and off.

All linear modules of the decoder layers, all tokens, inverse mode, scores included. The engine is verl's own
with Archer's capture in its backward, in this process and without Ray: rollout, queue and rewards are the
same on both sides. Both sides update one model on the same responses, in turn; the ratio is of median times.
On the CPU the time is that of the processor, so that other work on the machine does not count. Peak memory
is the GPU allocator's during each side's updates.

    python benchmarks/verl_overhead.py                                  # the tiny model on the CPU
    python benchmarks/verl_overhead.py --model 1.5b --rows 64 --length 1024 --budget 16384   # on a GPU

`--model 1.5b` has the shape of Qwen2.5-1.5B with random weights, in bfloat16.
"""

# ruff: noqa: E402
import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

ON_CPU = not torch.cuda.is_available()
if ON_CPU:
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "archer.engines.verl.cpu.platform"
os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")

import torch.distributed as dist
from qwen_shape import qwen_1_5b
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict
from transformers import AutoTokenizer, Qwen2ForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry

import archer.engines.verl.plugin  # noqa: F401
from archer.config.actor import actor_config
from archer.data.builtin import tiny_reasoner_path
from archer.engines.verl.algorithms import RankLoss
from archer.engines.verl.influence import TracePlan
from archer.engines.verl.traced_update import ROW_ID, TracedUpdate
from archer.influence import Group, InfluenceConfig
from archer.training.portions import PORTION, whole_groups

OFF, ON = "without", "with"
GROUP = 8


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["tiny", "1.5b"], default="tiny")
    parser.add_argument("--rows", type=int, default=128, help="responses per step")
    parser.add_argument("--prompt", type=int, default=11, help="tokens per prompt")
    parser.add_argument("--length", type=int, default=34, help="tokens per response")
    parser.add_argument("--budget", type=int, default=2048, help="tokens per micro-batch")
    parser.add_argument("--rounds", type=int, default=10, help="updates per side")
    parser.add_argument("--factor", type=int, default=InfluenceConfig().projection_dim_factor)
    parser.add_argument("--packed", action="store_true", help="no padding; needs flash-attention to be fast")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--objective", default="training_loss", help="output_function")
    parser.add_argument("--undivided", action="store_true", help="score all groups at the end, no portions")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    return parser.parse_args()


def model_folder(options: argparse.Namespace, scratch: Path) -> str:
    """The tiny model's folder, or a new one with random weights."""
    if options.model == "tiny":
        return str(tiny_reasoner_path())
    torch.manual_seed(0)
    with torch.device("cuda"):
        Qwen2ForCausalLM(qwen_1_5b()).bfloat16().save_pretrained(scratch)
    AutoTokenizer.from_pretrained(tiny_reasoner_path()).save_pretrained(scratch)
    return str(scratch)


def make_engine(options: argparse.Namespace, folder: str) -> TracedUpdate:
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=HFModelConfig(
            path=folder,
            override_config={"attn_implementation": "flash_attention_2" if options.packed else "sdpa"},
            use_remove_padding=options.packed,
            enable_gradient_checkpointing=options.checkpointing,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            mixed_precision={"param_dtype": "fp32" if ON_CPU else "bf16", "reduce_dtype": "fp32"},
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-7, total_training_steps=1000),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def make_data(options: argparse.Namespace, vocabulary: int) -> TensorDict:
    """Random responses, half of each group accepted, with the advantages GRPO would give them."""
    generator = torch.Generator().manual_seed(0)
    rows, length, width = options.rows, options.length, options.prompt + options.length

    def jagged(lines: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(lines), layout=torch.jagged)

    tokens = torch.randint(1, vocabulary, (rows, width), generator=generator)
    signs = torch.tensor([1.0, -1.0]).repeat(rows // 2)[:, None].expand(rows, length)
    ones = torch.ones(rows, length, dtype=torch.long)
    data = TensorDict(
        {
            "prompts": jagged(tokens[:, : options.prompt]),
            "responses": jagged(tokens[:, options.prompt :]),
            "input_ids": jagged(tokens),
            "position_ids": jagged(torch.arange(width).expand(rows, width)),
            "response_mask": jagged(ones),
            "loss_mask": jagged(ones),
            "old_log_probs": jagged(torch.full((rows, length), -3.0)),
            "entropy": jagged(torch.ones(rows, length)),
            "advantages": jagged(signs),
            ROW_ID: torch.arange(rows),
        },
        batch_size=rows,
    )
    tu.assign_non_tensor(
        data,
        use_remove_padding=options.packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=options.budget,
        use_fused_kernels=False,
        temperature=1.0,
        calculate_entropy=False,
        pad_token_id=0,
    )
    return data


def make_plan(options: argparse.Namespace) -> TracePlan:
    """All groups traced, in the portions that a run would make of them."""
    rows = list(range(options.rows))
    groups = [
        Group(str(g), tuple(rows[g * GROUP : (g + 1) * GROUP]), (True, False) * (GROUP // 2))
        for g in range(options.rows // GROUP)
    ]
    lengths = [options.prompt + options.length] * options.rows
    most = sum(lengths) if options.undivided else PORTION * options.budget
    portions = whole_groups([row // GROUP for row in rows], rows, lengths, most)
    return TracePlan.of([portions], groups, {})


def one_update(engine: TracedUpdate, data: TensorDict, plan: TracePlan) -> float:
    assert engine.recorder is not None
    loss = RankLoss(actor_config(), 1024)
    clock = time.process_time if ON_CPU else time.perf_counter
    started = clock()
    engine.recorder.begin(plan)
    with engine.train_mode():
        engine.train_batch(data.clone(), loss_function=loss)
    engine.recorder.finish()
    if not ON_CPU:
        torch.cuda.synchronize()
    return clock() - started


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        store = f"file://{scratch}/store"
        backend = "gloo" if ON_CPU else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, init_method=store, rank=0, world_size=1)
        engine = make_engine(options, model_folder(options, Path(scratch)))
        knobs = InfluenceConfig(
            enable=True, projection_dim_factor=options.factor, output_function=options.objective
        )
        engine.trace(knobs)
        data = make_data(options, engine.module.config.vocab_size)
        plans = {OFF: TracePlan(), ON: make_plan(options)}
        times: dict[str, list[float]] = {OFF: [], ON: []}
        memory = {OFF: 0.0, ON: 0.0}
        for plan in plans.values():
            one_update(engine, data, plan)  # warm-up
        for _ in range(options.rounds):
            for side, plan in plans.items():
                if not ON_CPU:
                    torch.cuda.reset_peak_memory_stats()
                times[side].append(one_update(engine, data, plan))
                if not ON_CPU:
                    memory[side] = max(memory[side], torch.cuda.max_memory_allocated() / 2**30)
        dist.destroy_process_group()
    median = {side: statistics.median(values) for side, values in times.items()}
    table = Table(
        title=f"verl's update, {options.model} model, {'cpu' if ON_CPU else torch.cuda.get_device_name()}, "
        f"{options.rows} x {options.length} tokens, projection_dim_factor {options.factor}"
    )
    for heading in ("influence", "update, median s", "fastest s", "peak memory GiB"):
        table.add_column(heading, justify="right")
    for side in (OFF, ON):
        used = "-" if ON_CPU else f"{memory[side]:.3f}"
        table.add_row(side, f"{median[side]:.4f}", f"{min(times[side]):.4f}", used)
    table.add_row(
        "ratio",
        f"{median[ON] / median[OFF]:.3f}",
        f"{min(times[ON]) / min(times[OFF]):.3f}",
        "-" if ON_CPU else f"{memory[ON] / memory[OFF]:.3f}",
    )
    Console().print(table)


if __name__ == "__main__":
    main()
