"""`archer trace convert`: a trace of the first system, written again in today's format.

What those traces lack is derived where it can be (row numbers, groups from `uid` or `sample_index`, lengths),
and left out where it cannot: log-probs, rewards and verdicts were never stored. Prompts were stored as Python
objects; they are read by an unpickler that can build arrays and lists of numbers and nothing else.
"""

import io
import pickle
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from archer.errors import ArcherError
from archer.files import real_path
from archer.trace.arrays import OUTSIDE_MASK, SPECS
from archer.trace.files import STEPS_FOLDER, step_file_name
from archer.trace.reader import LoadedStep, StepProblem, TraceReader
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab
from archer.trace.writer import TraceWriter

MAX_PICKLE_BYTES = 2**30
_ALLOWED = {
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    ("_codecs", "encode"),  # how protocol 2 writes bytes
}


@dataclass(frozen=True)
class Converted:
    """What a conversion did."""

    steps: int
    problems: tuple[StepProblem, ...]
    notes: tuple[str, ...]


def convert_trace(old: Path, new: Path, vocab: Vocab | None = None) -> Converted:
    """Write every readable step of `old` to the new folder `new`; damaged ones are reported and left out."""
    reader = TraceReader(old)
    if real_path(new) == real_path(old) or (new.exists() and (not new.is_dir() or any(new.iterdir()))):
        raise ArcherError(f"{new} exists and is not an empty folder; convert to a new one.")
    problems: list[StepProblem] = []
    notes: dict[str, None] = {}
    written = 0
    summary = reader.summary
    with TraceWriter(
        new,
        kind=summary.kind,
        metadata=summary.metadata | {"converted_from_format": summary.format_version},
        vocab=vocab or reader.vocab,
        complete=False,
    ) as writer:
        for found in reader:
            if isinstance(found, StepProblem):
                problems.append(found)
                continue
            arrays, said = _completed(found, old / STEPS_FOLDER / step_file_name(found.step))
            notes |= dict.fromkeys(said)
            writer.write(found.step, arrays)
            written += 1
    return Converted(written, tuple(problems), tuple(notes))


def _completed(found: LoadedStep, file: Path) -> tuple[TraceStep, list[str]]:
    """Return a step with what can be derived, cut to its longest response, and what could not be had."""
    step, rows = found.arrays, found.arrays.rows
    width = int(step.lengths.max(initial=0)) if _left_aligned(step.response_mask) else step.responses.shape[1]
    mask = step.response_mask[:, :width]
    cut: dict[str, Any] = {}
    for name, array in step.arrays().items():
        if SPECS[name].layout == "token" and name != "response_mask":
            outside = OUTSIDE_MASK.get(name, array[:, :width])
            cut[name] = np.where(mask, array[:, :width], outside).astype(array.dtype)
    group_id = step.group_id
    for labels in (step.uid, step.sample_index):
        if group_id is None and labels is not None:
            group_id = np.unique(labels, return_inverse=True)[1].astype(np.int32).reshape(rows)
    if group_id is not None:
        cut["group_id"] = group_id
        cut["uid"] = group_id.astype(np.str_) if step.uid is None else step.uid
    notes = [note for note in found.notes if "prompts" not in note]
    if step.prompt_ids is None:
        prompts = _stored_prompts(file, rows)
        if prompts is None:
            notes.append("prompts could not be taken over")
        else:
            lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
            cut["prompt_ids"] = np.concatenate([np.empty(0, np.int32), *prompts])
            cut["prompt_offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            cut["prompt_length"] = lengths.astype(np.int32)
    missing = [name for name in ("log_probs", "reward", "accepted") if getattr(step, name) is None]
    if missing:
        notes.append(f"{', '.join(missing)} were not stored and stay unknown")
    return replace(step, response_mask=np.ascontiguousarray(mask), **cut), notes


def _left_aligned(mask: np.ndarray) -> bool:
    """Whether every response begins at the first position, so that the rest of its row is padding."""
    return bool((np.diff(mask.astype(np.int8), axis=1) <= 0).all())


def _stored_prompts(file: Path, rows: int) -> list[np.ndarray] | None:
    """Return the prompts that were stored as an array of objects; None where that is not possible."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open("prompt_ids.npy") as stream:
            content = io.BytesIO(stream.read(MAX_PICKLE_BYTES))
        version = npy.read_magic(content)
        npy.read_array_header_1_0(content) if version == (1, 0) else npy.read_array_header_2_0(content)
        stored = np.asarray(_NumbersOnly(content).load(), dtype=object).reshape(-1)
        prompts = [np.asarray(list(_numbers(item)), dtype=np.int32) for item in stored]
    except Exception:  # a stranger's pickle fails in any way it likes; the rest of the step is still good
        return None
    return prompts if len(prompts) == rows else None


def _numbers(item: Any) -> Iterator[int]:
    for value in np.asarray(item).reshape(-1).tolist():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("not a token id")
        yield value


class _NumbersOnly(pickle.Unpickler):
    """Builds arrays of numbers: no other class or function can be named by the file."""

    def find_class(self, module: str, name: str) -> Any:
        """Allow what NumPy's own pickles name."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)
