"""`metrics.jsonl`: one JSON object per step, flushed at once."""

import json
import logging
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from archer.errors import ArcherError
from archer.files import append_to, plain_file, write_atomically
from archer.tracking.samples import ShownResponse

_logger = logging.getLogger(__name__)


class JsonlTracker:
    """Appends metrics to a file; a resumed run first drops the lines it is about to write again."""

    def __init__(self, path: Path, last_step: int) -> None:
        """`last_step`: the step training resumes from; later lines of a killed run are removed."""
        if plain_file(path).is_file():
            lines = _lines(path)
            kept = [line for line in lines if _step(line) <= last_step]
            broken = sum(math.isinf(_step(line)) for line in lines[:-1])  # a kill breaks the last one only
            if broken:
                copy = path.with_name(f"{path.name}.damaged")
                shutil.copyfile(path, plain_file(copy))
                _logger.warning(
                    "%s: %d lines that are no metrics are left out; the file as it was is %s.",
                    path,
                    broken,
                    copy.name,
                )
            write_atomically(path, "".join(kept))
        self._file = append_to(path)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one line. A value that is not finite becomes null: the file stays valid JSON."""
        clean = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **clean}) + "\n")
        self._file.flush()

    def log_samples(self, step: int, samples: Sequence[ShownResponse]) -> None:
        """Texts have no place in this file: every line is numbers."""

    def close(self) -> None:
        """Close the file, durably."""
        os.fsync(self._file.fileno())
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file; lines that are no metrics of a step are left out."""
    return [json.loads(line) for line in _lines(path) if math.isfinite(_step(line))]


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that may be damaged: bytes that are no text become marks, not an error."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ArcherError(
            f"{path} cannot be read: {error.strerror}. Make it readable, or remove it."
        ) from error
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in [*whole, *([rest] if rest else [])]]


def _step(line: str) -> float:
    """Step of a line; infinity for one that a kill cut short or that something damaged: it is dropped."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return math.inf
    return step if isinstance(step, int) and not isinstance(step, bool) else math.inf
