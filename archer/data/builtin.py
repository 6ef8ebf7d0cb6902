"""What ships inside the package: the tiny reasoner's folder and the built-in datasets by name.

builtin:arithmetic/train
builtin:arithmetic/val?digits=3&size=256
"""

from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from archer.data.arithmetic_rows import Split, arithmetic_rows
from archer.errors import ArcherError

PREFIX = "builtin:"

_ARITHMETIC: dict[str, Split] = {"builtin:arithmetic/train": "train", "builtin:arithmetic/val": "val"}
_OPTIONS = ("digits", "size")


def tiny_reasoner_path() -> Path:
    """The folder of the tiny arithmetic reasoner, in Hugging Face format."""
    return Path(str(files("archer") / "assets" / "tiny_reasoner"))


def builtin_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a built-in dataset, e.g. `builtin:arithmetic/train?digits=3&size=4096`."""
    base, _, query = name.partition("?")
    if base not in _ARITHMETIC:
        raise ArcherError(f"There is no built-in dataset {base!r}; there are: {', '.join(_ARITHMETIC)}.")
    options: dict[str, int] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in _OPTIONS:
            raise ArcherError(f"{name}: unknown option {key!r}; the options are: {', '.join(_OPTIONS)}.")
        if not (value.isascii() and value.isdigit()):
            raise ArcherError(f"{name}: {key}={value!r} is not a number; write for example {key}=3.")
        options[key] = int(value)
    return arithmetic_rows(_ARITHMETIC[base], **options)
