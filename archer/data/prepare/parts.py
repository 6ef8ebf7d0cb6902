"""Partial output that survives a kill.

While a file is prepared, `.NAME.parts/` beside it holds what is done: numbered part files and `state.json`,
which says how many of them count, how many records they stand for, and what they were made from. A restart
with the same sources and options goes on from there; anything else starts over.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archer.data.prepare.counts import Counts
from archer.data.prepare.schema import SCHEMA
from archer.errors import ArcherError
from archer.files import lock, sync_folder, sync_tree, write_atomically

_KEYS = {"question_key": pa.string(), "answer_key": pa.string()}
_PART_SCHEMA = pa.schema([*SCHEMA, *(pa.field(name, kind) for name, kind in _KEYS.items())])
_STATE = "state.json"


class Parts:
    """The partial output of one file."""

    def __init__(self, output: Path, identity: dict[str, Any]) -> None:
        self.folder = output.with_name(f".{output.name}.parts")
        self._output = output
        self._identity = identity
        self._count = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a second process from preparing the same file at the same time."""
        path = self.folder.with_suffix(".lock")
        with lock(
            path, f"Another process is preparing {self._output}. Wait for it, or choose another --out."
        ):
            try:
                yield
            finally:
                path.unlink()

    def resume(self) -> Counts | None:
        """The counts of what is done already, or None (and nothing on disk) when there is nothing to use."""
        state = self._state()
        if state is None or state["identity"] != self._identity:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None
        self._count = state["parts"]
        return Counts.from_json(state["counts"])

    def exists(self) -> bool:
        """Whether an earlier, unfinished preparation left something."""
        return self.folder.is_dir()

    def add(self, rows: list[dict[str, Any]], counts: Counts) -> None:
        """Add the rows of the records read since the last part; from now on a kill does not lose them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, _PART_SCHEMA), self._part(self._count))
        sync_tree(self.folder)
        self._count += 1
        state = {"identity": self._identity, "parts": self._count, "counts": counts.to_json()}
        write_atomically(self.folder / _STATE, json.dumps(state))

    def keys(self) -> Iterator[tuple[str, str]]:
        """(question key, answer key) of every row so far."""
        for number in range(self._count):
            table = pq.read_table(self._part(number), columns=list(_KEYS))
            yield from zip(*(table[name].to_pylist() for name in _KEYS), strict=True)

    def finish(self, output: Path) -> None:
        """Join the parts into the output, which appears whole or not at all."""
        temporary = output.with_name(f".{output.name}.tmp")
        if output.suffix == ".parquet":
            with pq.ParquetWriter(temporary, SCHEMA) as writer:
                for table in self._tables():
                    writer.write_table(table)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                for table in self._tables():
                    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(output)
        sync_folder(output.parent)

    def remove(self) -> None:
        """Delete the partial output."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tables(self) -> Iterator[pa.Table]:
        for number in range(self._count):
            yield pq.read_table(self._part(number)).select(SCHEMA.names)

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.parquet"

    def _state(self) -> dict[str, Any] | None:
        file = self.folder / _STATE
        if not file.is_file():
            return None
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ArcherError(f"{file} is damaged ({error}). Remove {self.folder} to start over.") from error
