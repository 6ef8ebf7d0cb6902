"""One step as the viewer shows it: the whole batch, with influence joined to the responses that have it.

Whoever writes a further [N, L] array of numbers into a step file sees it in the viewer beside entropy and
influence, without a change here. The last few steps stay in memory, within a bound.
"""

import threading
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.trace import deltas
from archer.trace.arrays import SPECS
from archer.trace.npz import DamagedFileError, NpzReader
from archer.trace.reader import LoadedStep, TraceReader
from archer.trace.schema import TraceStep
from archer.viewer.metrics import NAMES, failures, in_reading_order, with_derived
from archer.viewer.runs import Library, TracedRun

MAX_LISTED = 16  # groups that a message names


class UnreadableStepError(ArcherError):
    """None of a step's files can be read; the message gives every reason."""


@dataclass(frozen=True, eq=False)
class StepData:
    """The arrays of a step, rows counted as in its entropy trace where there is one."""

    step: int
    version: str
    arrays: TraceStep
    metrics: dict[str, np.ndarray]  # [N, L] by name, in reading order; NaN where nothing was computed
    groups: NDArray[np.int64]  # [N] group of every response
    spans: NDArray[np.int64]  # [N] position after the last valid token
    notes: tuple[str, ...]  # what the user should know: parts that could not be read or joined
    covered: dict[str, NDArray[np.bool_]]  # [N] by metric: the responses that its trace holds; absent: all

    @property
    def nbytes(self) -> int:
        """Memory the arrays take."""
        return sum(a.nbytes for held in (self.metrics, self.arrays.arrays()) for a in held.values())

    def failed(self, name: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.uint8]:
        """Where a metric is NaN or infinite though it was computed, [rows, L], as `FAILURES` counts."""
        covered = self.covered.get(name, np.ones(self.arrays.rows, np.bool_))[rows]
        return failures(name, self.metric(name)[rows], self.arrays.response_mask[rows], covered)

    def metric(self, name: str) -> np.ndarray:
        """A metric by name."""
        if name not in self.metrics:
            known = ", ".join(self.metrics)
            raise ArcherError(f"step {self.step} has no metric {name[:80]!r}; it holds {known}.")
        return self.metrics[name]

    @property
    def first_group(self) -> int:
        """The group that is shown where none was chosen."""
        if not self.groups.size:
            raise ArcherError(f"step {self.step} holds no response; choose another step.")
        return int(self.groups[0])

    def rows_of_group(self, group: int) -> NDArray[np.int64]:
        """The responses of a group."""
        rows = np.flatnonzero(self.groups == group)
        if not rows.size:
            raise ArcherError(f"step {self.step} has no group {group}; it holds {_listed(self.groups)}.")
        return rows


def load_step(run: TracedRun, step: int) -> StepData:
    """Read a step from all traces of a run; damage in one of them becomes a note while another is sound."""
    version = run.version(step)
    parts: list[tuple[TraceStep, dict[str, np.ndarray]]] = []
    notes: list[str] = []
    for reader, _ in run.entries(step):
        try:
            loaded = reader.read(step, beside=parts[0][0] if parts else None)
            found, unread = _metrics(reader, loaded)
            parts.append((loaded.arrays, found))
            notes += unread
        except ArcherError as error:
            notes.append(f"{reader.summary.kind} trace: {error}")
        else:
            notes += loaded.notes
    if not parts:
        raise UnreadableStepError("; ".join(notes))
    base, metrics = parts[0]
    mask = base.response_mask
    covered = {name: np.zeros(base.rows, np.bool_) for name in _not_computed(run, step, metrics, mask)}
    for other, others in parts[1:]:
        rows, sources = _matching_rows(base, other)
        if left := other.rows - len(rows):
            notes.append(f"{left} responses of the influence trace are not in the entropy trace; left out")
        for name in others.keys() - metrics.keys():
            metrics[name] = _joined(others[name], mask.shape, rows, sources)
            covered[name] = np.isin(np.arange(base.rows), rows)
    width = np.arange(1, mask.shape[1] + 1)
    return StepData(
        step=step,
        version=version,
        arrays=base,
        metrics=in_reading_order(metrics),
        groups=_groups(base),
        spans=np.max(mask * width, axis=1, initial=0).astype(np.int64),
        notes=tuple(notes),
        covered=covered,
    )


def _not_computed(
    run: TracedRun, step: int, metrics: dict[str, np.ndarray], mask: NDArray[np.bool_]
) -> list[str]:
    """Metrics that the trace says nobody computed; in a validation also those that are NaN throughout."""
    summaries = [reader.summary for reader, _ in run.entries(step)]
    named = {NAMES.get(name, name) for summary in summaries for name in summary.not_computed}
    validation = any(summary.metadata.get("validation") for summary in summaries)
    return [
        name
        for name, values in metrics.items()
        if (name in named or validation) and np.isnan(values[mask]).all()
    ]


NO_METRICS = ("response_mask", "responses")


def _metrics(reader: TraceReader, loaded: LoadedStep) -> tuple[dict[str, np.ndarray], list[str]]:
    """Every [N, L] array of numbers of the contract, and whatever else of that shape the file holds.

    Also remarks on those that cannot be read.
    """
    known = {
        NAMES.get(name, name): array
        for name, array in loaded.arrays.arrays().items()
        if SPECS[name].layout == "token" and name not in NO_METRICS
    }
    rows, length = loaded.arrays.response_mask.shape
    extra, notes = extra_token_arrays(reader.step_file(loaded.step), (rows, length))
    return with_derived(known | extra), notes


def _matching_rows(base: TraceStep, other: TraceStep) -> tuple[list[int], list[int]]:
    """Rows of `base` and of `other` that are the same response: the same rollout row with the same tokens."""
    place = {index: row for row, index in enumerate(base.response_index.tolist())}
    rows, sources = [], []
    for source, index in enumerate(other.response_index.tolist()):
        row = place.get(index)
        if row is not None and np.array_equal(_valid(base, row), _valid(other, source)):
            rows.append(row)
            sources.append(source)
    return rows, sources


def _valid(step: TraceStep, row: int) -> np.ndarray:
    return step.responses[row][step.response_mask[row]]


def _joined(
    values: np.ndarray, shape: tuple[int, ...], rows: list[int], sources: list[int]
) -> NDArray[np.float32]:
    """Values of the matching rows at their place in the whole batch, NaN elsewhere."""
    joined = np.full(shape, np.nan, dtype=np.float32)
    width = min(shape[1], values.shape[1])
    joined[rows, :width] = values[sources, :width]
    return joined


def _listed(groups: NDArray[np.int64]) -> str:
    """`group 3`, `groups 0, 1, 5`; of many only the first and the number."""
    names = np.unique(groups).tolist()
    if not names:
        return "none"
    shown = ", ".join(map(str, names[:MAX_LISTED]))
    more = f" and {len(names) - MAX_LISTED:,} more, up to {names[-1]}" if len(names) > MAX_LISTED else ""
    return f"{'group' if len(names) == 1 else 'groups'} {shown}{more}"


def _groups(arrays: TraceStep) -> NDArray[np.int64]:
    if arrays.group_id is not None:
        return arrays.group_id.astype(np.int64)
    if arrays.uid is not None:  # older traces: responses of one prompt share its uid
        _, first, inverse = np.unique(arrays.uid, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse].astype(np.int64)
    return np.zeros(arrays.rows, dtype=np.int64)


MAX_EXTRA = 32
MAX_NAME = 80
_NUMBERS = "fiub"


def extra_token_arrays(path: Path, shape: tuple[int, int]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays of numbers with the shape of the response mask that are no part of the contract, by name.

    One that cannot be read is left out with a remark: what Archer did not write must not hide what it did.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DamagedFileError(f"unreadable: {error}") from error
    known = {*SPECS, deltas.STORED}
    unknown = [name for name in dict.fromkeys(members) if name not in known and 0 < len(name) <= MAX_NAME]
    found: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for name in unknown[:MAX_EXTRA]:
        try:
            with NpzReader(path, only=[name]) as npz:
                header = npz.headers[name]
                if header.shape == shape and header.dtype.kind in _NUMBERS:
                    found[name] = npz.read(name)
        except DamagedFileError as error:
            notes.append(f"the array {name!r} of step file {path.name} is left out: {error}")
    return found, notes


MAX_BYTES = 512 * 2**20
MAX_STEPS = 8


class StepCache:
    """Least recently used steps go first; the one just asked for always stays."""

    def __init__(self, library: Library, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> None:
        self._library = library
        self._max_bytes = max_bytes
        self._max_steps = max_steps
        self._held: OrderedDict[tuple[int, int, str], StepData] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory of the steps held."""
        return sum(data.nbytes for data in self._held.values())

    def get(self, run: int, step: int) -> StepData:
        """The step as it is on disk now."""
        source = self._library.run(run)
        with self._lock:  # one reader at a time: two requests for a step must not load it twice
            key = (run, step, source.version(step))
            data = self._held.get(key)
            if data is None:
                data = load_step(source, step)
                self._held[key] = data
            self._held.move_to_end(key)
            while len(self._held) > 1 and (
                len(self._held) > self._max_steps or self.nbytes > self._max_bytes
            ):
                self._held.popitem(last=False)
            return data
