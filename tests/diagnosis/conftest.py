"""Findings of made-up runs, and folders that hold them."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder, under every import mode of pytest

from made_up_runs import Steps, diagnosed

from archer.diagnosis.evidence import RunFinding, TraceFacts


@pytest.fixture
def found() -> Callable[..., dict[str, RunFinding]]:
    """Findings by name."""

    def find(steps: Steps, facts: Mapping[int, TraceFacts] | None = None) -> dict[str, RunFinding]:
        return {finding.name: finding for finding in diagnosed(steps, facts).findings}

    return find


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    """A run folder with a metrics.jsonl."""

    def make(steps: Steps, name: str = "run", extra: str = "") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        lines: list[Any] = [json.dumps({"step": number, **row}) for number, row in enumerate(steps, 1)]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" + extra)
        return folder

    return make
