"""A run killed at any instant leaves a whole trace, minus at most the step in flight."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from archer.trace.check import check_trace
from archer.trace.writer import TraceWriter

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
CONFTEST = str(Path(__file__).with_name("conftest.py"))

RUN = """
import runpy, sys
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

folder, conftest, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
made = TraceStep.from_batch(**runpy.run_path(conftest)["make_batch"](rows=64, width=200))
with TraceWriter(folder, kind="influence") as writer:
    for step in range(first, 10**6):
        writer.write(step, made)
        print(step, flush=True)  # step is handed over, so the one before it is written
"""

ORDER = [1, 2, 1, 3]
CRASH_EVERYWHERE = f"""
ORDER = {ORDER}
import os, pathlib, runpy, sys
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

base, conftest = pathlib.Path(sys.argv[1]), sys.argv[2]
made = TraceStep.from_batch(**runpy.run_path(conftest)["make_batch"]())

def run(folder, fatal):
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.remove", "os.truncate") and str(folder) in str(arguments[0]):
            if seen == fatal:
                os._exit(9)
            seen += 1

    sys.addaudithook(hook)
    with TraceWriter(folder, kind="influence") as writer:
        for count, step in enumerate(ORDER, start=1):
            writer.write(step, made)
            writer.flush()
            (base / "done" / folder.name).write_text(str(count))

(base / "done").mkdir()
for fatal in range(1000):
    folder = base / "traces" / str(fatal)
    child = os.fork()
    if child == 0:
        run(folder, fatal)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(fatal)
        break
"""


def test_a_run_killed_at_random_instants_and_resumed_keeps_a_whole_trace(tmp_path):
    rng = random.Random(0)
    written: set[int] = set()
    first = 1
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(tmp_path), CONFTEST, str(first)],
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        handed = [int(process.stdout.readline()) for _ in range(rng.randint(2, 6))]
        threading.Event().wait(rng.uniform(0, 0.03))  # any instant will do
        process.send_signal(signal.SIGKILL)
        handed += [int(line) for line in process.stdout.read().splitlines()]
        process.wait()
        written |= set(handed[:-1])
        report = check_trace(tmp_path)
        assert report.whole, report.render()
        assert written <= set(report.steps)
        assert max(report.steps) <= handed[-1] + 1
        first = max(report.steps) + 1


def test_a_crash_at_every_single_file_operation_leaves_a_whole_trace_that_can_go_on(tmp_path, step):
    done = subprocess.run(
        [sys.executable, "-c", CRASH_EVERYWHERE, str(tmp_path), CONFTEST],
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    operations = int(done.stdout)
    assert operations > 20
    for fatal in range(operations):
        folder = tmp_path / "traces" / str(fatal)
        if not folder.exists():
            continue
        progress = tmp_path / "done" / str(fatal)
        confirmed = ORDER[: int(progress.read_text())] if progress.exists() else []
        if (folder / "steps").exists():
            report = check_trace(folder)
            assert report.whole, report.render()
            assert set(confirmed) <= set(report.steps) <= set(ORDER[: len(confirmed) + 1])
        with TraceWriter(folder, kind="influence") as writer:
            writer.write(4, step())
        after = check_trace(folder)
        assert after.whole
        assert 4 in after.steps
        assert set(after.steps) <= {*ORDER, 4}
        assert not list(folder.rglob("*.tmp"))
