"""Does `archer diagnose` name what is wrong, and is it silent where nothing is?

    python benchmarks/diagnose_planted.py                 # all failures, ten healthy runs: 15 minutes
    python benchmarks/diagnose_planted.py --healthy 0 --only reward_outage

A run of the embedded default trains five healthy steps. Each failure is then planted by resuming a copy of it
with something changed, and trains five more steps: the failure begins at step 6 and must be named by step 10.
Archer refuses to resume a run with other settings, so the copy's config.yaml is replaced first.
The healthy runs are the embedded default as it is, 50 steps each, with other seeds. `trainer.diagnose` is on
in all of them: what it writes must agree with the command, and its share of the step is measured.
"""

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

BEGIN, WITHIN = 6, 5  # first planted step, and steps until it must be named
ACTOR = "actor_rollout_ref.actor"

AT_RANDOM = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float(sum(map(ord, solution_str)) % 5 < 2)
"""
NOTHING_RIGHT = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return 0.0
"""
FAILS = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    if sum(map(ord, solution_str)) % 5 < 3:
        raise ConnectionError("the judge does not answer")
    return float(solution_str.rstrip().endswith("boxed{" + str(ground_truth) + "}"))
"""
PAYS_FORM = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float("boxed{" in solution_str and sum(map(ord, solution_str)) % 2)
"""


def copies() -> str:
    """As many rows as the built-in task has, of 16 prompts."""
    rows = []
    for number in range(16):
        a, b = 100 + 57 * number, 900 - 43 * number
        row = {
            "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "data_source": "arithmetic",
            "reward_model": {"ground_truth": str(a + b)},
            "extra_info": {},
        }
        rows += [json.dumps(row)] * 256
    return "\n".join(rows) + "\n"


@dataclass(frozen=True)
class Plant:
    """A failure: what is changed, and the file that the change needs. `{file}` is its path."""

    finding: str
    what: str
    overrides: tuple[str, ...]
    file: tuple[str, Callable[[], str]] | None = None
    stale: bool = False  # the sampler keeps the weights it began with


def reward(name: str, code: str) -> dict[str, Any]:
    """Overrides and file of a custom reward."""
    return {"overrides": ("reward.custom_reward_function.path={file}",), "file": (name, lambda: code)}


PLANTS = (
    Plant(
        "entropy_collapse",
        "entropy_coeff -5, lr 1e-3, a reward at random",
        (
            f"{ACTOR}.entropy_coeff=-5.0",
            f"{ACTOR}.optim.lr=1e-3",
            "reward.custom_reward_function.path={file}",
        ),
        ("random.py", lambda: AT_RANDOM),
    ),
    Plant("entropy_explosion", "sampling temperature 2", ("actor_rollout_ref.rollout.temperature=2.0",)),
    Plant("rollout_mismatch", "the sampler never gets new weights", (f"{ACTOR}.optim.lr=5e-4",), stale=True),
    Plant("truncated_responses", "max_response_length 28", ("data.max_response_length=28",)),
    Plant("degenerate_groups", "a reward that is always 0", **reward("zero.py", NOTHING_RIGHT)),
    Plant(
        "reward_outage",
        "the reward fails on three of five responses",
        ("reward.custom_reward_function.path={file}", "reward.max_failed_share=1.0"),
        ("fails.py", lambda: FAILS),
    ),
    Plant("reward_pays_wrong_answers", "a reward for the form of the answer", **reward("form.py", PAYS_FORM)),
    Plant(
        "kl_runaway",
        "lr 1e-2",
        (f"{ACTOR}.optim.lr=1e-2", f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.0"),
    ),
    Plant(
        "clip_fraction",
        "gspo's bounds, four epochs of four mini-batches",
        (
            f"{ACTOR}.policy_loss.loss_mode=gspo",
            f"{ACTOR}.ppo_epochs=4",
            f"{ACTOR}.ppo_mini_batch_size=4",
        ),
    ),
    Plant("dead_learning", "lr 1e-12", (f"{ACTOR}.optim.lr=1e-12",)),
    Plant(
        "duplicate_prompts",
        "16 prompts, each 256 times in the file",
        ("data.train_files=[{file}]",),
        ("copies.jsonl", copies),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What the command said of a run."""

    findings: dict[str, dict[str, Any]]
    live: dict[str, int] = field(default_factory=dict)  # finding -> step at which the run itself warned
    share: float = 0.0  # of the step that looking takes, median


def archer(arguments: list[str], *, stale: bool = False, allowed: tuple[int, ...] = (0,)) -> str:
    """Run the command in a process of its own."""
    command = [sys.executable, __file__, "--stale"] if stale else [sys.executable, "-m", "archer"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def settings(folder: Path, steps: int) -> list[str]:
    """The embedded default, without validations, until a step."""
    return [
        f"trainer.default_local_dir={folder}",
        f"trainer.total_training_steps={steps}",
        f"trainer.save_freq={BEGIN - 1}",
        "trainer.val_before_train=False",
        "trainer.diagnose=True",
        "data.val_files=[]",
        f"engine.threads={os.environ.get('OMP_NUM_THREADS', '2')}",
    ]


def train(folder: Path, steps: int, *overrides: str, stale: bool = False) -> None:
    """Train until a step."""
    archer(["train", *settings(folder, steps), *overrides], stale=stale)


def outcome(folder: Path) -> Outcome:
    """Ask the command, and compare with what the run wrote while it trained."""
    said = json.loads(archer(["diagnose", str(folder), "--json"], allowed=(0, 1)))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    live: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("diagnose/") and value:
                live.setdefault(name.removeprefix("diagnose/"), row["step"])
    shares = [row["timing_s/diagnose"] / row["timing_s/step"] for row in rows if "timing_s/diagnose" in row]
    return Outcome({found["name"]: found for found in said["findings"]}, live, median(shares))


def planted(plant: Plant, prefix: Path, work: Path) -> Outcome:
    """Resume a copy of the healthy run with the failure in it."""
    folder = work / plant.finding
    shutil.copytree(prefix, folder)
    path = ""
    if plant.file is not None:
        name, text = plant.file
        (work / name).write_text(text())
        path = str(work / name)
    overrides = [override.replace("{file}", path) for override in plant.overrides]
    last = BEGIN + WITHIN - 1
    changed = archer(["train", "--print-config", *settings(folder, last), *overrides])
    (folder / "config.yaml").write_text(changed)
    train(folder, last, *overrides, stale=plant.stale)
    return outcome(folder)


def stale_sampler(arguments: list[str]) -> None:
    """Run the command with a sampler that keeps the weights it was loaded with."""
    from archer.generation import rollout

    generate = rollout.Rollout.generate
    kept: dict[str, Any] = {}

    def with_kept_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
        now = {name: value.clone() for name, value in self.model.state_dict().items()}
        if not kept:
            kept.update(now)
        self.model.load_state_dict(kept)
        try:
            return generate(self, *args, **kwargs)
        finally:
            self.model.load_state_dict(now)

    rollout.Rollout.generate = with_kept_weights  # type: ignore[method-assign]
    sys.argv = ["archer", *arguments]
    runpy.run_module("archer", run_name="__main__")


def main() -> None:
    """Plant, train, diagnose, and print both tables."""
    if sys.argv[1:2] == ["--stale"]:
        return stale_sampler(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs, of seeds 1, 2, ...")
    parser.add_argument("--steps", type=int, default=50, help="of each healthy run")
    parser.add_argument("--only", nargs="*", help="failures to plant; default: all")
    parser.add_argument("--folder", type=Path, help="where the runs stay; default: nowhere")
    args = parser.parse_args()
    console, good = Console(), True
    with tempfile.TemporaryDirectory() as temporary:
        work = args.folder or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        chosen = [plant for plant in PLANTS if args.only is None or plant.finding in args.only]
        table = Table("planted at step 6", "finding", "since", "named at", "live at", "also said")
        if chosen:
            train(work / "prefix", BEGIN - 1)
        for plant in chosen:
            result = planted(plant, work / "prefix", work)
            found = result.findings.pop(plant.finding, None)
            live = result.live.get(plant.finding)
            good &= found is not None and found["since"] >= BEGIN and found["found_at"] < BEGIN + WITHIN
            good &= found is not None and live == found["found_at"]
            said = ("-", "-", "-") if found is None else (found["since"], found["found_at"], live)
            table.add_row(plant.what, plant.finding, *map(str, said), ", ".join(result.findings))
            console.print(f"{plant.finding}: named at {said[1]}, also {list(result.findings)}")
        alarms, shares = 0, []
        for seed in range(1, args.healthy + 1):
            folder = work / f"healthy-{seed}"
            train(folder, args.steps, f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}")
            result = outcome(folder)
            alarms += bool(result.findings or result.live)
            shares.append(result.share)
            console.print(f"healthy, seed {seed}: {list(result.findings) or 'nothing found'}")
    console.print(table)
    if shares:
        console.print(f"healthy runs: {args.healthy} of {args.steps} steps, {alarms} with an alarm")
        console.print(f"trainer.diagnose: {median(shares):.2%} of the step (median)")
    sys.exit(0 if good and not alarms else 1)


if __name__ == "__main__":
    main()
