import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from archer.data.prepare.catalogue import find_set
from archer.data.prepare.pipeline import Prepared, Request, prepare
from archer.data.prepare.sources import FileSource


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Prepared]:
    """`prepared("gsm8k", file, out="x.parquet", ...)`: the data set prepared from the file."""

    def make(
        name: str, file: Path, out: str = "out.parquet", split: str = "train", **options: Any
    ) -> Prepared:
        return prepare(Request(find_set(name), FileSource((file,)), tmp_path / out, split, **options))

    return make


@pytest.fixture
def rows() -> Callable[[Path], list[dict[str, Any]]]:
    """`rows(file)`: what a Parquet or JSONL file holds."""

    def read(path: Path) -> list[dict[str, Any]]:
        if path.suffix == ".parquet":
            return pq.read_table(path).to_pylist()
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]

    return read
