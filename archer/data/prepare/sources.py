"""Where records come from: files here or from the hub, or the built-in sums."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from archer.data.arithmetic_rows import Split, arithmetic_rows
from archer.data.checksum import sha256_of
from archer.data.prepare.hub import HubFile
from archer.data.prepare.records import Record, read_records


class Source(Protocol):
    """Records, and what they are: the same identity gives the same records in the same order."""

    def records(self) -> Iterator[Record]:
        """Yield all records from the beginning."""

    def identity(self) -> Any:
        """What the records depend on, as plain JSON."""


@dataclass(frozen=True)
class FileSource:
    """One or several files, in order."""

    files: tuple[Path, ...]
    origin: tuple[HubFile, ...] = ()

    def __str__(self) -> str:
        if self.origin:
            return f"{self.origin[0].repo} ({', '.join(file.name for file in self.origin)})"
        return ", ".join(map(str, self.files))

    def records(self) -> Iterator[Record]:
        """Yield the records of all files; with several, places are named by the file, too."""
        for number, path in enumerate(self.files):
            for record in read_records(path):
                done = (number + record.done) / len(self.files)
                where = f"{path.name}, {record.where}"
                yield replace(record, where=where, done=done)

    def identity(self) -> Any:
        """Names, sizes and checksums of the files, and where on the hub they are from."""
        return self._described

    @cached_property
    def _described(self) -> list[dict[str, Any]]:
        hub = {
            file.path: {"repo": file.repo, "commit": file.commit, "file": file.name} for file in self.origin
        }
        return [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path), **hub.get(path, {})}
            for path in self.files
        ]


@dataclass(frozen=True)
class ArithmeticSource:
    """The built-in sums as records with a question and an answer."""

    split: Split
    digits: int
    size: int | None

    def __str__(self) -> str:
        return f"builtin:arithmetic/{self.split}"

    def records(self) -> Iterator[Record]:
        """Yield the problems, always the same ones in the same order."""
        rows = arithmetic_rows(self.split, digits=self.digits, size=self.size)
        for number, row in enumerate(rows, start=1):
            extra = row["extra_info"]
            values = {
                "problem": row["prompt"][0]["content"],
                "answer": row["reward_model"]["ground_truth"],
                "a": extra["a"],
                "b": extra["b"],
            }
            yield Record(f"row {number}", values, done=number / len(rows))

    def identity(self) -> Any:
        """What fixes the problems."""
        return {"builtin": str(self), "digits": self.digits, "size": self.size}
