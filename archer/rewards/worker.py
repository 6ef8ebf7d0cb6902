"""The inside of a worker process: take a task, run it, report.

Started by `archer.rewards.pool` as a fresh interpreter. It imports neither torch nor the caller's main
module. Requests arrive pickled; replies leave as JSON, one per request, so that what a task does to its own
process cannot reach the parent's interpreter.
"""

import fcntl
import json
import os
import pickle
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from archer.rewards.rules import RewardResult, Task

_MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is told once, before its first task."""

    memory_limit_bytes: int | None  # of private memory; beyond it, allocation raises MemoryError
    prepare: tuple[Callable[[], object], ...]  # import what tasks need, so that no task's time is spent on it


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
    _serve(connection)


def _serve(connection: Connection) -> None:
    own_pid = os.getpid()
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        out_of_memory = False
        try:
            task: Task = pickle.loads(payload)
            result = task.run()
        except BaseException as error:  # also SystemExit: one response must not take the worker with it
            result = RewardResult.of_failure(f"crash: {describe(error)}")
            out_of_memory = isinstance(error, MemoryError)
        if os.getpid() != own_pid:  # the task forked, and its child came back here: it has nothing to say
            os._exit(0)
        _reply(connection, {"result": asdict(result), "retire": out_of_memory})


def _reply(connection: Connection, message: dict[str, object]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def describe(error: BaseException) -> str:
    """Return an exception as one short line: its type, its message and the place it came from."""
    line = "".join(traceback.format_exception_only(error)).strip()
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
