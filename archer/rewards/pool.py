"""Worker processes that run tasks in parallel, each within a time that is really enforced.

A worker holds one task at a time. When the task overruns, crashes or kills its process, that task alone
fails and the worker is replaced; every other task of the batch gets its result.
"""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

import psutil

from archer.errors import ArcherError
from archer.rewards.rules import RewardResult, Task
from archer.rewards.worker import WorkerSetup

_START_LIMIT_S = 120.0
_MAX_FAILED_STARTS = 3
_EXIT_POLL_S = 0.5  # a dead worker whose children keep its connection open is noticed only by looking
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Worker:
    """A fresh interpreter in its own session, and what it is doing: starting, idle, or running task `job`.

    Not made by `multiprocessing`: forking a process that runs torch's threads can deadlock, and spawning
    re-imports the caller's main module, which may load torch or start the training again.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.connection, theirs = Pipe(duplex=True)
        their_lifeline, self._lifeline = Pipe(duplex=False)
        inherited = (theirs.fileno(), their_lifeline.fileno())
        path = [entry or str(Path.cwd()) for entry in sys.path]
        program = (
            f"import sys; sys.path[:] = {path!r}; from archer.rewards.worker import main; main{inherited}"
        )
        with theirs, their_lifeline:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a reward function prints is for the eye; stdout belongs to the caller
                pass_fds=inherited,
                start_new_session=True,
                env={**os.environ, **_SINGLE_THREADED},
            )
        with contextlib.suppress(OSError):  # it died at once: seen by has_exited
            self.connection.send_bytes(pickle.dumps(setup))
        self.pid = self._process.pid  # also its process group's
        self.started = False
        self.job: int | None = None
        self.deadline = time.monotonic() + _START_LIMIT_S

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a task."""
        return self.started and self.job is None

    def has_exited(self) -> bool:
        """Tell whether the process has ended, without reaping it: its id stays reserved until `kill`."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # something else in this process has reaped it
            return True

    def kill(self) -> str:
        """End the process and everything it started, at once, and return how it ended."""
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            # Children that left the process group are found as descendants.
            children = psutil.Process(self.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left in the group
            os.killpg(self.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        self.connection.close()
        self._lifeline.close()
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


class WorkerPool:
    """At most `size` worker processes, started when tasks need them and kept for the next batch."""

    def __init__(self, size: int, timeout_s: float, setup: WorkerSetup) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._setup = setup
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()

    def run(self, tasks: Sequence[Task]) -> list[RewardResult]:
        """Run all tasks and return their results in order.

        A task that exceeds the time has failure "timeout"; one that raises or ends its process, "crash: ...".
        """
        with self._lock:
            try:
                return self._run(tasks)
            except BaseException:
                self._stop()  # half-done tasks must not answer the next batch
                raise

    def close(self) -> None:
        """Kill all workers. A later `run` starts new ones."""
        with self._lock:
            self._stop()

    def _run(self, tasks: Sequence[Task]) -> list[RewardResult]:
        payloads = [pickle.dumps(task) for task in tasks]
        results: dict[int, RewardResult] = {}
        waiting = deque(range(len(tasks)))
        while len(results) < len(tasks):
            while len(self._workers) < min(self._size, len(tasks) - len(results)):
                self._workers.append(_Worker(self._setup))
            self._hand_out(waiting, payloads)
            self._collect(results)
        return [results[index] for index in range(len(tasks))]

    def _hand_out(self, waiting: deque[int], payloads: list[bytes]) -> None:
        for worker in [worker for worker in self._workers if worker.is_idle]:
            if not waiting:
                return
            if worker.has_exited():  # between tasks: nobody's fault
                self._dismiss(worker)
                continue
            try:
                worker.connection.send_bytes(payloads[waiting[0]])
            except OSError:  # it ended just now, and has not seen the task
                self._dismiss(worker)
                continue
            worker.job = waiting.popleft()
            worker.deadline = time.monotonic() + self._timeout_s

    def _collect(self, results: dict[int, RewardResult]) -> None:
        """Wait until some worker reports, ends or runs out of time, and deal with each that has."""
        occupied = [worker for worker in self._workers if not worker.is_idle]
        if not occupied:
            return
        next_deadline = min(worker.deadline for worker in occupied) - time.monotonic()
        pause = min(max(next_deadline, 0.0), _EXIT_POLL_S)
        reporting = wait([worker.connection for worker in occupied], pause)
        for worker in occupied:
            if worker.connection in reporting:
                self._read(worker, results)
            elif worker.has_exited() and not worker.connection.poll():
                self._fail(worker, results, None)
            elif time.monotonic() >= worker.deadline and not worker.connection.poll():
                self._fail(worker, results, "timeout")

    def _read(self, worker: _Worker, results: dict[int, RewardResult]) -> None:
        try:
            message = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._fail(worker, results, None)
            return
        if worker.job is None:
            if message["failure"] is not None:
                raise ArcherError(
                    f"A reward worker could not load what it needs: {message['failure']}. Check what "
                    "differs in a fresh interpreter: what is imported first, files, the memory limit."
                )
            worker.started, self._failed_starts = True, 0
            return
        results[worker.job] = RewardResult(**message["result"])
        worker.job = None
        if message["retire"]:
            self._dismiss(worker)

    def _fail(self, worker: _Worker, results: dict[int, RewardResult], failure: str | None) -> None:
        """Remove a worker that ended (failure None) or overran; the task it had, if any, fails."""
        ending = self._dismiss(worker)
        if worker.job is not None:
            results[worker.job] = RewardResult.of_failure(failure or f"crash: worker process {ending}")
            return
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise ArcherError(
                f"Reward workers do not start: {_MAX_FAILED_STARTS} in a row ended or hung before their "
                f"first task (the last {ending}). Their error output is above; too little memory "
                "is a common cause."
            )

    def _dismiss(self, worker: _Worker) -> str:
        self._workers.remove(worker)
        return worker.kill()

    def _stop(self) -> None:
        while self._workers:
            self._dismiss(self._workers[0])
