"""Raw records of a file, one at a time: Parquet, JSONL, JSON, the last two also compressed (.gz).

A line that is no JSON object is a record with a problem instead of values: preparing counts it and goes on.
"""

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from archer.errors import ArcherError

SUFFIXES = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")
BATCH_ROWS = 1024


@dataclass(frozen=True)
class Record:
    """A row as the file has it; `where` is `line 3` or `row 3`."""

    where: str
    values: Mapping[str, Any]
    problem: str | None = None  # why there are no values
    done: float = 0.0  # share of the file that has been read


def suffix_of(name: str) -> str | None:
    """The supported extension of a file name, or None."""
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)


def read_records(path: Path) -> Iterator[Record]:
    """Yield every record of a file; its extension tells the format."""
    suffix = suffix_of(path.name)
    if suffix is None:
        raise ArcherError(
            f"{path}: the format cannot be told from the name; supported are {', '.join(SUFFIXES)}."
        )
    if suffix == ".parquet":
        return _parquet(path)
    return _jsonl(path) if suffix.startswith(".jsonl") else _json(path)


def _parquet(path: Path) -> Iterator[Record]:
    try:
        with pq.ParquetFile(path) as file:
            total, number = file.metadata.num_rows, 0
            for batch in file.iter_batches(BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(f"row {number}", values, done=number / total)
    except (pa.ArrowException, OSError) as error:
        raise ArcherError(f"{path}: cannot be read as Parquet ({error}).") from error


def _jsonl(path: Path) -> Iterator[Record]:
    size = path.stat().st_size or 1
    with path.open("rb") as raw:
        try:
            for number, line in enumerate(_text(raw, path), start=1):
                if line.strip():
                    yield _from_json(f"line {number}", line, min(1.0, raw.tell() / size))
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise ArcherError(f"{path}: cannot be read as text ({error}).") from error


def _json(path: Path) -> Iterator[Record]:
    with path.open("rb") as raw:
        try:
            content = json.load(_text(raw, path))
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, json.JSONDecodeError) as error:
            raise ArcherError(
                f"{path}: not valid JSON ({error}). If there is one object a line, name the file .jsonl."
            ) from error
    if isinstance(content, dict):  # {"data": [...]} and the like
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if not isinstance(content, list):
        raise ArcherError(f"{path}: expected a list of rows at the top, found {type(content).__name__}.")
    for number, values in enumerate(content, start=1):
        yield _checked(f"row {number}", values, number / len(content))


def _text(raw: IO[bytes], path: Path) -> IO[str]:
    stream: Any = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
    return io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")


def _from_json(where: str, line: str, done: float) -> Record:
    try:
        return _checked(where, json.loads(line), done)
    except json.JSONDecodeError as error:
        return Record(where, {}, f"not valid JSON: {error.msg}", done)


def _checked(where: str, values: Any, done: float) -> Record:
    if isinstance(values, dict):
        return Record(where, values, done=done)
    return Record(where, {}, f"not an object but {type(values).__name__}", done)
