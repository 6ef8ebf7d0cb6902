"""JSONL of strangers, one line in memory at a time."""

import json
from collections.abc import Iterator
from pathlib import Path

from archer.errors import ArcherError
from archer.imports.rows import Record

MAX_LINE_BYTES = 2**28


def read_lines(file: Path) -> Iterator[Record]:
    """Yield every line of a file as an object; empty lines are passed over, anything else is an error."""
    try:
        with file.open("rb") as stream:
            number = 0
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise ArcherError(
                        f"{file}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; "
                        "expected one response a line."
                    )
                if raw.strip():
                    yield Record(file, f"line {number}", _object(file, number, raw))
    except OSError as error:
        raise ArcherError(f"{file}: cannot be read: {error.strerror}.") from error


def _object(file: Path, number: int, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:  # ValueError covers JSON, UTF-8 and absurdly long integers
        cut = "" if raw.endswith(b"\n") else " The file ends here: it may have been cut short."
        raise ArcherError(f"{file}, line {number}: not valid JSON ({error}).{cut}") from error
    if not isinstance(value, dict):
        raise ArcherError(
            f"{file}, line {number}: found {type(value).__name__}, expected an object with the row's columns."
        )
    return value
