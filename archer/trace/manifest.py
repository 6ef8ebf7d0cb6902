"""`manifest.jsonl`: one JSON line per written step, append only; the last line for a step wins."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from archer.trace.files import MANIFEST, STEPS_FOLDER, regular_file_inside, replace_atomically, step_file_name
from archer.trace.statistics import StepStatistics, finite_number, whole_number

MAX_LINE_BYTES = 2**20
MAX_STEP = 10**15


@dataclass(frozen=True)
class ManifestLine:
    """One written step: when, how large, and its statistics."""

    step: int
    statistics: StepStatistics
    size: int | None = None
    """Bytes of the step file."""
    seconds: float | None = None
    """Time the background writer took."""
    time: float | None = None
    """Unix time at which the step file was complete."""

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

    number: int
    """Counted from 1."""
    torn: bool
    """The last line, without its newline: what a kill in the middle of an append leaves."""


@dataclass(frozen=True)
class Manifest:
    """A manifest as read: the winning line of each step, in step order, and the lines that could not be
    read.
    """

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
    with (folder / MANIFEST).open("ab", buffering=0) as file:
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
