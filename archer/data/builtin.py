"""What ships inside the package: the tiny reasoner's folder, and the built-in task as data sets by name.

    builtin:arithmetic/train
    builtin:arithmetic/val?digits=3&size=256

The rows are in verl's schema; the split into train and validation is fixed.
"""

import hashlib
import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from archer.data.arithmetic import prompt_messages
from archer.errors import ArcherError

Split = Literal["train", "val"]

PREFIX = "builtin:"
ARITHMETIC = f"{PREFIX}arithmetic"
DATA_SOURCE = "arithmetic"
DEFAULT_SIZES: dict[Split, int] = {"train": 4096, "val": 256}

MIN_DIGITS, MAX_DIGITS = 2, 12
TENTHS: dict[Split, int] = {"train": 9, "val": 1}  # of all operand pairs

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


def split_of(a: int, b: int) -> Split:
    """The split an operand pair belongs to, fixed by a hash; `a+b` and `b+a` are always in the same one."""
    digest = hashlib.blake2b(f"{min(a, b)}+{max(a, b)}".encode(), digest_size=8).digest()
    return "val" if int.from_bytes(digest) % 10 < TENTHS["val"] else "train"


def draw_pairs(split: Split, digits: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """An endless stream of random operand pairs of `split`, each operand with exactly `digits` digits."""
    low, high = 10 ** (digits - 1), 10**digits
    while True:
        a, b = rng.randrange(low, high), rng.randrange(low, high)
        if split_of(a, b) == split:
            yield a, b


def arithmetic_rows(split: Split, *, digits: int = 3, size: int | None = None) -> list[dict[str, Any]]:
    """`size` different problems of `split` as rows in verl's schema, always the same ones in the same order.

    A smaller `size` gives the first rows of a larger one.
    """
    if not MIN_DIGITS <= digits <= MAX_DIGITS:
        raise ArcherError(
            f"builtin:arithmetic: digits={digits} is not supported; choose {MIN_DIGITS} to {MAX_DIGITS}."
        )
    size = DEFAULT_SIZES[split] if size is None else size
    # Drawing without replacement slows down as the pool empties, so a tenth of it is left alone.
    pairs_in_all = (9 * 10 ** (digits - 1)) ** 2
    largest = pairs_in_all * TENTHS[split] // 10 * 9 // 10
    if not 1 <= size <= largest:
        raise ArcherError(
            f"builtin:arithmetic/{split}: size={size} is not possible with digits={digits}; "
            f"choose a size of 1 to {largest}, or more digits."
        )
    pairs: dict[tuple[int, int], None] = {}  # a set that keeps the order of drawing
    stream = draw_pairs(split, digits, random.Random(f"arithmetic/{split}/{digits}"))
    while len(pairs) < size:
        pairs[next(stream)] = None
    return [
        {
            "prompt": prompt_messages(a, b),
            "data_source": DATA_SOURCE,
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"a": a, "b": b, "index": index, "split": split},
        }
        for index, (a, b) in enumerate(pairs)
    ]
