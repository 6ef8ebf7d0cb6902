"""Writes a trace while training continues.

Order of the files of a step: the step file under a hidden temporary name, its rename, the manifest line, then
`latest_step.txt` and `summary.json`. A kill between any two of them leaves a trace that is whole.
"""

import atexit
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from archer.errors import ArcherError
from archer.files import replace_atomically
from archer.trace import files, manifest
from archer.trace.arrays import FORMAT_VERSION, TRACE_KINDS, TraceKind
from archer.trace.deltas import encoded
from archer.trace.files import TraceSummary, read_summary, write_summary
from archer.trace.joined import own_arrays
from archer.trace.manifest import StepStatistics
from archer.trace.npz import DamagedFileError, write_npz
from archer.trace.schema import TraceStep, check_complete
from archer.trace.vocab import Vocab, read_vocab, write_vocab

_logger = logging.getLogger(__name__)


class NullTraceWriter:
    """The trace of a run that does not trace: wants nothing and does nothing."""

    def wants(self, step: int) -> bool:
        """No step is wanted."""
        return False

    def write(self, step: int, arrays: TraceStep, *, refers: bool = False) -> None:
        """Nothing is written."""

    def truncate_after(self, step: int) -> None:
        """Nothing is dropped."""

    def flush(self) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """Nothing is ended."""

    def __enter__(self) -> "NullTraceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class TraceWriter:
    """Appends steps to a trace folder from a background thread. A context manager.

    Opening an existing trace continues it: a torn manifest tail is repaired and a killed writer's
    temporary files are removed. One process writes a trace at a time.

    At most `queue_size` steps are in flight, the one being written included; `write` blocks while that many
    are, so nothing is dropped and a kill loses no more than those. An error of the background thread is
    raised by the next `write`, `flush` or `close`, and by every one after it.
    """

    folder: Path

    def __init__(
        self,
        output_dir: str | Path,
        *,
        kind: TraceKind,
        write_every: int = 1,
        fsync: bool = False,
        metadata: Mapping[str, Any] | None = None,
        vocab: Vocab | None = None,
        queue_size: int = 1,
        complete: bool = True,
        beside: "TraceWriter | None" = None,
    ) -> None:
        """Open or make a trace.

        complete: refuse steps that lack an array which a trace of this kind holds
        beside:   the trace that steps may refer to; its folder must lie beside this one
        """
        if beside is not None and beside.folder.resolve().parent != Path(output_dir).resolve().parent:
            raise ArcherError(f"{output_dir} cannot refer to {beside.folder}, which is not beside it.")
        if kind not in TRACE_KINDS:
            raise ArcherError(f"trace kind is {kind!r}, expected one of {', '.join(TRACE_KINDS)}.")
        if write_every < 1 or queue_size < 1:
            raise ArcherError(
                f"trace write_every={write_every} and queue_size={queue_size} must both be at least 1; "
                "to write no trace, disable it."
            )
        self.folder = Path(output_dir)
        self._fsync = fsync
        self._complete = complete
        self._beside = beside
        self._summary = TraceSummary(
            kind=kind,
            write_every=write_every,
            created=time.time(),
            refers_to=None if beside is None else beside.folder.resolve().name,
            metadata=_json(metadata),
        )
        with self._writable():
            self._open(vocab)
        self._error: tuple[int, BaseException] | None = None
        self._closed = False
        self._slots = threading.Semaphore(queue_size)
        self._queue: queue.Queue[tuple[int, TraceStep, bool] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=f"{kind}-trace-writer", daemon=True)
        self._thread.start()
        # A daemon thread would otherwise lose the last step of a script without `close`.
        atexit.register(self.close)

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except ArcherError as write_error:  # the error under way matters more, and must not be hidden
            if write_error.__cause__ is not error.__cause__:
                error.add_note(str(write_error))

    def wants(self, step: int) -> bool:
        """Every `write_every`-th step is written."""
        return step % self._summary.write_every == 0

    def write(self, step: int, arrays: TraceStep, *, refers: bool = False) -> None:
        """Hand over a step, replacing an earlier one of the same number; steps not wanted are left out.

        refers: the trace beside this one was handed the same step before, so that only what is this one's own
                is written, after the other's file
        """
        if refers and self._beside is None:
            raise ArcherError(
                f"trace {self.folder} lies beside no other trace that step {step} could refer to."
            )
        if self._closed:
            raise ArcherError(f"trace {self.folder} is closed; step {step} cannot be written.")
        if not 0 <= step < manifest.MAX_STEP:
            raise ArcherError(f"trace step is {step}, expected 0 or more.")
        self._raise_error()
        if not self.wants(step):
            return
        if self._complete:
            check_complete(arrays, self._summary.kind)
        self._slots.acquire()
        self._queue.put((step, arrays, refers))

    def flush(self) -> None:
        """Wait until every step handed over is in the trace."""
        self._queue.join()
        self._raise_error()

    def truncate_after(self, step: int) -> None:
        """Drop all steps after `step`, which a killed run wrote beyond the checkpoint it resumes from."""
        self.flush()
        with self._writable():
            kept = {s: line for s, line in manifest.read_manifest(self.folder).lines.items() if s <= step}
            manifest.rewrite(self.folder, kept.values(), fsync=self._fsync)
            for path in list((self.folder / files.STEPS_FOLDER).iterdir()):
                found = files.step_of_file_name(path.name)
                if found is not None and found > step:
                    path.unlink()
            self._steps = set(kept)
            self._write_ending()

    def close(self) -> None:
        """Write what is in flight and end the thread. Raises the thread's error, also on a second call."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            atexit.unregister(self.close)
        self._raise_error()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArcherError(
                f"cannot write a trace to {self.folder}: {error}. "
                "Choose another trace output_dir or make this one writable."
            ) from error

    def _open(self, vocab: Vocab | None) -> None:
        (self.folder / files.STEPS_FOLDER).mkdir(parents=True, exist_ok=True)
        before = read_summary(self.folder)
        if before is not None and before.kind != self._summary.kind:
            raise ArcherError(
                f"{self.folder} holds an {before.kind} trace, so no {self._summary.kind} trace can go there. "
                "Give each trace its own output_dir."
            )
        if before is not None:
            self._summary = replace(
                self._summary,
                created=before.created or self._summary.created,
                refers_to=self._summary.refers_to or before.refers_to,
                metadata=self._summary.metadata or before.metadata,
            )
        for path in files.leftover_temporaries(self.folder):
            path.unlink()
        manifest.repair_tail(self.folder)
        self._steps = set(manifest.read_manifest(self.folder).lines)
        missing = [
            step
            for step in self._steps
            if not (self.folder / files.STEPS_FOLDER / files.step_file_name(step)).is_file()
        ]
        if missing:
            _logger.warning(
                "The trace %s has lost %d step files, that of step %d first; see `archer trace check`.",
                self.folder,
                len(missing),
                min(missing),
            )
        if vocab is not None:
            self._write_vocab(vocab)
        self._write_ending()

    def _write_vocab(self, vocab: Vocab) -> None:
        try:
            there = read_vocab(self.folder)
        except DamagedFileError:  # the right table is at hand
            there = None
        if there is None:
            write_vocab(self.folder, vocab, fsync=self._fsync)
        elif not there.equals(vocab):
            raise ArcherError(
                f"the trace in {self.folder} was made with another vocabulary. "
                "Resume with the same tokenizer or choose another trace output_dir."
            )

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            step, arrays, refers = item
            try:
                if self._error is None:  # after a failure the trace is left as it is
                    self._write_step(step, arrays, refers)
            except Exception as error:
                self._error = (step, error)
            finally:
                del item, arrays  # free the arrays before the next step arrives
                self._slots.release()
                self._queue.task_done()
        self._queue.task_done()

    def _write_step(self, step: int, arrays: TraceStep, refers: bool) -> None:
        if refers:
            assert self._beside is not None
            self._beside.flush()  # a kill must not leave a file that refers to none
        start = time.perf_counter()
        path = self.folder / files.STEPS_FOLDER / files.step_file_name(step)
        content = own_arrays(arrays) if refers else encoded(arrays.arrays())
        size = replace_atomically(path, lambda file: write_npz(file, content), fsync=self._fsync)
        line = manifest.ManifestLine(
            step=step,
            statistics=StepStatistics.of(arrays),
            size=size,
            seconds=time.perf_counter() - start,
            time=time.time(),
        )
        manifest.append_line(self.folder, line, fsync=self._fsync)
        self._steps.add(step)
        self._write_ending()

    def _write_ending(self) -> None:
        """`latest_step.txt` and `summary.json`, the last files of a step."""
        latest = max(self._steps, default=None)
        if latest is None:
            (self.folder / files.LATEST).unlink(missing_ok=True)
        else:
            content = f"{latest}\n".encode()
            replace_atomically(
                self.folder / files.LATEST, lambda file: file.write(content), fsync=self._fsync
            )
        self._summary = replace(
            self._summary,
            format_version=FORMAT_VERSION,
            steps=len(self._steps),
            latest_step=latest,
            updated=time.time(),
        )
        write_summary(self.folder, self._summary, fsync=self._fsync)

    def _raise_error(self) -> None:
        if self._error is not None:
            step, error = self._error
            raise ArcherError(
                f"trace step {step} could not be written to {self.folder}: {error}. "
                "The trace would have a hole: make room or fix the folder, then resume."
            ) from error


StepSink = TraceWriter | NullTraceWriter
"""What a trainer sees of a trace, enabled or not."""


def _json(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArcherError(f"trace metadata must be plain JSON values: {error}.") from error
