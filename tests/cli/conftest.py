"""Small runs of the embedded default, in this process and in a real one."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from archer.config import compose
from archer.train import make_run
from archer.training.progress import Outcome

SMALL = (
    "data.train_batch_size=4",
    "data.val_max_samples=6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "trainer.total_training_steps=3",
    "trainer.save_freq=1",
    "engine.threads=1",
    "engine.device=cpu",
)
VOLATILE = ("timing_s/", "perf/")  # what differs between two equal runs


class Runs:
    """Starts small runs below a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arguments(self, name: str, *overrides: str) -> list[str]:
        return [*SMALL, f"trainer.default_local_dir={self.folder / name}", *overrides]

    def here(self, name: str, *overrides: str) -> Outcome:
        """Train in this process, with the thread count of a process of its own."""
        return make_run(compose(self.arguments(name, *overrides)), Console(file=io.StringIO())).execute()

    def process(self, name: str, *overrides: str) -> subprocess.Popen[str]:
        """Start `archer train` as a user would."""
        return subprocess.Popen(
            [sys.executable, "-m", "archer.cli", "train", *self.arguments(name, *overrides)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def metrics(self, name: str) -> list[dict[str, float]]:
        """Return what a run measured, without what depends on the clock."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [
            {key: value for key, value in json.loads(line).items() if not key.startswith(VOLATILE)}
            for line in lines
        ]

    def weights(self, name: str) -> dict[str, object]:
        """Return the weights of the newest checkpoint."""
        from safetensors.torch import load_file

        checkpoints = self.folder / name / "checkpoints"
        step = (checkpoints / "latest_checkpointed_iteration.txt").read_text()
        return load_file(checkpoints / f"global_step_{step}" / "model.safetensors")


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs that the tests of a file share; what changes them copies them first."""
    return Runs(tmp_path_factory.mktemp("runs"))
