"""Running the cases of a grid: several at a time, each once, the broken ones not in the way of the others."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from archer.ablation.display import Display
from archer.ablation.memory import died_of_memory
from archer.ablation.planning import OFFLOAD, PlannedCase
from archer.ablation.process import CaseProcess
from archer.ablation.state import AblationFolder, Attempt, CaseFolder, CaseState
from archer.files import remove_tree

TRAIN = (sys.executable, "-m", "archer.cli", "train")
POLL_S = 0.2


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


@dataclass
class _Running:
    case: PlannedCase
    process: CaseProcess
    slot: int
    earlier_s: float
    """Seconds that earlier starts of the same attempt took."""


class Driver:
    """Starts, watches and settles the cases of a grid until all are settled, or a signal asks to stop."""

    def __init__(
        self, folder: AblationFolder, cases: Sequence[PlannedCase], options: RunOptions, display: Display
    ) -> None:
        self.folder, self.cases, self.options, self.display = folder, tuple(cases), options, display
        self.stop_signal: int | None = None
        self._running: list[_Running] = []

    def run(self) -> dict[str, CaseState]:
        """Run what is to be done and return the state of every case."""
        waiting = deque(case for case in self.cases if self._wanted(case))
        handlers = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            with self.display:
                while self._running or (waiting and self.stop_signal is None):
                    while waiting and len(self._running) < self.options.jobs and self.stop_signal is None:
                        self._start(waiting.popleft())
                    for running in list(self._running):
                        returncode = running.process.poll()
                        if returncode is not None:
                            self._running.remove(running)
                            if self._settle(running, returncode):
                                waiting.appendleft(running.case)
                    self.display.update({r.case.name: r.earlier_s + r.process.seconds for r in self._running})
                    time.sleep(POLL_S)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for running in self._running:  # only where the driver itself failed
                running.process.signal(signal.SIGKILL)
        return {case.name: self._folder(case).read() for case in self.cases}

    def _folder(self, case: PlannedCase) -> CaseFolder:
        return self.folder.case(case.name)

    def _wanted(self, case: PlannedCase) -> bool:
        status = self._folder(case).read().status
        return status in ("pending", "running", "stopped") or (
            status == "failed" and self.options.retry_failed
        )

    def _start(self, case: PlannedCase) -> None:
        """Begin a case, or go on with the attempt that was stopped or killed."""
        folder = self._folder(case)
        state = folder.read()
        if state.status == "failed":  # tried again from the beginning: as it was asked for
            state = CaseState()
        attempt = state.attempts[-1] if state.attempts else Attempt()
        attempt = replace(attempt, starts=attempt.starts + 1, jobs=self.options.jobs, returncode=None)
        attempts = (*state.attempts[:-1], attempt)
        folder.write(CaseState("running", attempts))
        slot = min(set(range(self.options.jobs)) - {running.slot for running in self._running})
        process = CaseProcess(
            self._command(case, folder, attempt), folder.log(attempt.offloaded), self._environment(slot)
        )
        self._running.append(_Running(case, process, slot, attempt.seconds))
        self.display.say(
            case.name, "started" if attempt.starts == 1 else "goes on", offloaded=attempt.offloaded
        )

    def _command(self, case: PlannedCase, folder: CaseFolder, attempt: Attempt) -> list[str]:
        options = self.options
        where = [] if options.config_dir is None else ["--config-dir", str(options.config_dir)]
        run = str(folder.run(attempt.offloaded).absolute()).replace("\\", "\\\\").replace("'", "\\'")
        offload = [OFFLOAD] if attempt.offloaded else []
        return [
            *options.command,
            *where,
            *case.overrides,
            f"trainer.experiment_name='{case.name}'",
            f"trainer.default_local_dir='{run}'",
            *offload,
        ]

    def _environment(self, slot: int) -> dict[str, str]:
        gpus = self.options.gpus
        return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}

    def _settle(self, running: _Running, returncode: int) -> bool:
        """Record how a process ended; True when the case has another chance, which is then on disk."""
        case, process, folder = running.case, running.process, self._folder(running.case)
        state = folder.read()
        attempt = replace(
            state.attempts[-1],
            seconds=round(running.earlier_s + process.seconds, 2),
            cpu_seconds=state.attempts[-1].cpu_seconds + process.cpu_seconds,
            returncode=returncode,
            load=round(os.getloadavg()[0], 2),
        )
        if returncode == 0:
            if not self.options.keep_checkpoints:
                remove_tree(folder.run(attempt.offloaded) / "checkpoints")
            folder.write(replace(state.with_attempt(attempt), status="done"))
            self.display.say(case.name, "done", seconds=attempt.seconds, offloaded=attempt.offloaded)
            return False
        if self.stop_signal is not None:
            folder.write(replace(state.with_attempt(attempt), status="stopped"))
            self.display.say(case.name, "stopped", seconds=attempt.seconds)
            return False
        reason = died_of_memory(returncode, process.log_end())
        attempt = replace(attempt, out_of_memory=reason, last_lines=process.last_lines())
        state = state.with_attempt(attempt)
        if reason is not None and case.offloading_may_help and not attempt.offloaded:
            folder.write(CaseState("stopped", (*state.attempts, Attempt(offloaded=True))))
            self.display.say(case.name, "out of memory", note=f"{reason}; once more with factors offloaded")
            return True
        folder.write(replace(state, status="failed"))
        note = reason or (attempt.last_lines[-1] if attempt.last_lines else f"exit status {returncode}")
        self.display.say(case.name, "failed", seconds=attempt.seconds, note=note)
        return False

    def _on_signal(self, number: int, frame: object) -> None:
        """First: ask the runs to finish their step and save. Again: kill them; a checkpoint goes on."""
        again = self.stop_signal is not None
        self.stop_signal = number
        for running in self._running:
            running.process.signal(signal.SIGKILL if again else signal.SIGINT)
