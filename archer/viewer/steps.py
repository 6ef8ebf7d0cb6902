"""One step as the viewer shows it: the whole batch, with influence joined to the responses that have it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.trace.reader import LoadedStep, TraceReader
from archer.trace.schema import SPECS, TraceStep
from archer.viewer.extra_arrays import extra_token_arrays
from archer.viewer.metrics import TokenMetric, sorted_metrics, viewer_name
from archer.viewer.runs import Run, step_path

MAX_LISTED = 16  # groups that a message names


class UnreadableStepError(ArcherError):
    """None of a step's files can be read; the message gives every reason."""


@dataclass(frozen=True, eq=False)
class StepData:
    """The arrays of a step, rows counted as in its entropy trace where there is one."""

    step: int
    version: str
    arrays: TraceStep
    metrics: tuple[TokenMetric, ...]
    groups: NDArray[np.int64]  # [N] group of every response
    spans: NDArray[np.int64]  # [N] position after the last valid token
    notes: tuple[str, ...]
    """What the user should know: parts that could not be read or joined."""

    @property
    def nbytes(self) -> int:
        """Memory the arrays take."""
        token_arrays = sum(metric.values.nbytes for metric in self.metrics)
        return token_arrays + sum(array.nbytes for array in self.arrays.arrays().values())

    def metric(self, name: str) -> TokenMetric:
        """A metric by name."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        known = ", ".join(metric.name for metric in self.metrics)
        raise ArcherError(f"step {self.step} has no metric {name[:80]!r}; it holds {known}.")

    def rows_of_group(self, group: int) -> NDArray[np.int64]:
        """The responses of a group."""
        rows = np.flatnonzero(self.groups == group)
        if not rows.size:
            raise ArcherError(f"step {self.step} has no group {group}; it holds {_listed(self.groups)}.")
        return rows


@dataclass(frozen=True, eq=False)
class _Part:
    """What one trace holds of the step."""

    arrays: TraceStep
    metrics: dict[str, np.ndarray]


def load_step(run: Run, step: int) -> StepData:
    """Read a step from all traces of a run; damage in one of them becomes a note while another is sound."""
    version = run.version(step)
    parts: list[_Part] = []
    notes: list[str] = []
    for reader, _ in run.entries(step):
        try:
            loaded = reader.read(step)
            parts.append(_Part(loaded.arrays, _metrics(reader, loaded)))
        except ArcherError as error:
            notes.append(f"{reader.summary.kind} trace: {error}")
        else:
            notes += loaded.notes
    if not parts:
        raise UnreadableStepError("; ".join(notes))
    base = parts[0]
    metrics = dict(base.metrics)
    for other in parts[1:]:
        rows, sources, left = _matching_rows(base.arrays, other.arrays)
        if left:
            notes.append(f"{left} responses of the influence trace are not in the entropy trace; left out")
        for name, values in other.metrics.items():
            if name not in metrics:
                metrics[name] = _joined(values, base.arrays.response_mask.shape, rows, sources)
    mask = base.arrays.response_mask
    width = np.arange(1, mask.shape[1] + 1)
    return StepData(
        step=step,
        version=version,
        arrays=base.arrays,
        metrics=sorted_metrics([TokenMetric(name, values) for name, values in metrics.items()]),
        groups=_groups(base.arrays),
        spans=np.max(mask * width, axis=1, initial=0).astype(np.int64),
        notes=tuple(notes),
    )


def _metrics(reader: TraceReader, loaded: LoadedStep) -> dict[str, np.ndarray]:
    """Every floating-point [N, L] array of the contract, and whatever else of that shape the file holds."""
    held = loaded.arrays.arrays()
    known = {
        viewer_name(name): array
        for name, array in held.items()
        if SPECS[name].layout == "token" and array.dtype.kind == "f"
    }
    rows, length = loaded.arrays.response_mask.shape
    return known | extra_token_arrays(step_path(reader, loaded.step), (rows, length))


def _matching_rows(base: TraceStep, other: TraceStep) -> tuple[list[int], list[int], int]:
    """Rows of `base` and of `other` that are the same response: the same rollout row with the same tokens."""
    place = {index: row for row, index in enumerate(base.response_index.tolist())}
    rows, sources = [], []
    for source, index in enumerate(other.response_index.tolist()):
        row = place.get(index)
        if row is not None and np.array_equal(_valid(base, row), _valid(other, source)):
            rows.append(row)
            sources.append(source)
    return rows, sources, other.rows - len(rows)


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
