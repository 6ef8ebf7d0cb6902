"""Running a grid: broken cases do not stop the others, kills lose nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archer.ablation.driver import ran_out_of_memory
from archer.errors import ArcherError

TRACED = "trainer.influence_trace.enable=True"
WELL, FAILS = "[]", "[trainer.project_name=fails]"


def case(behaviour: str) -> str:
    return f"[trainer.project_name={behaviour}]"


def test_a_failing_case_is_recorded_with_its_last_lines_and_the_grid_continues(grids) -> None:
    states = grids.run(f"cases: {{one: {WELL}, two: {FAILS}, three: {WELL}}}")
    assert {name: state.status for name, state in states.items()} == {
        "one": "done",
        "two": "failed",
        "three": "done",
    }
    (attempt,) = states["two"].attempts
    assert attempt.returncode == 1 and attempt.out_of_memory is None
    assert attempt.last_lines[-1] == "RuntimeError: the third wheel came off"
    log = (grids.out / "cases" / "two" / "train.log").read_text()
    assert log.startswith("$ ") and "training fails\n" in log
    assert "third wheel" in grids.printed.getvalue()


@pytest.mark.parametrize("behaviour", ["cuda", "killed"])
def test_a_case_that_dies_of_memory_is_retried_once_with_factors_offloaded(grids, behaviour: str) -> None:
    states = grids.run(f"{{shared: [{TRACED}], cases: {{big: {case(behaviour)}}}}}")
    first, second = states["big"].attempts
    assert states["big"].status == "done" and states["big"].offloaded
    assert (first.offloaded, second.offloaded) == (False, True)
    assert first.out_of_memory and second.returncode == 0
    assert (grids.starts("big"), grids.starts("big", "run_offloaded")) == (1, 1)


def test_a_case_that_dies_of_memory_twice_has_failed(grids) -> None:
    states = grids.run(f"{{shared: [{TRACED}], cases: {{big: {case('always_cuda')}, small: []}}}}")
    assert states["big"].status == "failed" and states["small"].status == "done"
    assert [attempt.out_of_memory for attempt in states["big"].attempts] == ["CUDA out of memory"] * 2


@pytest.mark.parametrize(
    "overrides",
    ["trainer.influence_trace.enable=False", f"{TRACED}, trainer.influence_trace.grad_offload_to_cpu=True"],
)
def test_no_retry_where_offloading_changes_nothing(grids, overrides: str) -> None:
    states = grids.run(f"{{shared: [{overrides}], cases: {{big: {case('always_cuda')}}}}}")
    assert states["big"].status == "failed" and len(states["big"].attempts) == 1


@pytest.mark.parametrize(
    ("returncode", "text", "memory"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried", True),
        (1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", True),
        (1, "MemoryError", True),
        (-9, "step 3", True),
        (137, "Killed", True),
        (1, "ValueError: wrong", False),
        (-15, "step 3", False),
        (0, "recovered from CUDA out of memory", False),
    ],
)
def test_memory_deaths_are_told_from_others(returncode: int, text: str, memory: bool) -> None:
    assert (ran_out_of_memory(returncode, text) is not None) is memory


def test_only_the_log_of_the_latest_start_is_judged(grids) -> None:
    grids.run(f"{{shared: [{TRACED}], cases: {{a: {case('always_cuda')}}}}}")
    log = grids.out / "cases" / "a" / "train.log"
    assert "CUDA out of memory" in log.read_text()
    grids.script.write_text("raise ValueError('something else')")
    states = grids.run(f"{{shared: [{TRACED}], cases: {{a: {case('always_cuda')}}}}}", retry_failed=True)
    (attempt,) = states["a"].attempts
    assert attempt.out_of_memory is None and "something else" in attempt.last_lines[-1]


def test_a_second_run_skips_what_is_done_and_tries_broken_cases_only_when_told(grids) -> None:
    text = f"cases: {{one: {WELL}, two: {case('once')}}}"
    assert grids.run(text)["two"].status == "failed"
    assert grids.run(text)["two"].status == "failed"
    assert (grids.starts("one"), grids.starts("two")) == (1, 1)
    assert grids.run(text, retry_failed=True)["two"].status == "done"
    assert (grids.starts("one"), grids.starts("two")) == (1, 2)


def test_jobs_run_at_the_same_time(grids) -> None:
    states = grids.run(f"cases: {{one: {case('meets')}, two: {case('meets')}}}", jobs=2)
    assert [state.status for state in states.values()] == ["done", "done"]
    assert states["one"].attempts[0].jobs == 2


def test_each_of_the_jobs_sees_its_own_device(grids) -> None:
    grids.script.write_text(
        "import os, sys\nfolder = dict(a.split('=', 1) for a in sys.argv[1:])['trainer.default_local_dir']\n"
        "os.makedirs(folder.strip(\"'\"))\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    grids.run("cases: {one: [], two: [], three: []}", jobs=2, gpus=("4", "6"))
    seen = [(grids.out / "cases" / name / "train.log").read_text()[-2] for name in ("one", "two", "three")]
    assert seen[:2] == ["4", "6"] and seen[2] in "46"


def test_checkpoints_of_finished_cases_go_where_the_grid_says_so(grids) -> None:
    text = f"{{cases: {{a: {WELL}}}, keep_checkpoints: %s}}"
    kept = grids.out / "cases" / "a" / "run" / "checkpoints"
    grids.script.write_text(
        "import os, sys\nfolder = dict(a.split('=', 1) for a in sys.argv[1:])['trainer.default_local_dir']\n"
        "os.makedirs(folder.strip(\"'\") + '/checkpoints/global_step_1')\n"
    )
    grids.run(text % "false")
    assert kept.parent.is_dir() and not kept.exists()


def test_a_grid_with_other_overrides_is_refused_in_the_same_folder(grids) -> None:
    grids.run("cases: {a: [data.seed=1]}")
    with pytest.raises(ArcherError, match=r"only there: data\.seed=1\n  only now:   data\.seed=2"):
        grids.run("cases: {a: [data.seed=2]}")
    assert grids.run("cases: {a: [data.seed=1], b: []}")["b"].status == "done"  # but it may grow


def command_line(grids, grid: str) -> subprocess.Popen[str]:
    """Start `archer ablate run` as a user would."""
    file = grids.out.parent / "grid.yaml"
    file.write_text(grid)
    stand_in = f"{sys.executable} {grids.script}"
    arguments = ["ablate", "run", str(file), "--out", str(grids.out), "--command", stand_in]
    return subprocess.Popen(
        [sys.executable, "-m", "archer.cli", *arguments], stdout=subprocess.PIPE, text=True
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_after_a_sigkill_of_the_driver_nothing_is_left_behind_and_the_grid_resumes(grids) -> None:
    grid = f"cases: {{one: {WELL}, two: {case('hangs_once')}, three: {WELL}}}"
    driver = command_line(grids, grid)
    folder = grids.out / "cases" / "two" / "run"
    wait_for(folder / "ready", driver)
    driver.kill()
    driver.wait()
    orphan = int((folder / "starts").read_text())
    deadline = time.monotonic() + 30
    while alive(orphan):
        assert time.monotonic() < deadline, "the case outlived its driver"
        time.sleep(0.02)
    states = grids.run(grid)
    assert [state.status for state in states.values()] == ["done"] * 3
    assert [grids.starts(name) for name in states] == [1, 2, 1]
    assert states["two"].attempts[-1].starts == 2


def test_ctrl_c_lets_a_case_save_and_the_same_command_resumes(grids) -> None:
    grid = f"cases: {{one: {case('waits')}, two: {WELL}}}"
    driver = command_line(grids, grid)
    folder = grids.out / "cases" / "one" / "run"
    wait_for(folder / "ready", driver)
    driver.send_signal(signal.SIGINT)
    printed, _ = driver.communicate()
    assert driver.returncode == 130 and "The same command resumes" in printed
    assert (folder / "checkpoints").is_dir() and grids.starts("two") == 0
    again = command_line(grids, grid)
    printed, _ = again.communicate()
    assert again.returncode == 0 and "2 of 2 cases done" in printed
    assert (grids.starts("one"), grids.starts("two")) == (2, 1)
