"""Running `archer train` on a Ray of its own, and leaving nothing of it behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

SETTINGS = [
    "engine=verl",
    "engine.device=cpu",
    "engine.threads=1",
    "data.train_batch_size=4",
    "data.val_max_samples=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
]
PATIENCE_S = 900  # far beyond any honest run: two of them may share two busy cores


def archer(*arguments: str, **variables: str) -> subprocess.Popen:
    """Start an `archer` command, with variables of the environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.Popen(
        [sys.executable, "-m", "archer.cli", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, code: int = 0) -> str:
    """The output of a command that is to end with `code`."""
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    assert process.returncode == code, output
    return output


def end(process: subprocess.Popen) -> None:
    """Kill a command and every process that it started."""
    for member in [*descendants(process), process]:
        if psutil.pid_exists(member.pid):
            member.kill()


def descendants(process: subprocess.Popen) -> list[psutil.Process]:
    """All processes below a command."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Wait for what a running command is to bring about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.2)  # polling a file that another process writes
