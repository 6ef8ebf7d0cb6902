"""Every figure of docs/ that needs one GPU, measured in order: one log and one state a measurement.

    archer data prepare gsm8k --out train.jsonl
    archer data prepare gsm8k --split test --out test.jsonl
    python benchmarks/one_gpu.py MODEL train.jsonl test.jsonl --out gpu --minutes 25

What is done is not done again, nothing is begun that would not fit into the minutes left (by estimates for an
H200, `--list`), and the grids continue after their last whole run: half an hour at a time is enough.

MODEL is Qwen2.5-0.5B-Instruct or its Coder; the LoRA recipe gets Qwen2.5-1.5B's shape with random weights,
enough for memory and speed. TRL must not be on the path of processes that import verl: `--trl-path`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qwen_shape import qwen_1_5b
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ARCHER = [sys.executable, "-m", "archer"]


@dataclass(frozen=True)
class Measurement:
    """A command, how long it takes on an H200, and what its figures are for."""

    minutes: float
    purpose: str
    command: Callable[[argparse.Namespace], list[str]]


def bench(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / name), *arguments]


def update(name: str, *more: str) -> list[str]:
    """A benchmark of the update of a 0.5B-shaped model on what a step of the recipe samples."""
    size = ["--model", "0.5b", "--rows", "256", "--prompt", "100", "--length", "512", "--ragged"]
    return bench(name, *size, "--budget", "32768", *more)


def peers(options: argparse.Namespace) -> list[str]:
    file = str(options.out / "trl.json")
    path = ["--trl-path", options.trl_path]
    return bench("gpu_vs_trl.py", options.model, options.train, "--steps", "6", *path, "--out", file)


def stock(options: argparse.Namespace) -> list[str]:
    file = str(options.out / "verl.json")
    return bench("gpu_vs_verl.py", options.model, options.train, "--steps", "6", "--out", file)


def data(options: argparse.Namespace) -> list[str]:
    return [
        f"actor_rollout_ref.model.path={options.model}",
        f"data.train_files=[{options.train}]",
        f"data.val_files=[{options.test}]",
    ]


def lora(options: argparse.Namespace) -> list[str]:
    """Three steps; the closing lines and metrics.jsonl hold the peak of the memory."""
    model = options.out / "random-1.5b"
    if not model.is_dir():
        from transformers import AutoTokenizer, Qwen2ForCausalLM

        Qwen2ForCausalLM(qwen_1_5b()).save_pretrained(model)
        AutoTokenizer.from_pretrained(options.model).save_pretrained(model)
    run = [
        "recipe=qwen2.5_1.5b_lora_gsm8k",
        "trainer.total_training_steps=3",
        "trainer.val_before_train=False",
    ]
    folder = [
        f"trainer.default_local_dir={options.out / 'lora'}",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
    ]
    return [*ARCHER, "train", *run, *data(options), f"actor_rollout_ref.model.path={model}", *folder]


def on_verl(options: argparse.Namespace) -> list[str]:
    """Thirty steps, a checkpoint half-way; learning shows in its validations."""
    settings = ["engine=verl", "recipe=qwen2.5_0.5b_gsm8k", "actor_rollout_ref.rollout.name=vllm"]
    settings += ["actor_rollout_ref.rollout.gpu_memory_utilization=0.3"]
    settings += ["actor_rollout_ref.actor.use_torch_compile=False", "ray_kwargs.ray_init.address=local"]
    settings += ["trainer.total_training_steps=30", "trainer.save_freq=15", "trainer.test_freq=15"]
    return [
        *ARCHER,
        "train",
        *settings,
        *data(options),
        f"trainer.default_local_dir={options.out / 'on-verl'}",
    ]


def grid(name: str) -> Callable[[argparse.Namespace], list[str]]:
    def command(options: argparse.Namespace) -> list[str]:
        jobs = ["--jobs", str(options.jobs), "--out", str(options.out / name), "--retry-failed"]
        return [*ARCHER, "ablate", "run", name, *jobs, *data(options)]

    return command


def tests(options: argparse.Namespace) -> list[str]:
    files = ["tests/engines/local/test_cuda.py", "tests/engines/test_cuda_vllm.py"]
    return [sys.executable, "-m", "pytest", "-x", *files]


MEASUREMENTS = {
    "tests": Measurement(8, "the CUDA tests, with vLLM and verl", tests),
    "trl": Measurement(9, "a step beside TRL with and without vLLM, and vLLM alone", peers),
    "verl": Measurement(10, "a step of engine=verl beside stock verl", stock),
    "influence": Measurement(
        1.5,
        "influence's share of the update",
        lambda _: update("tracing_overhead.py", "--objective", "log_prob", "--groups", "4", "--rounds", "5"),
    ),
    "credit": Measurement(
        2, "what token credit costs", lambda _: update("token_credit.py", "--rounds", "5", "--step", "1.6")
    ),
    "solve": Measurement(
        1, "the kernel solve against Cholesky", lambda _: bench("influence_solve.py", "--device", "cuda")
    ),
    "lora": Measurement(2, "memory and speed of the LoRA recipe at 1.5B", lora),
    "on-verl": Measurement(11, "thirty steps of engine=verl with vLLM", on_verl),
    "gsm8k": Measurement(22, "GSM8K, three seeds of 150 steps", grid("gsm8k")),
    "credit_gsm8k": Measurement(30, "token credit on GSM8K, four cases of three seeds", grid("credit_gsm8k")),
}
RESUMES = ("on-verl", "gsm8k", "credit_gsm8k")  # what was cut off is not lost


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("train", help="JSONL file of prompts to train on")
    parser.add_argument("test", help="JSONL file of held-out prompts")
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of logs, figures and runs")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="when to stop")
    parser.add_argument("--jobs", type=int, default=1, help="runs of a grid side by side")
    parser.add_argument("--trl-path", default="", help="folder with TRL")
    parser.add_argument("--list", action="store_true", help="show what is done and what it takes, and stop")
    return parser.parse_args()


def state_of(options: argparse.Namespace, name: str) -> str:
    file = options.out / f"{name}.state.json"
    return str(json.loads(file.read_text())["state"]) if file.is_file() else "not yet"


def measure(options: argparse.Namespace, name: str, minutes_left: float) -> str:
    """Run one measurement; return how it ended."""
    with (options.out / f"{name}.log").open("a") as log:
        command = MEASUREMENTS[name].command(options)
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(None if minutes_left == float("inf") else 60 * minutes_left)
        except subprocess.TimeoutExpired:
            stop(process)
            return "cut off"
    return "done" if code == 0 else f"failed ({code})"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a command and all that it started to end, as Ctrl-C does; after half a minute end them."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
            return


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    begun = time.monotonic()
    for name in () if options.list else options.only:
        left = options.minutes - (time.monotonic() - begun) / 60
        needed = 2.0 if name in RESUMES else MEASUREMENTS[name].minutes
        if state_of(options, name) == "done" or left < needed:
            continue
        state = measure(options, name, left)
        seconds = round(time.monotonic() - begun)
        (options.out / f"{name}.state.json").write_text(json.dumps({"state": state, "after_s": seconds}))
        print(f"{name}: {state}", flush=True)
    table = Table("measurement", "minutes", "state", "what for", title=str(options.out))
    for name, measurement in MEASUREMENTS.items():
        table.add_row(name, f"{measurement.minutes:g}", state_of(options, name), measurement.purpose)
    Console().print(table)


if __name__ == "__main__":
    main()
