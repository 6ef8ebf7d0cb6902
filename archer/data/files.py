"""Rows of a dataset from JSON, JSONL and Parquet files, each with the place it came from."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archer.data.builtin import PREFIX, builtin_rows
from archer.errors import ArcherError


@dataclass(frozen=True)
class Row:
    """One row of a file and, for messages, where it stands: `train.jsonl, line 3`."""

    where: str
    values: Mapping[str, Any]


def read_rows(file: str) -> list[Row]:
    """All rows of a file or built-in dataset; the file's extension tells its format."""
    if file.startswith(PREFIX):
        return _numbered(file, builtin_rows(file))
    path = Path(file).expanduser()
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise ArcherError(
            f"Data file {file} {what}. Check the name (data.train_files, data.val_files, --data); "
            f"relative paths start at {Path.cwd()}."
        )
    if path.suffix not in _READERS:
        raise ArcherError(
            f"Data file {file} has the extension {path.suffix!r}; supported are {', '.join(_READERS)} "
            f"and the built-in names that start with {PREFIX!r}."
        )
    return list(_READERS[path.suffix](path))


def _numbered(name: str, values: list[Any]) -> list[Row]:
    """Rows counted from 1, each checked to be an object."""
    return [_row(f"{name}, row {number}", value) for number, value in enumerate(values, start=1)]


def _row(where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise ArcherError(f"{where}: found {type(value).__name__}, expected an object with the row's fields.")
    return Row(where, value)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # accepts files with and without a byte-order mark
    except UnicodeDecodeError as error:
        raise ArcherError(f"{path}: not UTF-8 text ({error}). Save the file as UTF-8.") from error


def _parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ArcherError(f"{where}: not valid JSON ({error}).") from error


def _read_json(path: Path) -> list[Row]:
    content = _parse(str(path), _read_text(path))
    if not isinstance(content, list):
        raise ArcherError(
            f"{path}: found {type(content).__name__} at the top, expected a list of rows. "
            "If there is one object a line, name the file .jsonl."
        )
    return _numbered(str(path), content)


def _read_jsonl(path: Path) -> Iterator[Row]:
    # split, not splitlines: JSON strings may hold other line separators unescaped
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _row(where, _parse(where, line))


def _read_parquet(path: Path) -> list[Row]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ArcherError(f"{path}: cannot be read as Parquet ({error}).") from error
    return _numbered(str(path), table.to_pylist())


_READERS: dict[str, Callable[[Path], Iterator[Row] | list[Row]]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
