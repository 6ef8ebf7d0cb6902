"""Worker processes that run tasks in parallel, each within a time that is really enforced.

A worker holds one task at a time. When the task overruns, crashes or kills its process, that task alone
fails and the worker is replaced; every other task of the batch gets its result.
"""

import json
import pickle
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait

from archer.errors import ArcherError
from archer.rewards.process import WorkerProcess
from archer.rewards.types import RewardResult, Task
from archer.rewards.worker import WorkerSetup

_START_LIMIT_S = 120.0
_MAX_FAILED_STARTS = 3
_EXIT_POLL_S = 0.5  # a dead worker whose children keep its connection open is noticed only by looking


class _Worker:
    """A worker process and what it is doing: starting, idle, or running the task with index `job`."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.started = False
        self.job: int | None = None
        self.deadline = time.monotonic() + _START_LIMIT_S

    @property
    def is_idle(self) -> bool:
        return self.started and self.job is None


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
            self._hire(len(tasks) - len(results))
            self._hand_out(waiting, payloads)
            self._collect(results)
        return [results[index] for index in range(len(tasks))]

    def _hire(self, open_tasks: int) -> None:
        while len(self._workers) < min(self._size, open_tasks):
            self._workers.append(_Worker(WorkerProcess(self._setup)))

    def _hand_out(self, waiting: deque[int], payloads: list[bytes]) -> None:
        for worker in [worker for worker in self._workers if worker.is_idle]:
            if not waiting:
                return
            if worker.process.has_exited():  # between tasks: nobody's fault
                self._dismiss(worker)
                continue
            try:
                worker.process.connection.send_bytes(payloads[waiting[0]])
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
        reporting = wait([worker.process.connection for worker in occupied], pause)
        for worker in occupied:
            if worker.process.connection in reporting:
                self._read(worker, results)
            elif worker.process.has_exited() and not worker.process.connection.poll():
                self._fail(worker, results, None)
            elif time.monotonic() >= worker.deadline and not worker.process.connection.poll():
                self._fail(worker, results, "timeout")

    def _read(self, worker: _Worker, results: dict[int, RewardResult]) -> None:
        try:
            message = json.loads(worker.process.connection.recv_bytes())
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
        return worker.process.kill()

    def _stop(self) -> None:
        while self._workers:
            self._dismiss(self._workers[0])
