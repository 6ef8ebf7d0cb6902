"""verl's dumps by hand, and the helpers of this folder."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder, under every import mode of pytest


@pytest.fixture
def verl_lines(tmp_path):
    """`verl_lines(step, *objects)`: a dump with these lines, by hand."""

    def write(step: int, *objects: object) -> Path:
        folder = tmp_path / "rollouts"
        folder.mkdir(exist_ok=True)
        lines = [value if isinstance(value, str) else json.dumps(value) for value in objects]
        (folder / f"{step}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return folder

    return write
