"""The process of one case: started, watched, stopped, never outliving the driver."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TAIL_BYTES = 64 * 1024
KEPT_LINES = 15
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class CaseProcess:
    """A running `archer train` whose output goes to a log file.

    It leads a process group of its own, so that Ctrl-C reaches the driver alone, which then asks it to stop.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as file:
            file.write(("$ " + " ".join(command) + "\n").encode())
            file.flush()
            self._log_start = file.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
                start_new_session=True,
                preexec_fn=_die_with_driver,
            )
        self._started = time.monotonic()
        self.cpu_seconds = 0.0
        """User and system time of the process and of what it waited for, once it has ended."""

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started

    def poll(self) -> int | None:
        """The exit status, None while it runs; negative for a signal."""
        if self._process.returncode is None:
            ended, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if ended:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_seconds = usage.ru_utime + usage.ru_stime
        return self._process.returncode

    def signal(self, number: int) -> None:
        """Send a signal to the process and everything it started."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, number)

    def log_end(self) -> str:
        """The last of what this start printed."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")

    def last_lines(self) -> tuple[str, ...]:
        """The last lines that say something."""
        lines = [line.rstrip()[:500] for line in self.log_end().splitlines()]
        return tuple([line for line in lines if line][-KEPT_LINES:])


def _die_with_driver() -> None:
    """In the child: be killed when the driver is killed; an orphan would hold its run folder."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
