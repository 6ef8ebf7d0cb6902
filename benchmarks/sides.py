"""The sides of a comparison of whole training steps on one GPU: what each is told, run and asked.

A side runs in a process of its own while this one watches the device's memory. What a side measured is
written at once; one that `--out` holds already, of the same work, is not measured again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WARM_UP = 2  # steps that are not counted: compilation, graphs, caches
WORK = ("model", "prompts", "steps", "prompts_a_step", "responses", "length", "vllm_memory", "archer")


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


def device_memory() -> float:
    """GiB in use on the device, by all processes."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) / 1024


def measure(side: str, path: str = "") -> dict[str, Any]:
    """Run one side of this script in a process of its own and watch the device's memory.

    path: a folder that goes before its PYTHONPATH
    """
    figures = Path(tempfile.mkdtemp()) / "figures.json"
    command = [sys.executable, *sys.argv, "--side", side, "--figures", str(figures)]
    folders = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | ({"PYTHONPATH": folders} if path else {})
    peak, before, done = 0.0, device_memory(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.3):
            peak = max(peak, device_memory() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        ended = subprocess.run(command, env=environment).returncode
    finally:
        done.set()
        watcher.join()
    found = json.loads(figures.read_text()) if ended == 0 else {"failed": [ended]}
    return {name: values[WARM_UP:] or values for name, values in found.items()} | {"memory": [peak]}


def measure_all(options: argparse.Namespace, columns: Sequence[str], paths: dict[str, str]) -> int:
    """Measure the sides that are not measured yet, and show all; the exit code: 1 if one of them failed.

    paths: side -> folder that goes before its PYTHONPATH
    """
    work = {name: getattr(options, name) for name in WORK}
    found = kept(options.out, work)
    for side in options.sides:
        if side not in found:
            found[side] = measure(side, paths.get(side, ""))
            print(side, {name: statistics.median(values) for name, values in found[side].items()}, flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps({"work": work, "sides": found}, indent=1))
    title = f"{options.prompts_a_step} x {options.responses} x {options.length}, {options.steps} steps"
    Console(width=140).print(as_table(title, columns, found))
    return int(any("failed" in figures for figures in found.values()))


def kept(file: str | None, work: dict[str, Any]) -> dict[str, Any]:
    """What an earlier call measured of the same work, but for sides that failed."""
    if file is None or not Path(file).is_file():
        return {}
    before = json.loads(Path(file).read_text())
    if before.get("work") != work:
        return {}
    return {side: figures for side, figures in before["sides"].items() if "failed" not in figures}


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
