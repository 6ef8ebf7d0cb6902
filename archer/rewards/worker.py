"""The inside of a worker process: take a task, run it, report.

Started by `archer.rewards.pool` as a fresh interpreter. It imports neither torch nor the caller's main
module. Requests arrive pickled; replies leave as JSON, one per request, so that what a task does to its own
process cannot reach the parent's interpreter.
"""

import asyncio
import fcntl
import inspect
import json
import os
import pickle
import re
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from archer.rewards.rules import RewardResult, Task

_MAX_MESSAGE_CHARS = 500
JOB_BYTES = 8  # before every task: the number that its answer bears


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is told once, before its first task."""

    memory_limit_bytes: int | None  # of private memory; beyond it, allocation raises MemoryError
    prepare: tuple[Callable[[], object], ...]  # import what tasks need, so that no task's time is spent on it
    waiting_limit_s: float | None = None  # tasks wait together in an event loop, each for at most so long


def main(connection_fd: int, lifeline_fd: int) -> None:
    """Serve tasks until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with_parent(lifeline_fd)
    os.set_inheritable(connection_fd, False)
    connection = Connection(connection_fd)
    setup: WorkerSetup = pickle.loads(connection.recv_bytes())
    if setup.memory_limit_bytes is not None:
        # Private writable memory, not address space: torch and CUDA reserve far more than they ever touch.
        resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_limit_bytes, setup.memory_limit_bytes))
    try:
        for step in setup.prepare:
            step()
    except BaseException as error:
        _reply(connection, {"failure": describe(error)})
        return
    _reply(connection, {"failure": None})
    if setup.waiting_limit_s is None:
        _serve(connection)
    else:
        asyncio.run(_serve_together(connection, setup.waiting_limit_s))


def _serve(connection: Connection) -> None:
    """Run one task after the other."""
    runner = asyncio.Runner()  # one event loop for all, so that a function may keep its connections
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        with _Answer(connection, payload) as answer:
            outcome = answer.task().run()
            answer.outcome = runner.run(outcome) if inspect.iscoroutine(outcome) else outcome


async def _serve_together(connection: Connection, limit_s: float) -> None:
    """Run tasks in one event loop; each is told when it starts, and is given up when its time is over."""
    hung_up = asyncio.Event()
    running: set[asyncio.Task[None]] = set()

    async def judge(payload: bytes) -> None:
        with _Answer(connection, payload) as answer:
            _reply(connection, {"job": answer.job, "started": True})
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    outcome = answer.task().run()
                    answer.outcome = await outcome if inspect.isawaitable(outcome) else outcome
            except TimeoutError:
                if not limit.expired():  # the function's own
                    raise
                answer.outcome = RewardResult.of_failure("timeout")

    def receive() -> None:
        try:
            payload = connection.recv_bytes()
        except (EOFError, OSError):
            hung_up.set()
            return
        task = asyncio.create_task(judge(payload))
        running.add(task)
        task.add_done_callback(running.discard)

    asyncio.get_running_loop().add_reader(connection.fileno(), receive)
    await hung_up.wait()


class _Answer:
    """Takes a task and sends its results, or what it raised: no response takes the worker with it."""

    def __init__(self, connection: Connection, payload: bytes) -> None:
        self._connection, self._payload, self._pid = connection, payload, os.getpid()
        self.job = int.from_bytes(payload[:JOB_BYTES])
        self.outcome: Any = None  # a result, or a list of them

    def task(self) -> Task:
        """Unpack the task."""
        return pickle.loads(self._payload[JOB_BYTES:])

    def __enter__(self) -> "_Answer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if os.getpid() != self._pid:  # the task forked, and its child came back here: it has nothing to say
            os._exit(0)
        outcome = self.outcome if error is None else RewardResult.of_failure(f"crash: {describe(error)}")
        results = [asdict(result) for result in (outcome if isinstance(outcome, list) else [outcome])]
        message = {"job": self.job, "results": results, "retire": isinstance(error, MemoryError)}
        _reply(self._connection, message)
        return True  # also SystemExit


def _reply(connection: Connection, message: dict[str, object]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def describe(error: BaseException) -> str:
    """Return an exception as one short line: its type, its message and the place it came from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # which says more than how many there are
    line = " ".join("".join(traceback.format_exception_only(error)).split())
    line = re.sub(r"^archer_user_.*?_[0-9a-f]{8}\.", "", line)  # the made-up name of a user's file
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return line[:_MAX_MESSAGE_CHARS] + place


def _die_with_parent(lifeline_fd: int) -> None:
    """See to it that neither this process nor its children outlive the parent, however the parent ends.

    The lifeline is a pipe that only the parent can write to and never does: it becomes readable when the
    parent is gone. On Linux the kernel then kills the process group, even while native code holds the
    interpreter's lock for ever; a death signal (PR_SET_PDEATHSIG) would leave this process's children, and
    would also come when merely the parent's thread ends. Elsewhere a thread does it.
    """
    os.set_inheritable(lifeline_fd, False)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)
        if select.select([lifeline_fd], [], [], 0)[0]:
            os._exit(1)  # the parent ended before the kernel was told
    else:
        threading.Thread(target=_kill_group_at_hang_up, args=(lifeline_fd,), daemon=True).start()


def _kill_group_at_hang_up(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)
    os.killpg(0, signal.SIGKILL)
