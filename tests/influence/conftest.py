import sys
from pathlib import Path

import pytest
from transformers.models.qwen2 import modeling_qwen2

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder, under every import mode of pytest

from tiny_update import Problem, WideTorch, tiny_model


@pytest.fixture(autouse=True)
def wide_internals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_qwen2, "torch", WideTorch())


@pytest.fixture
def problem() -> Problem:
    return Problem(tiny_model())
