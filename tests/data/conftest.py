import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class LetterTokenizer:
    """A stand-in for a Hugging Face tokenizer: one token per character, `role:content|` per message."""

    chat_template = "letters"

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> list[int]:
        assert kwargs.pop("tokenize") is True
        assert kwargs.pop("return_dict") is False
        assert kwargs.pop("add_generation_prompt") is True
        text = "".join(f"{m['role']}:{m['content']}|" for m in conversation)
        return [ord(c) for c in text + kwargs.pop("suffix", "")]


@pytest.fixture
def tokenizer() -> LetterTokenizer:
    return LetterTokenizer()


def row(content: str = "1+1=", **changes: Any) -> dict[str, Any]:
    good = {
        "prompt": [{"role": "user", "content": content}],
        "data_source": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 7},
    }
    return {**good, **changes}


@pytest.fixture(name="row")
def row_fixture() -> Callable[..., dict[str, Any]]:
    """Makes a good row; keyword arguments replace whole fields."""
    return row


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes rows to a JSONL file and gives its path."""

    def write(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        return str(path)

    return write


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write("a.jsonl", row, ...)`: a file of rows; a row that is text is written as it is."""

    def make(name: str, *rows: Any) -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return make
