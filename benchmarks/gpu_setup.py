"""What a GPU machine must have before anything is measured on it, found out in half a minute.

    python benchmarks/gpu_setup.py MODEL train.jsonl --trl-path TRL --out setup.json

Each check is a process of its own, all run at the same time, and says in a line what is wrong. `one_gpu.py`
runs this first and leaves out what could not succeed.
"""

import argparse
import json
import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sides import device_memory

LIMIT_S = 240  # of a check; all of them take seconds where nothing is wrong
LOCAL = ["recipe=qwen2.5_0.5b_gsm8k", "data.val_files=[]"]
ON_VERL = ["engine=verl", "actor_rollout_ref.rollout.name=vllm"]


def gpu(options: argparse.Namespace) -> str:
    """A kernel is compiled and run: driver, torch, Triton, a C compiler and Python's headers fit together."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA device")
    numbers = torch.ones(4096, device="cuda")
    total = float(torch.compile(lambda x: (x * 2).relu() + 1)(numbers).sum())
    if total != 3 * 4096:
        raise RuntimeError(f"a compiled kernel computes {total} where it should be {3 * 4096}")
    free, there = (size / 2**30 for size in torch.cuda.mem_get_info())
    used = device_memory()  # nvidia-smi is what memory is read from
    name = torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, {free:.0f} of {there:.0f} GiB free, {used:.1f} GiB in use"


def model(options: argparse.Namespace) -> str:
    """The model is loaded and run on the device; prompts, rewards and disk are those of a dry run."""
    import torch
    from transformers import AutoModelForCausalLM

    dry_run(options, LOCAL)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(device)
    logits = loaded(input_ids=torch.arange(1, 9, device=device)[None]).logits
    if not bool(logits.isfinite().all()):
        raise RuntimeError(f"the logits of {options.model} are not finite")
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    return f"{parameters / 1e6:,.1f} M parameters, transformers {version('transformers')}"


def vllm(options: argparse.Namespace) -> str:
    """vLLM can be imported, with its kernels, which are made for one torch, and finds the device."""
    import vllm
    from vllm import LLM, SamplingParams, _custom_ops  # noqa: F401
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import Worker  # noqa: F401

    if not current_platform.is_cuda():
        raise RuntimeError(f"vLLM runs on {type(current_platform).__name__} here: it found no CUDA device")
    return f"vLLM {vllm.__version__}"


def ray(options: argparse.Namespace) -> str:
    """A Ray of the run's own starts, and a process in it has the device."""
    import ray

    from archer.engines.verl.versions import ray_programs_problem

    if problems := ray_programs_problem():
        raise RuntimeError(problems[0])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        devices = ray.cluster_resources().get("GPU", 0)

        @ray.remote(num_gpus=min(1, devices))
        def seen() -> int:
            import torch

            return torch.cuda.device_count()

        if ray.get(seen.remote(), timeout=120) < 1:
            raise RuntimeError(f"Ray counts {devices:g} GPUs, and torch in its processes sees none")
    finally:
        ray.shutdown()
    return f"Ray {ray.__version__}, {devices:g} GPU"


def verl(options: argparse.Namespace) -> str:
    """engine=verl could start: versions, verl's inside, its side of vLLM, and a dry run."""
    from archer.engines.verl.versions import check_internals, check_versions

    found = check_versions("vllm")
    check_internals(found["verl"])
    import verl.workers.rollout.vllm_rollout.vllm_async_server  # noqa: F401

    dry_run(options, [*LOCAL, *ON_VERL])
    return ", ".join(f"{name} {number}" for name, number in found.items())


def trl(options: argparse.Namespace) -> str:
    """TRL can be imported from where it was put."""
    sys.path.insert(0, options.trl_path)
    from trl import GRPOConfig, GRPOTrainer  # noqa: F401

    return f"TRL {version('trl')}"


def tests(options: argparse.Namespace) -> str:
    """The tests can be run: pytest, and the folder of tests beside this one."""
    import pytest

    if not (folder := Path(__file__).parents[1] / "tests" / "engines").is_dir():
        raise RuntimeError(f"there is no {folder}")
    return f"pytest {pytest.__version__}"


CHECKS = {check.__name__: check for check in (gpu, model, vllm, ray, verl, trl, tests)}


def dry_run(options: argparse.Namespace, settings: list[str]) -> None:
    """Have `archer train --dry-run` look at a run of the model and the prompts."""
    run = [f"actor_rollout_ref.model.path={options.model}", f"data.train_files=[{options.train}]"]
    command = [sys.executable, "-m", "archer", "train", "--dry-run", *settings, *run, *options.archer]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "300"})
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("train", help="JSONL file of prompts")
    parser.add_argument("--trl-path", default="", help="folder with TRL")
    parser.add_argument("--archer", nargs="*", default=[], help="further settings of Archer")
    parser.add_argument("--out", type=Path, help="JSON file: what is wrong by check, empty where nothing is")
    parser.add_argument("--checks", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--check", choices=list(CHECKS), help="run one check in this process")
    return parser.parse_args()


def look(name: str) -> tuple[bool, str]:
    """Run a check in a process of its own; whether all is well, and its last line."""
    command = [sys.executable, *sys.argv, "--check", name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False, f"no answer in {LIMIT_S} s"
    if ended.returncode != 0:
        print(f"--- {name}\n{ended.stderr[-3000:]}", flush=True)
    said = ended.stdout.strip().splitlines()
    return ended.returncode == 0, said[-1] if said else f"ended with {ended.returncode}"


def run_check(options: argparse.Namespace) -> int:
    """Run one check in this process and print one line."""
    try:
        print(CHECKS[options.check](options))
    except Exception as error:  # whatever a package raises that does not fit
        traceback.print_exc()
        print(" ".join(f"{type(error).__name__}: {error}".split()))
        return 1
    return 0


def main() -> int:
    options = parse()
    if options.check:
        return run_check(options)
    with ThreadPoolExecutor() as pool:
        found = dict(zip(options.checks, pool.map(look, options.checks), strict=True))
    table = Table("check", "", "found")
    for name, (well, text) in found.items():
        table.add_row(name, "[green]ok[/green]" if well else "[red]no[/red]", escape(text))
    Console(width=160).print(table)
    if options.out:
        wrong = {name: "" if well else text for name, (well, text) in found.items()}
        options.out.write_text(json.dumps(wrong, indent=1))
    return int(not all(well for well, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
