"""Every figure of docs/ that needs one GPU, measured in order: one log and one state a measurement.

    archer data prepare gsm8k --out train.jsonl
    archer data prepare gsm8k --split test --out test.jsonl
    python benchmarks/one_gpu.py MODEL train.jsonl test.jsonl --out output/gpu --minutes 9

The first, `setup`, finds out in half a minute what the machine lacks (`gpu_setup.py`); what cannot succeed
without it is left out, unless `--only` names measurements and not `setup`. What is done is not done again,
nothing is begun that would not fit into the minutes left (by estimates for an H200, `--list`), comparisons
and runs continue after what they have: a few minutes at a time are enough.

MODEL is Qwen2.5-0.5B-Instruct or its Coder; the LoRA recipe gets Qwen2.5-1.5B's shape with random weights,
verdicts by chance and as much memory as a card of 24 GB has. TRL must not be on the path of processes that
import verl: `--trl-path`.
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

import psutil
from qwen_shape import qwen_1_5b
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ARCHER = [sys.executable, "-m", "archer"]


GRACE_S = 40  # to finish a step and save
SMALL_GIB = 23  # free on a card of 24 GB


@dataclass(frozen=True)
class Measurement:
    """A command, how long it takes on an H200, and what its figures are for."""

    minutes: float
    purpose: str
    command: Callable[[argparse.Namespace], list[str]]
    needs: tuple[str, ...] = ("gpu",)  # checks of `gpu_setup.py`
    resumes: float = 0.0  # minutes that are worth beginning with, where what was cut off is not lost


def bench(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / name), *arguments]


def update(name: str, *more: str) -> list[str]:
    """A benchmark of the update of a 0.5B-shaped model on what a step of the recipe samples."""
    size = ["--model", "0.5b", "--rows", "256", "--prompt", "100", "--length", "512", "--ragged"]
    return bench(name, *size, "--budget", "32768", *more)


def setup(options: argparse.Namespace) -> list[str]:
    more = ["--trl-path", options.trl_path, "--out", str(options.out / "setup.json")]
    return bench("gpu_setup.py", options.model, options.train, *more, "--archer", *options.archer)


def compare(script: str, *sides: str) -> Callable[[argparse.Namespace], list[str]]:
    """A comparison of whole steps; its figures are beside its log."""

    def command(options: argparse.Namespace) -> list[str]:
        more = ["--steps", "5", "--out", str(options.out / f"{Path(script).stem}.json")]
        if script == "gpu_vs_trl.py":
            more += ["--trl-path", options.trl_path]
        more += ["--sides", *sides, "--archer", *options.archer]
        return bench(script, options.model, options.train, *more)

    return command


def data(options: argparse.Namespace) -> list[str]:
    return [
        f"actor_rollout_ref.model.path={options.model}",
        f"data.train_files=[{options.train}]",
        f"data.val_files=[{options.test}]",
    ]


def lora(options: argparse.Namespace) -> list[str]:
    """Three steps on what a card of 24 GB has; closing lines and metrics.jsonl hold the peak of memory."""
    model = options.out / "random-1.5b"
    if not (model / "tokenizer_config.json").is_file():  # written last
        import torch
        from transformers import AutoTokenizer, Qwen2ForCausalLM

        Qwen2ForCausalLM(qwen_1_5b()).to(torch.bfloat16).save_pretrained(model)
        AutoTokenizer.from_pretrained(options.model).save_pretrained(model)
    run = [
        "recipe=qwen2.5_1.5b_lora_gsm8k",
        *data(options),
        f"actor_rollout_ref.model.path={model}",
        f"reward.custom_reward_function.path={HERE / 'coin_reward.py'}",
        "trainer.total_training_steps=3",
        "trainer.val_before_train=False",
        f"trainer.default_local_dir={options.out / 'lora'}",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
    ]
    return bench("little_memory.py", str(SMALL_GIB), *ARCHER, "train", *run, *options.archer)


def on_verl(options: argparse.Namespace) -> list[str]:
    """Thirty steps, a checkpoint every ten; learning shows in its validations."""
    run = [
        "engine=verl",
        "recipe=qwen2.5_0.5b_gsm8k",
        *data(options),
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "ray_kwargs.ray_init.address=local",
        "trainer.total_training_steps=30",
        "trainer.save_freq=10",
        "trainer.test_freq=15",
        "trainer.max_actor_ckpt_to_keep=1",
        f"trainer.default_local_dir={options.out / 'on-verl'}",
    ]
    return [*ARCHER, "train", *run, *options.archer]


def grid(name: str) -> Callable[[argparse.Namespace], list[str]]:
    def command(options: argparse.Namespace) -> list[str]:
        jobs = ["--jobs", str(options.jobs), "--out", str(options.out / name), "--retry-failed"]
        return [*ARCHER, "ablate", "run", name, *jobs, *data(options), *options.archer]

    return command


def tests(file: str, *chosen: str) -> Callable[[argparse.Namespace], list[str]]:
    path = str(HERE.parent / "tests" / "engines" / file)
    return lambda _: [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", path, *chosen]


TRACED = ("--objective", "log_prob", "--groups", "4", "--rounds", "5")
CREDITED = ("--rounds", "5", "--step", "1.6")
VLLM, VERL = ("gpu", "model", "vllm"), ("gpu", "model", "vllm", "ray", "verl")

MEASUREMENTS = {
    "setup": Measurement(0.5, "what the machine lacks", setup, ()),
    "tests": Measurement(2, "CUDA tests of the local engine", tests("local/test_cuda.py"), ("gpu", "tests")),
    "influence": Measurement(
        1.5, "influence's share of the update", lambda _: update("tracing_overhead.py", *TRACED)
    ),
    "credit": Measurement(2, "what token credit costs", lambda _: update("token_credit.py", *CREDITED)),
    "solve": Measurement(
        1, "the kernel solve against Cholesky", lambda _: bench("influence_solve.py", "--device", "cuda")
    ),
    "lora": Measurement(2.5, "memory and speed of the LoRA recipe at 1.5B in 24 GB", lora, ("gpu", "model")),
    "tests-vllm": Measurement(
        6, "engine=local with vLLM", tests("test_cuda_vllm.py", "-k", "not verl"), (*VLLM, "tests")
    ),
    "tests-verl": Measurement(
        5,
        "engine=verl with vLLM, resumed",
        tests("test_cuda_vllm.py", "-k", "verl and whole"),
        (*VERL, "tests"),
    ),
    "tests-verl-lora": Measurement(
        5, "the same with LoRA", tests("test_cuda_vllm.py", "-k", "verl and lora"), (*VERL, "tests")
    ),
    "verl": Measurement(
        11,
        "a step of engine=verl beside stock verl",
        compare("gpu_vs_verl.py", "verl", "archer-verl", "archer-verl-untraced", "archer-local"),
        VERL,
        resumes=3.5,
    ),
    "archer": Measurement(
        2.5,
        "a step with and without vLLM",
        compare("gpu_vs_trl.py", "archer-hf", "archer-vllm"),
        VLLM,
        resumes=1.5,
    ),
    "trl": Measurement(
        7,
        "a step of TRL with and without vLLM, and vLLM alone",
        compare("gpu_vs_trl.py", "trl-hf", "trl-vllm", "vllm"),
        (*VLLM, "trl"),
        resumes=3,
    ),
    "on-verl": Measurement(11, "thirty steps of engine=verl with vLLM", on_verl, VERL, resumes=4),
    "gsm8k": Measurement(22, "GSM8K, three seeds of 150 steps", grid("gsm8k"), ("gpu", "model"), resumes=2),
    "credit_gsm8k": Measurement(
        30,
        "token credit on GSM8K, four cases of three seeds",
        grid("credit_gsm8k"),
        ("gpu", "model"),
        resumes=2,
    ),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("train", help="JSONL file of prompts to train on")
    parser.add_argument("test", help="JSONL file of held-out prompts")
    parser.add_argument("--out", type=Path, default=Path("output/gpu"), help="folder of logs and runs")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="when to stop")
    parser.add_argument("--jobs", type=int, default=1, help="runs of a grid side by side")
    parser.add_argument("--trl-path", default="", help="folder with TRL")
    parser.add_argument("--archer", nargs="*", default=[], help="further settings of all runs, for a trial")
    parser.add_argument("--list", action="store_true", help="show what is done and what it takes, and stop")
    return parser.parse_args()


def state_of(options: argparse.Namespace, name: str) -> str:
    file = options.out / f"{name}.state.json"
    return str(json.loads(file.read_text())["state"]) if file.is_file() else "not yet"


def lacking(options: argparse.Namespace) -> dict[str, str]:
    """What the last look at the machine found to be wrong: check -> in which way."""
    file = options.out / "setup.json"
    found = json.loads(file.read_text()) if file.is_file() else {}
    return {name: wrong for name, wrong in found.items() if wrong}


def measure(options: argparse.Namespace, name: str, minutes_left: float) -> str:
    """Run one measurement; return how it ended."""
    with (options.out / f"{name}.log").open("a") as log:
        command = MEASUREMENTS[name].command(options)
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        limit = None if minutes_left == float("inf") else max(1.0, 60 * minutes_left - GRACE_S)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            stop(process)
            return "cut off"
    return "done" if code == 0 else f"failed ({code})"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a command to end, as Ctrl-C does; kill what has not ended in time, and all that it started."""
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = psutil.wait_procs(started, timeout=2)[1]  # Ray's programs are in groups of their own
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=10)  # the next measurement wants their memory


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    for name in ("model", "train", "test"):
        setattr(options, name, str(Path(getattr(options, name)).resolve()))
    # flashinfer may have to compile its sampler first: all sides take vLLM's own
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    begun = time.monotonic()
    for name in () if options.list else options.only:
        left = options.minutes - (time.monotonic() - begun) / 60
        needed = MEASUREMENTS[name].resumes or MEASUREMENTS[name].minutes
        if state_of(options, name) == "done" or left < needed:
            continue
        wrong = lacking(options) if "setup" in options.only else {}
        missing = [need for need in MEASUREMENTS[name].needs if need in wrong]
        state = f"needs {', '.join(missing)}" if missing else measure(options, name, left)
        seconds = round(time.monotonic() - begun)
        (options.out / f"{name}.state.json").write_text(json.dumps({"state": state, "after_s": seconds}))
        print(f"{name}: {state}", flush=True)
        for check, text in lacking(options).items() if name == "setup" else ():
            print(f"  {check}: {text}", flush=True)
    table = Table("measurement", "minutes", "state", "what for", title=str(options.out))
    for name, measurement in MEASUREMENTS.items():
        table.add_row(name, f"{measurement.minutes:g}", state_of(options, name), measurement.purpose)
    Console().print(table)


if __name__ == "__main__":
    main()
