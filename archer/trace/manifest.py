"""`manifest.jsonl`: one JSON line per written step, append only; the last line for a step wins.

A line holds the few numbers that a timeline needs, so no step file is opened for them.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from archer.files import plain_file, replace_atomically
from archer.trace.files import (
    MANIFEST,
    STEPS_FOLDER,
    finite_number,
    regular_file_inside,
    step_file_name,
    whole_number,
)
from archer.trace.schema import TraceStep

_COUNTS = ("rows", "tokens", "groups", "max_response_length", "influence_tokens")


@dataclass(frozen=True)
class StepStatistics:
    """Means over valid tokens or responses; None where there is nothing to average or in an older trace."""

    rows: int | None = None
    tokens: int | None = None
    groups: int | None = None
    mean_response_length: float | None = None
    max_response_length: int | None = None
    mean_entropy: float | None = None
    mean_log_prob: float | None = None
    mean_reward: float | None = None
    accepted_share: float | None = None
    mean_abs_influence: float | None = None
    influence_tokens: int | None = None
    """Tokens whose influence was computed."""

    @classmethod
    def of(cls, step: TraceStep) -> "StepStatistics":
        """Compute them, in float64, skipping NaN."""
        lengths, mask = step.lengths, step.response_mask
        influence = None if step.influence is None else np.abs(step.influence[mask])
        return cls(
            rows=step.rows,
            tokens=int(lengths.sum()),
            groups=None if step.group_id is None else int(np.unique(step.group_id).size),
            mean_response_length=_mean(lengths),
            max_response_length=int(lengths.max(initial=0)),
            mean_entropy=_mean(step.entropies[mask]),
            mean_log_prob=None if step.log_probs is None else _mean(step.log_probs[mask]),
            mean_reward=None if step.reward is None else _mean(step.reward[step.judged]),
            accepted_share=None if step.accepted is None else _mean(step.accepted[step.judged]),
            mean_abs_influence=None if influence is None else _mean(influence),
            influence_tokens=None if influence is None else int(np.isfinite(influence).sum()),
        )

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> "StepStatistics":
        """Read what a manifest line holds; unknown keys are left, what is no finite number becomes None."""
        counts = {name: whole_number(line.get(name)) for name in _COUNTS}
        means = {f.name: finite_number(line.get(f.name)) for f in fields(cls) if f.name not in _COUNTS}
        return cls(**counts, **means)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and None, by field name."""
        return asdict(self)


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=np.float64)) if finite.size else None


MAX_LINE_BYTES = 2**20
MAX_STEP = 10**15


@dataclass(frozen=True)
class ManifestLine:
    """One written step: when, how large, and its statistics."""

    step: int
    statistics: StepStatistics
    size: int | None = None  # bytes of the step file
    seconds: float | None = None  # that the background writer took
    time: float | None = None  # Unix time at which the step file was complete

    def to_bytes(self) -> bytes:
        """The line as it stands in the file. The file name is for people: readers derive it from the step."""
        record = {
            "step": self.step,
            "file": f"{STEPS_FOLDER}/{step_file_name(self.step)}",
            **self.statistics.to_json(),
            "bytes": self.size,
            "seconds": self.seconds,
            "time": self.time,
        }
        return json.dumps(record, allow_nan=False).encode() + b"\n"


@dataclass(frozen=True)
class BadLine:
    """A manifest line that is not a JSON object with a step."""

    number: int  # counted from 1
    torn: bool  # the last line, without its newline: what a kill in the middle of an append leaves


@dataclass(frozen=True)
class Manifest:
    """A manifest as read: the winning line of each step, in order, and the lines that could not be read."""

    lines: dict[int, ManifestLine]
    bad: tuple[BadLine, ...] = ()


def read_manifest(folder: Path) -> Manifest:
    """Read a trace's manifest; a missing file is an empty manifest, a bad line is reported and skipped."""
    path = regular_file_inside(folder, MANIFEST)
    if path is None:
        return Manifest({})
    lines: dict[int, ManifestLine] = {}
    bad: list[BadLine] = []
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            whole = raw.endswith(b"\n")
            line = _parse(raw)
            if line is None and raw.strip():
                bad.append(BadLine(number, torn=not whole and len(raw) < MAX_LINE_BYTES))
            elif line is not None:
                lines[line.step] = line
            while not whole and len(raw) == MAX_LINE_BYTES:  # the rest of an overlong line
                raw = file.readline(MAX_LINE_BYTES)
                whole = raw.endswith(b"\n")
    return Manifest(dict(sorted(lines.items())), tuple(bad))


def append_line(folder: Path, line: ManifestLine, *, fsync: bool) -> None:
    """Add one line in one write."""
    with plain_file(folder / MANIFEST).open("ab", buffering=0) as file:
        data = line.to_bytes()
        written = file.write(data)
        if written != len(data):  # a full disk may take a part of the line and only fail at the next write
            raise OSError(f"only {written} of {len(data)} bytes of a manifest line could be written")
        if fsync:
            os.fsync(file.fileno())


def repair_tail(folder: Path) -> None:
    """Make the manifest end with a newline after a kill: complete a whole last line, drop a torn one."""
    path = folder / MANIFEST
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        tail = content[content.rfind(b"\n") + 1 :]
        if not tail:
            return
        if _parse(tail) is not None:
            file.write(b"\n")
        else:
            file.truncate(len(content) - len(tail))


def rewrite(folder: Path, lines: Iterable[ManifestLine], *, fsync: bool) -> None:
    """Replace the whole manifest atomically."""
    content = b"".join(line.to_bytes() for line in lines)
    replace_atomically(folder / MANIFEST, lambda file: file.write(content), fsync=fsync)


def _parse(raw: bytes) -> ManifestLine | None:
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):  # ValueError covers JSON, UTF-8 and absurdly long integers
        return None
    if not isinstance(record, dict):
        return None
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < MAX_STEP:
        return None
    return ManifestLine(
        step=step,
        statistics=StepStatistics.from_json(record),
        size=whole_number(record.get("bytes")),
        seconds=finite_number(record.get("seconds")),
        time=finite_number(record.get("time")),
    )
