"""A worker process seen from outside: start it, talk to it, kill it with all its children."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import psutil

from archer.rewards.worker import WorkerSetup

_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerProcess:
    """A fresh interpreter in its own session, with a connection to it.

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

    @property
    def pid(self) -> int:
        """The process id, which is also its process group's."""
        return self._process.pid

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
