"""`metrics.jsonl` of a run for charts: read on from where it was left, bounded, thinned for the screen.

The file is data from strangers and may be growing. A line that is no JSON object with a whole `step` is left
out and counted; of a step logged twice the later value holds, as when a run resumed from a checkpoint.
"""

import json
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archer.trace.files import regular_file_inside

METRICS = "metrics.jsonl"
MAX_LINE = 4 * 2**20
MAX_FILE = 512 * 2**20
MAX_NAMES = 2000
MAX_NAME = 300
MAX_STEP = 10**15
POINTS = 400
"""Points of a thinned series, where no other number is asked for."""
MAX_POINTS = 4000


@dataclass
class _Held:
    """What was read so far of one version of the file."""

    identity: tuple[int, int] | None = None  # device and inode
    offset: int = 0
    tail: bytes = b""  # the bytes before `offset`, by which a file rewritten in place is noticed
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    bad_lines: int = 0
    dropped_names: int = 0


class MetricsFile:
    """The metrics of one run. Methods may be called from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._held = _Held()

    def index_json(self) -> dict[str, Any]:
        """Names with the number of their values and the last one, and what could not be read."""
        with self._lock:
            held = self._refresh()
            names = [
                {"name": name, "count": len(values), "last": _finite(values[max(values)])}
                for name, values in sorted(held.series.items())
            ]
            return {"names": names, "bad_lines": held.bad_lines, "dropped_names": held.dropped_names}

    def series_json(self, names: list[str], points: int = POINTS) -> dict[str, Any]:
        """`{name: {steps, values}}` of the names that are there, at most about `points` points each."""
        points = min(max(points, 10), MAX_POINTS)
        with self._lock:
            held = self._refresh()
            found = {name: sorted(held.series[name].items()) for name in names if name in held.series}
        return {"series": {name: _columns(pairs, points) for name, pairs in found.items()}}

    def _refresh(self) -> _Held:
        """Read what was appended; everything again where the file is another one or was rewritten."""
        path = regular_file_inside(self._folder, METRICS)
        if path is None:
            self._held = _Held()
            return self._held
        try:
            with path.open("rb") as file:
                stat = path.stat()
                identity = (stat.st_dev, stat.st_ino)
                if not self._same(file, identity, stat.st_size):
                    self._held = _Held(identity)
                self._read(file)
        except OSError:
            self._held = _Held()
        return self._held

    def _same(self, file: Any, identity: tuple[int, int], size: int) -> bool:
        held = self._held
        if held.identity != identity or size < held.offset:
            return False
        file.seek(held.offset - len(held.tail))
        return bool(file.read(len(held.tail)) == held.tail)

    def _read(self, file: Any) -> None:
        held = self._held
        file.seek(held.offset)
        while held.offset < MAX_FILE and (raw := file.readline(MAX_LINE)):
            if not raw.endswith(b"\n") and len(raw) < MAX_LINE:
                break  # being written: the next look takes it
            held.offset += len(raw)
            held.tail = raw[-64:]
            if raw.strip() and not _take(raw, held):
                held.bad_lines += 1


def _take(raw: bytes, held: _Held) -> bool:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    step = line.get("step") if isinstance(line, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or abs(step) > MAX_STEP:
        return False
    for name, value in line.items():
        if name == "step" or len(name) > MAX_NAME or not (value is None or isinstance(value, int | float)):
            continue
        if name not in held.series:
            if len(held.series) >= MAX_NAMES:
                held.dropped_names += 1
                continue
            held.series[name] = {}
        held.series[name][step] = _number(value)
    return True


def _number(value: float | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # an integer beyond every float
        return math.nan


def _columns(pairs: list[tuple[int, float]], points: int) -> dict[str, Any]:
    steps = np.array([step for step, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs], dtype=np.float64)
    kept = thinned(values, points)
    return {"steps": steps[kept].tolist(), "values": [_finite(value) for value in values[kept].tolist()]}


def thinned(values: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    """Places of about `points` values that draw the same line: the lowest and highest of equal stretches.

    values: [T]; what is not finite counts as missing, and the first and the last value are always kept.
    """
    size = len(values)
    if size <= points:
        return np.arange(size)
    edges = np.linspace(0, size, max(points // 2, 1) + 1).astype(np.int64)
    finite = np.isfinite(values)
    kept = {0, size - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = finite[start:end]
        if not inside.any():
            kept.add(start)  # a stretch without values stays a gap
            continue
        kept.add(start + int(np.argmin(np.where(inside, values[start:end], np.inf))))
        kept.add(start + int(np.argmax(np.where(inside, values[start:end], -np.inf))))
    return np.array(sorted(kept), dtype=np.int64)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
