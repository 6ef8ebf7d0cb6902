"""Rows from JSON, JSONL and Parquet files, each with the place it came from; checksums of files.

A line that is no JSON object is a row with a problem instead of values: preparing counts it and reads on,
training refuses the file.
"""

import gzip
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from archer.data.builtin import PREFIX, builtin_rows
from archer.errors import ArcherError

PROMPT_SUFFIXES = (".json", ".jsonl", ".parquet")
SOURCE_SUFFIXES = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")
BATCH_ROWS = 1024


@dataclass(frozen=True)
class Row:
    """One row of a file; `where` is its place, for messages: `train.jsonl, line 3`."""

    where: str
    values: Mapping[str, Any]
    problem: str | None = None  # why there are no values
    done: float = 0.0  # share of the file that has been read


def read_rows(file: str) -> list[Row]:
    """All rows of a prompt file or built-in dataset; a row that is no object is an error."""
    if file.startswith(PREFIX):
        return [Row(f"{file}, row {n}", values) for n, values in enumerate(builtin_rows(file), start=1)]
    path = Path(file).expanduser()
    if not path.is_file():
        there = "is a folder, not a file" if path.is_dir() else "is no regular file"
        what = there if path.exists() else "does not exist"
        raise ArcherError(
            f"Data file {file} {what}. Check the name (data.train_files, data.val_files, --data); "
            f"relative paths start at {Path.cwd()}."
        )
    if path.suffix not in PROMPT_SUFFIXES:
        raise ArcherError(
            f"Data file {file} has the extension {path.suffix!r}; supported are {', '.join(PROMPT_SUFFIXES)} "
            f"and the built-in names that start with {PREFIX!r}."
        )
    rows = []
    for row in read_source(path, unwrap=False):
        if row.problem is not None:
            raise ArcherError(f"{path}, {row.where}: {row.problem}.")
        rows.append(replace(row, where=f"{path}, {row.where}"))
    return rows


def read_source(path: Path, *, unwrap: bool = True) -> Iterator[Row]:
    """Yield every row of a file as it is; `where` is `line 3` or `row 3`.

    With `unwrap`, a JSON object that holds one list stands for that list: `{"data": [...]}`.
    """
    suffix = source_suffix(path.name)
    if suffix is None:
        raise ArcherError(
            f"{path}: the format cannot be told from the name; supported are {', '.join(SOURCE_SUFFIXES)}."
        )
    if suffix == ".parquet":
        return _parquet(path)
    return _jsonl(path) if suffix.startswith(".jsonl") else _json(path, unwrap)


def source_suffix(name: str) -> str | None:
    """The supported extension of a file name, or None."""
    return next((suffix for suffix in SOURCE_SUFFIXES if name.endswith(suffix)), None)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parquet(path: Path) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as file:
            total, number = file.metadata.num_rows, 0
            for batch in file.iter_batches(BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"row {number}", values, done=number / total)
    except (pa.ArrowException, OSError) as error:
        raise ArcherError(f"{path}: cannot be read as Parquet ({error}).") from error


def _jsonl(path: Path) -> Iterator[Row]:
    size = path.stat().st_size or 1
    with path.open("rb") as raw:
        try:
            for number, line in enumerate(_text(raw, path), start=1):
                where, done = f"line {number}", min(1.0, raw.tell() / size)
                try:
                    if line.strip():
                        yield _row(where, _decoded(line), done)
                except json.JSONDecodeError as error:
                    yield Row(where, {}, f"not valid JSON: {error.msg}", done)
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise ArcherError(f"{path}: cannot be read as UTF-8 text ({error}).") from error


def _decoded(text: str) -> Any:
    """Read JSON; what Python cannot hold is no JSON here."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:  # brackets within brackets; an integer of 5,000 digits
        raise json.JSONDecodeError(str(error).partition(";")[0], "", 0) from error


def _json(path: Path, unwrap: bool) -> Iterator[Row]:
    with path.open("rb") as raw:
        try:
            content = _decoded(_text(raw, path).read())
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, json.JSONDecodeError) as error:
            raise ArcherError(
                f"{path}: not valid JSON ({error}). If there is one object a line, name the file .jsonl."
            ) from error
    if isinstance(content, dict) and unwrap:
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if not isinstance(content, list):
        raise ArcherError(
            f"{path}: found {type(content).__name__} at the top, expected a list of rows. "
            "If there is one object a line, name the file .jsonl."
        )
    for number, values in enumerate(content, start=1):
        yield _row(f"row {number}", values, number / len(content))


def _text(raw: IO[bytes], path: Path) -> IO[str]:
    """Text with or without a byte-order mark; its lines end where line feeds and carriage returns are."""
    stream: Any = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
    return io.TextIOWrapper(stream, encoding="utf-8-sig")


def _row(where: str, values: Any, done: float) -> Row:
    if isinstance(values, dict):
        return Row(where, values, done=done)
    return Row(where, {}, f"found {type(values).__name__}, expected an object with the row's fields", done)
