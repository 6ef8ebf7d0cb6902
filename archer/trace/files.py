"""The folder of a trace: file names, operations that survive a kill, and `summary.json`, what the trace is.

No path ever leaves the folder, and nothing that stands in a file is taken for what it claims to be.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.files import TEMPORARY_SUFFIX, real_path, replace_atomically
from archer.trace.arrays import FORMAT_MAJOR, FORMAT_VERSION, TRACE_KINDS, TraceKind

STEPS_FOLDER = "steps"
MANIFEST = "manifest.jsonl"
SUMMARY = "summary.json"
LATEST = "latest_step.txt"
VOCAB = "vocab.npz"
VALIDATION = "val_trace"
"""Folder of the trace of validations in a run folder, and of its samples in that of an evaluation."""


def step_file_name(step: int) -> str:
    """`step_000001.npz`; more digits when a step needs them."""
    return f"step_{step:06d}.npz"


def step_of_file_name(name: str) -> int | None:
    """The step of a step file's name, or None when `name` is not exactly what the writer would use."""
    digits = name.removeprefix("step_").removesuffix(".npz")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return None
    step = int(digits)
    return step if name == step_file_name(step) else None


def leftover_temporaries(folder: Path) -> list[Path]:
    """Temporary files in a trace folder: a writer at work, or one that was killed."""
    places = (folder, folder / STEPS_FOLDER)
    return [path for place in places for path in sorted(place.glob(f".*{TEMPORARY_SUFFIX}"))]


def regular_file_inside(folder: Path, relative: str) -> Path | None:
    """A file of the trace, None when it is not there.

    A trace is data from strangers: links that lead out of the folder, and things that are not plain files
    (opening a pipe would wait for ever), are refused.
    """
    path = folder / relative
    resolved = real_path(path)
    if not resolved.is_relative_to(real_path(folder)):
        raise ArcherError(
            f"{relative} is a link that leads out of the trace folder {folder}; it is not followed."
        )
    if not resolved.exists():
        return None
    if not resolved.is_file():
        raise ArcherError(f"{relative} in {folder} is not a regular file.")
    return resolved


def sibling_folder(folder: Path, name: str) -> Path:
    """The folder of that name beside a trace. The name stands in a stranger's file: it may lead nowhere else.

    Raises `ArcherError` for anything but the name of a folder, and for links that lead away.
    """
    parent = real_path(folder).parent
    plain = name not in ("", ".", "..") and not any(sign in name for sign in "/\\\0:")
    beside = parent / name if plain else None
    if beside is None or real_path(beside) != beside:
        raise ArcherError(
            f"the trace {folder} refers to {name[:80]!r}, which is not the name of a folder beside it."
        )
    return beside


def finite_number(value: object) -> float | None:
    """A JSON value as a number that is safe to plot, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # comparisons, because a JSON integer may overflow a float
    return value if -1e300 < value < 1e300 else None


def whole_number(value: object) -> int | None:
    """A JSON value as a count, None for anything else."""
    number = finite_number(value)
    return None if number is None else int(number)


MAX_SUMMARY_BYTES = 16 * 2**20


@dataclass(frozen=True)
class TraceSummary:
    """Run-level facts of a trace."""

    kind: TraceKind
    format_version: str = FORMAT_VERSION
    write_every: int = 1
    steps: int = 0
    latest_step: int | None = None
    created: float | None = None  # Unix time at which the trace was started
    updated: float | None = None
    refers_to: str | None = None  # folder beside this one that steps of this trace take arrays from
    metadata: dict[str, Any] = field(default_factory=dict)  # plain JSON that the run wants to be known by

    @property
    def format_major(self) -> int:
        """The part of the version that decides whether a reader understands the trace."""
        return _major(self.format_version)

    @property
    def not_computed(self) -> tuple[str, ...]:
        """Arrays that nobody computed, as imports say: NaN at every token, which is no failure."""
        named = self.metadata.get("not_computed")
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def write_summary(folder: Path, summary: TraceSummary, *, fsync: bool) -> None:
    """Replace the trace's summary."""
    content = json.dumps(summary.__dict__, indent=2, allow_nan=False).encode() + b"\n"
    replace_atomically(folder / SUMMARY, lambda file: file.write(content), fsync=fsync)


def read_summary(folder: Path) -> TraceSummary | None:
    """The trace's summary, None where there is none; a trace without `format_version` is of the first format.

    Raises `ArcherError` for a newer major version, and for a file that is not a summary.
    """
    path = regular_file_inside(folder, SUMMARY)
    if path is None:
        return None
    if path.stat().st_size > MAX_SUMMARY_BYTES:
        raise ArcherError(f"{path} is larger than {MAX_SUMMARY_BYTES} bytes; it is not a trace summary.")
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ArcherError(
            f"{path} is not valid JSON ({error}); remove it to read the trace without it."
        ) from error
    if not isinstance(record, dict):
        raise ArcherError(f"{path} holds a JSON {type(record).__name__}, expected an object.")
    version = str(record.get("format_version", "1"))
    if _major(version) > FORMAT_MAJOR:
        raise ArcherError(
            f"{folder} is a trace of format {version}; this Archer reads formats up to {FORMAT_MAJOR}.x. "
            "Update Archer to read it."
        )
    kind = record.get("kind")
    metadata = record.get("metadata")
    return TraceSummary(
        kind=kind if kind in TRACE_KINDS else kind_of_folder(folder),
        format_version=version,
        write_every=whole_number(record.get("write_every")) or 1,
        steps=whole_number(record.get("steps")) or 0,
        latest_step=whole_number(record.get("latest_step")),
        created=finite_number(record.get("created")),
        updated=finite_number(record.get("updated")),
        refers_to=record.get("refers_to") if isinstance(record.get("refers_to"), str) else None,
        metadata=metadata if isinstance(metadata, dict) else {},
    )


def kind_of_folder(folder: Path) -> TraceKind:
    """The kind of a trace that does not say it: older traces are told apart by their folder's name alone."""
    return "influence" if "influence" in real_path(folder).name else "entropy"


def _major(version: str) -> int:
    head = version.split(".")[0]
    if not (head.isascii() and head.isdigit() and len(head) < 6):
        raise ArcherError(
            f"trace format_version is {version[:40]!r}, expected a number such as {FORMAT_VERSION!r}."
        )
    return int(head)
