"""Running the cases of a grid: several at a time, each once; a broken one does not stop the others."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from archer.ablation.folder import AblationFolder, Attempt, CaseState, Status, tail
from archer.ablation.grid import PlannedCase
from archer.ablation.progress import GridProgress
from archer.files import plain_file, remove_tree
from archer.tracking.console import duration

TRAIN = (sys.executable, "-m", "archer.cli", "train")
OFFLOAD = "trainer.influence_trace.grad_offload_to_cpu=true"
POLL_S = 0.2
KEPT_LINES = 15
OUT_OF_MEMORY = re.compile(
    r"(CUDA|CUDA error:|HIP) out of memory|([\w.]+\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|MemoryError"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
)
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second is how a shell in between reports the first
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RunOptions:
    """How a grid is run."""

    jobs: int = 1
    retry_failed: bool = False
    command: tuple[str, ...] = TRAIN
    """What starts a training; overrides are appended."""
    config_dir: Path | None = None
    gpus: tuple[str, ...] = ()
    """The k-th of the cases that run at a time sees the k-th of these devices."""
    keep_checkpoints: bool = True


class CaseProcess:
    """A running `archer train` whose output goes to a log file.

    It leads a process group of its own, so that Ctrl-C reaches the driver alone, which then asks it to stop.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: dict[str, str], earlier_s: float = 0.0
    ) -> None:
        """`earlier_s`: seconds that earlier starts of the same attempt took."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with plain_file(log).open("ab") as file:
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
        self._started = time.monotonic() - earlier_s
        self.cpu_seconds = 0.0
        """User and system time of the process and of what it waited for, once it has ended."""

    @property
    def seconds(self) -> float:
        """Time since the start, with that of earlier starts."""
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
        return tail(self._log, self._log_start).decode("utf-8", errors="replace")


def ran_out_of_memory(returncode: int, log_end: str) -> str | None:
    """Return the sign that a process died for lack of memory, or None.

    The kernel's out-of-memory killer sends SIGKILL and leaves nothing in the log; a SIGKILL from anyone else
    gets the same second chance.
    """
    if returncode == 0:
        return None
    if returncode in KILLED:
        return "killed with SIGKILL, as the kernel does when memory runs out"
    found = OUT_OF_MEMORY.search(log_end)
    return found and found.group()


def _die_with_driver() -> None:
    """In the child: be killed when the driver is killed; an orphan would hold its run folder."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Driver:
    """Starts, watches and settles the cases of a grid until all are settled, or a signal asks to stop."""

    folder: AblationFolder
    cases: Sequence[PlannedCase]
    options: RunOptions
    progress: GridProgress
    stop_signal: int | None = None
    _running: dict[int, tuple[PlannedCase, CaseProcess]] = field(
        default_factory=dict
    )  # by slot, 0 to jobs - 1

    def run(self) -> dict[str, CaseState]:
        """Run what is to be done and return the state of every case."""
        wanted = {"pending", "running", "stopped"} | ({"failed"} if self.options.retry_failed else set())
        waiting = deque(case for case in self.cases if self.folder.read(case.name).status in wanted)
        stops = (signal.SIGINT, signal.SIGTERM)
        handlers = {number: signal.signal(number, self._on_signal) for number in stops}
        try:
            with self.progress:
                while self._running or (waiting and self.stop_signal is None):
                    while waiting and len(self._running) < self.options.jobs and self.stop_signal is None:
                        self._start(waiting.popleft())
                    for slot, (case, process) in list(self._running.items()):
                        returncode = process.poll()
                        if returncode is not None:
                            del self._running[slot]
                            if self._settle(case, process, returncode):
                                waiting.appendleft(case)
                    self.progress.update({case.name: p.seconds for case, p in self._running.values()})
                    time.sleep(POLL_S)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for _, process in self._running.values():  # only where the driver itself failed
                process.signal(signal.SIGKILL)
        return {case.name: self.folder.read(case.name) for case in self.cases}

    def _start(self, case: PlannedCase) -> None:
        """Begin a case, or resume the attempt that was stopped or killed."""
        state, options = self.folder.read(case.name), self.options
        if state.status == "failed" or not state.attempts:  # from the beginning: as it was asked for
            state = CaseState(attempts=(Attempt(),))
        *earlier, last = state.attempts
        attempt = replace(last, starts=last.starts + 1, jobs=options.jobs, returncode=None)
        self.folder.write(case.name, CaseState("running", (*earlier, attempt)))
        slot = min(set(range(options.jobs)) - self._running.keys())
        gpu = {"CUDA_VISIBLE_DEVICES": options.gpus[slot % len(options.gpus)]} if options.gpus else {}
        log = self.folder.log(case.name, attempt.offloaded)
        process = CaseProcess(self._command(case, attempt.offloaded), log, gpu, attempt.seconds)
        self._running[slot] = case, process
        self.progress.say(f"{case.name}  {'started' if attempt.starts == 1 else 'resumed'}{_how(attempt)}")

    def _command(self, case: PlannedCase, offloaded: bool) -> list[str]:
        options = self.options
        where = [] if options.config_dir is None else ["--config-dir", str(options.config_dir)]
        run = str(self.folder.run(case.name, offloaded).absolute())
        quoted = run.replace("\\", "\\\\").replace("'", "\\'")
        named = [f"trainer.experiment_name='{case.name}'", f"trainer.default_local_dir='{quoted}'"]
        return [*options.command, *where, *case.overrides, *named, *([OFFLOAD] if offloaded else [])]

    def _settle(self, case: PlannedCase, process: CaseProcess, returncode: int) -> bool:
        """Record how a process ended; True when the case has another chance, which is then on disk."""
        *earlier, last = self.folder.read(case.name).attempts
        attempt = replace(
            last,
            seconds=round(process.seconds, 2),
            cpu_seconds=last.cpu_seconds + process.cpu_seconds,
            returncode=returncode,
            load=round(os.getloadavg()[0], 2),
        )
        stopped = self.stop_signal is not None
        status: Status = "done" if returncode == 0 else "stopped" if stopped else "failed"
        event = f"{status} after {duration(attempt.seconds)}{_how(attempt)}"
        if status == "done" and not self.options.keep_checkpoints:
            remove_tree(self.folder.run(case.name, attempt.offloaded) / "checkpoints")
        retried: list[Attempt] = []
        if status == "failed":
            printed = process.log_end()
            reason = ran_out_of_memory(returncode, printed)
            lines = [line.rstrip()[:500] for line in printed.splitlines() if line.strip()]
            attempt = replace(attempt, out_of_memory=reason, last_lines=tuple(lines[-KEPT_LINES:]))
            event += f": {attempt.failure}"
            tracing = case.config.trainer.influence_trace
            may_help = tracing.enable and not tracing.grad_offload_to_cpu and not attempt.offloaded
            if reason is not None and may_help:
                status, retried = "stopped", [Attempt(offloaded=True)]
                event = f"out of memory: {reason}; once more with factors offloaded"
        self.folder.write(case.name, CaseState(status, (*earlier, attempt, *retried)))
        self.progress.say(f"{case.name}  {event}")
        return bool(retried)

    def _on_signal(self, number: int, frame: object) -> None:
        """First: ask the runs to finish their step and save. Again: kill them; their checkpoints remain."""
        again = self.stop_signal is not None
        self.stop_signal = number
        for _, process in self._running.values():
            process.signal(signal.SIGKILL if again else signal.SIGINT)


def _how(attempt: Attempt) -> str:
    return " with factors offloaded to the CPU" if attempt.offloaded else ""
