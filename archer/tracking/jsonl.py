"""`metrics.jsonl`: one JSON object per step, flushed at once."""

import json
import math
import os
from pathlib import Path

from archer.files import write_atomically


class JsonlTracker:
    """Appends metrics to a file; a resumed run first drops the lines it is about to write again."""

    def __init__(self, path: Path, last_step: int) -> None:
        """`last_step`: the step training resumes from; later lines of a killed run are removed."""
        if path.is_file():
            kept = [line for line in path.read_text().splitlines(keepends=True) if _step(line) <= last_step]
            write_atomically(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one line. A value that is not finite becomes null: the file stays valid JSON."""
        clean = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **clean}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file, durably."""
        os.fsync(self._file.fileno())
        self._file.close()


def _step(line: str) -> float:
    """Step of a line; infinity for one that a kill cut short, so that it is dropped."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else math.inf
    except (json.JSONDecodeError, KeyError):
        return math.inf


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
