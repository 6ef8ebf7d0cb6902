"""Time and memory of a training step: Archer's `engine=local` against TRL's `GRPOTrainer`, on the CPU.

    python benchmarks/local_vs_trl.py

Both train the embedded tiny reasoner with GRPO on the built-in arithmetic task, in float32 with fused AdamW:
the same weights, prompts in the same order, 16 prompts x 8 responses a step, length limit, temperature,
learning rate, gradient clipping, number of steps, threads, and the same check of the answer. There is no
reference model and one optimizer step per batch; the loss is the mean over all response tokens (Archer's
`token-mean`, TRL's `loss_type="dapo"`). `local_vs_trl_sides.py` holds both configurations.

The sides take turns, each run in a process of its own, so that what else the machine does falls on both. The
first steps of a run warm up and are not counted. The peak is the largest resident memory of the process;
`above loaded` is what of it came after model and libraries were in memory. Linux only (/proc).

Both generate all responses of a step at once. TRL trains on them in one pass, or in passes of `--trl-rows`
responses, which trades memory for time; Archer divides them by `ppo_max_token_len_per_gpu`, as the recipe
sets it.

TRL gets an environment of its own, `.venv-trl`, made when it is missing, with the versions of
constraints.txt. Run this with the interpreter Archer is installed in.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, median

from local_vs_trl_sides import SIDES, Figures, Workload
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TRL = "trl==1.16.0"
TRL_VENV = ROOT / ".venv-trl"
LAST_STEPS = (
    3  # over which the reward at the end is averaged; the first step is that of the untrained weights
)


def trl_python(console: Console) -> Path:
    """The interpreter of TRL's environment, made first if it is not there."""
    python = TRL_VENV / "bin" / "python"
    stamp = TRL_VENV / f".installed-{TRL}"
    if not stamp.is_file():
        console.print(f"Installing {TRL} into {TRL_VENV.name} ...")
        subprocess.run([sys.executable, "-m", "venv", TRL_VENV], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", "torch", TRL], check=True)
        stamp.touch()
    return python


def train(side: str, python: Path, work: Workload) -> Figures:
    """One training run in a fresh process; its output is shown only if it fails."""
    threads = {"OMP_NUM_THREADS": str(work.threads), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "figures.json"
        script = Path(__file__).with_name("local_vs_trl_sides.py")
        done = subprocess.run(
            [python, script, side, json.dumps(asdict(work)), target],
            env=os.environ | threads,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\nThe {side} side failed with exit code {done.returncode}.")
        return Figures(**json.loads(target.read_text()))


def compare(runs: dict[str, list[Figures]], warm_up: int, title: str) -> Table:
    """The table of both sides; times and lengths are medians over the counted steps of all runs."""
    table = Table(title=title)
    for column in ("", "TRL", "Archer", "TRL / Archer"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, unit: str, trl: float, archer: float, digits: int) -> None:
        table.add_row(name, f"{trl:.{digits}f}{unit}", f"{archer:.{digits}f}{unit}", f"{trl / archer:.2f}")

    def counted(side: str, field: str) -> float:
        return median(value for run in runs[side] for value in getattr(run, field)[warm_up:])

    def memory(side: str, above: bool) -> float:
        return median(run.peak_mib - run.loaded_mib * above for run in runs[side])

    row("time per step", " s", counted("trl", "seconds"), counted("archer", "seconds"), 3)
    row("CPU time per step", " s", counted("trl", "cpu_seconds"), counted("archer", "cpu_seconds"), 3)
    row("peak memory", " MiB", memory("trl", False), memory("archer", False), 0)
    row("  above loaded", " MiB", memory("trl", True), memory("archer", True), 0)
    row("response length", "", counted("trl", "lengths"), counted("archer", "lengths"), 1)
    for name, part in (
        ("reward, first step", slice(1)),
        ("reward, last steps", slice(-LAST_STEPS, None)),
    ):
        means = [mean(mean(run.rewards[part]) for run in runs[side]) for side in ("trl", "archer")]
        table.add_row(name, *(f"{value:.2f}" for value in means), "")
    return table


def main() -> None:
    """Let both sides train in turns and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30, help="steps of a run")
    parser.add_argument("--warm-up", type=int, default=2, help="first steps of a run that are not counted")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step")
    parser.add_argument("--responses", type=int, default=8, help="responses per prompt")
    parser.add_argument("--trl-rows", type=int, help="responses per backward pass of TRL; default: all")
    args = parser.parse_args()
    responses = args.prompts * args.responses
    if args.trl_rows and responses % args.trl_rows:
        parser.error(f"--trl-rows must divide the {responses} responses of a step")
    if args.steps <= args.warm_up:
        parser.error("--steps must be more than --warm-up")
    console = Console(width=100)
    pythons = {"trl": trl_python(console), "archer": Path(sys.executable)}
    work = Workload(
        prompts=args.prompts,
        responses=args.responses,
        steps=args.steps,
        max_response_length=48,
        temperature=1.0,
        learning_rate=4e-4,
        threads=args.threads,
        trl_rows=args.trl_rows or responses,
        seed=0,
    )
    runs: dict[str, list[Figures]] = {side: [] for side in SIDES}
    for number in range(1, args.rounds + 1):
        for side, python in pythons.items():
            figures = train(side, python, replace(work, seed=number))
            runs[side].append(figures)
            console.print(
                f"round {number}  {side:6}  {median(figures.seconds[args.warm_up :]):.3f} s a step, "
                f"peak {figures.peak_mib:.0f} MiB",
                highlight=False,
            )
    title = f"{args.prompts} x {args.responses} responses a step, {args.rounds} x {args.steps} steps a side"
    console.print(compare(runs, args.warm_up, f"{title}, {args.threads} threads"))


if __name__ == "__main__":
    main()
