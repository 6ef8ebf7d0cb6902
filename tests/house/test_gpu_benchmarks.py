"""The measurements for a GPU machine: what they need, leave out, repeat and clean up, none of it on a GPU."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import psutil
import pytest

from archer.config import compose

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """The scripts as modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_setup
    import one_gpu
    import sides

    return Namespace(gpu_setup=gpu_setup, one_gpu=one_gpu, sides=sides)


@pytest.fixture
def options(tmp_path) -> Namespace:
    return Namespace(
        model="model", train="train.jsonl", test="test.jsonl", out=tmp_path, archer=[], jobs=1, trl_path=""
    )


def test_what_measurements_need_is_checked(scripts):
    needed = {need for each in scripts.one_gpu.MEASUREMENTS.values() for need in each.needs}
    assert needed == set(scripts.gpu_setup.CHECKS)


@pytest.mark.parametrize("name", ["lora", "on-verl"])
def test_the_settings_of_runs_are_those_of_archer_train(scripts, options, name):
    (options.out / "random-1.5b").mkdir()
    (options.out / "random-1.5b" / "tokenizer_config.json").write_text("{}")  # the model is made already
    command = scripts.one_gpu.MEASUREMENTS[name].command(options)
    config = compose(command[command.index("train") + 1 :])
    assert config.trainer.influence_trace.enable and config.trainer.total_training_steps in (3, 30)


def test_a_measurement_is_left_out_where_the_machine_lacks_what_it_needs(scripts, tmp_path, monkeypatch):
    (tmp_path / "setup.json").write_text(json.dumps({"gpu": "no device", "model": ""}))
    (tmp_path / "setup.state.json").write_text(json.dumps({"state": "done"}))
    given = ["one_gpu.py", "model", "train", "test", "--out", str(tmp_path), "--only", "setup", "influence"]
    monkeypatch.setattr(sys, "argv", [*given, "lora"])
    monkeypatch.setattr(scripts.one_gpu, "measure", lambda *_: pytest.fail("it was measured"))
    scripts.one_gpu.main()
    states = [json.loads((tmp_path / f"{name}.state.json").read_text()) for name in ("influence", "lora")]
    assert [state["state"] for state in states] == ["needs gpu", "needs gpu"]


def test_a_comparison_measures_what_failed_again_and_what_it_has_not(scripts, options, monkeypatch):
    work = dict.fromkeys(scripts.sides.WORK, 1) | {
        "sides": ["good", "bad"],
        "out": str(options.out / "x.json"),
    }
    answers = {"good": {"seconds": [2.0]}, "bad": {"failed": [1]}}
    measured = []
    monkeypatch.setattr(scripts.sides, "measure", lambda side, _: measured.append(side) or answers[side])

    def compare() -> int:
        measured.clear()
        return scripts.sides.measure_all(Namespace(**work), ("seconds",), {})

    assert compare() == 1 and measured == ["good", "bad"]
    answers["bad"] = {"seconds": [3.0]}
    assert compare() == 0 and measured == ["bad"]
    work["length"] = 2
    assert compare() == 0 and measured == ["good", "bad"], "of other work nothing is kept"


def test_what_is_cut_off_ends_with_all_that_it_started(scripts, monkeypatch):
    """Ray's programs are in sessions of their own, where no signal to the group reaches them."""
    monkeypatch.setattr(scripts.one_gpu, "GRACE_S", 0.2)
    program = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)'];"
        "p = subprocess.Popen(sleep, start_new_session=True);"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    scripts.one_gpu.stop(process)
    process.stdout.close()
    assert process.returncode is not None
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
