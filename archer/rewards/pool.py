"""Worker processes that run tasks in parallel, each within a time that is really enforced.

A worker holds one task at a time, or several that wait in its event loop. When a task overruns, crashes or
kills its process, that task alone fails and the worker is replaced; every other task of the batch gets its
result. Tasks that shared the event loop of such a worker are run again, each alone, to find the guilty one.
"""

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

import psutil

from archer.errors import ArcherError
from archer.rewards.rules import RewardResult, Task
from archer.rewards.worker import JOB_BYTES, WorkerSetup

_START_LIMIT_S = 120.0
_MAX_FAILED_STARTS = 3
_EXIT_POLL_S = 0.5  # a dead worker whose children keep its connection open is noticed only by looking
_GRACE_S = 1.0  # for an event loop to give a task up by itself, before its process is killed
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Worker:
    """A fresh interpreter in its own session, and what it is doing: starting, idle, or running `jobs`.

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
        self.jobs: dict[int, float] = {}  # when each must be done
        self.is_reserved = False  # for the one task that it has
        self._start_limit = time.monotonic() + _START_LIMIT_S
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a task."""
        return self.started and not self.jobs

    @property
    def deadline(self) -> float:
        """When it must have said something."""
        return min(self.jobs.values()) if self.started else self._start_limit

    def send(self, payload: bytes) -> bool:
        """Hand it a task; False if it has ended. One that is busy may not read: a thread waits for it."""
        if not self.jobs and self._sender is None:
            try:
                self.connection.send_bytes(payload)
            except OSError:
                return False
            return True
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, daemon=True)
            self._sender.start()
        self._outbox.put(payload)
        return True

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):  # it has ended: seen by has_exited
            while (payload := self._outbox.get()) is not None:
                self.connection.send_bytes(payload)

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
        code = self._process.wait()
        if self._sender is not None:
            self._outbox.put(None)
            self._sender.join(_GRACE_S)
        self.connection.close()
        self._lifeline.close()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


@dataclass
class _Batch:
    """The tasks of one call, packed, and how far they are."""

    payloads: list[bytes]
    sizes: list[int]  # responses of each
    waiting: deque[int]
    alone: set[int] = field(default_factory=set)  # to be run with no other in the same worker
    results: dict[int, list[RewardResult]] = field(default_factory=dict)

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> "_Batch":
        """Pack tasks."""
        payloads = [job.to_bytes(JOB_BYTES) + pickle.dumps(task) for job, task in enumerate(tasks)]
        return cls(payloads, [getattr(task, "size", 1) for task in tasks], deque(range(len(tasks))))

    @property
    def unfinished(self) -> int:
        """How many tasks have no result yet."""
        return len(self.payloads) - len(self.results)

    def fail(self, job: int, failure: str) -> None:
        """Give up a task."""
        self.results[job] = [RewardResult.of_failure(failure)] * self.sizes[job]


class WorkerPool:
    """At most `size` worker processes, started when tasks need them and kept for the next batch.

    With a `concurrency` so many tasks wait at the same time, over all processes; without, one in each.
    """

    def __init__(self, size: int, timeout_s: float, setup: WorkerSetup, concurrency: int = 0) -> None:
        self._concurrency = concurrency or size
        self._size = min(size, self._concurrency)
        self._slots = -(-self._concurrency // self._size)  # of each process
        self._grace_s = _GRACE_S if concurrency else 0.0
        self._timeout_s = timeout_s
        self._setup = setup
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()

    def run(self, tasks: Sequence[Task]) -> list[list[RewardResult]]:
        """Run all tasks and return their results in order: of most one, of a task with a size so many.

        A task that exceeds the time has failure "timeout"; one that raises or ends its process, "crash: ...".
        """
        with self._lock:
            try:
                return self._run(_Batch.of(tasks))
            except BaseException:
                self._stop()  # half-done tasks must not answer the next batch
                raise

    def close(self) -> None:
        """Kill all workers. A later `run` starts new ones."""
        with self._lock:
            self._stop()

    def _run(self, batch: _Batch) -> list[list[RewardResult]]:
        while batch.unfinished:
            while len(self._workers) < min(self._size, batch.unfinished):
                self._workers.append(_Worker(self._setup))
            self._hand_out(batch)
            self._collect(batch)
        return [batch.results[job] for job in range(len(batch.payloads))]

    def _hand_out(self, batch: _Batch) -> None:
        for ended in [worker for worker in self._workers if worker.is_idle and worker.has_exited()]:
            self._dismiss(ended)  # it ended between tasks: nobody's fault
        while batch.waiting:
            job = batch.waiting[0]
            worker = self._free_worker(alone=job in batch.alone)
            if worker is None:
                return
            if not worker.send(batch.payloads[job]):  # it ended just now, and has not seen the task
                self._dismiss(worker)
                continue
            batch.waiting.popleft()
            worker.is_reserved = job in batch.alone
            # Until it reports its start, those before it in the same event loop may take their time.
            turns = len(worker.jobs) + 1
            worker.jobs[job] = self._deadline(turns * batch.sizes[job])

    def _free_worker(self, alone: bool) -> _Worker | None:
        """The least busy worker that can take one more task."""
        if sum(len(worker.jobs) for worker in self._workers) >= self._concurrency:
            return None
        free = [
            worker
            for worker in self._workers
            if worker.is_idle
            or (worker.started and not alone and not worker.is_reserved and len(worker.jobs) < self._slots)
        ]
        return min(free, key=lambda worker: len(worker.jobs), default=None)

    def _deadline(self, size: int) -> float:
        return time.monotonic() + self._timeout_s * size + self._grace_s

    def _collect(self, batch: _Batch) -> None:
        """Wait until some worker reports, ends or runs out of time, and deal with each that has."""
        occupied = [worker for worker in self._workers if not worker.is_idle]
        if not occupied:
            return
        next_deadline = min(worker.deadline for worker in occupied) - time.monotonic()
        pause = min(max(next_deadline, 0.0), _EXIT_POLL_S)
        reporting = wait([worker.connection for worker in occupied], pause)
        for worker in occupied:
            if worker.connection in reporting:
                self._read(worker, batch)
            elif worker.has_exited() and not worker.connection.poll():
                self._fail(worker, batch, None)
            elif time.monotonic() >= worker.deadline and not worker.connection.poll():
                self._fail(worker, batch, "timeout")

    def _read(self, worker: _Worker, batch: _Batch) -> None:
        try:
            message = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._fail(worker, batch, None)
            return
        if not worker.started:
            if message["failure"] is not None:
                raise ArcherError(
                    f"A reward worker could not load what it needs: {message['failure']}. Check what "
                    "differs in a fresh interpreter: what is imported first, files, the memory limit."
                )
            worker.started, self._failed_starts = True, 0
            return
        job = message["job"]
        if "started" in message:
            worker.jobs[job] = self._deadline(batch.sizes[job])
            return
        results = [RewardResult(**result) for result in message["results"]]
        # A task for several that raised has one failure for all.
        batch.results[job] = results if len(results) == batch.sizes[job] else results * batch.sizes[job]
        del worker.jobs[job]
        if message["retire"]:
            batch.waiting.extendleft(worker.jobs)
            self._dismiss(worker)

    def _fail(self, worker: _Worker, batch: _Batch, failure: str | None) -> None:
        """Remove a worker that ended (failure None) or overran.

        The task it had fails; of several any may be guilty, so that each is tried again alone.
        """
        ending = self._dismiss(worker)
        if len(worker.jobs) > 1:
            batch.alone.update(worker.jobs)
            batch.waiting.extend(worker.jobs)
            return
        if worker.jobs:
            (job,) = worker.jobs
            batch.fail(job, failure or f"crash: worker process {ending}")
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
