"""The built-in task as a dataset: a fixed train / validation split and rows in verl's schema."""

import hashlib
import random
from collections.abc import Iterator
from typing import Any, Literal

from archer.data.arithmetic import prompt_messages
from archer.errors import ArcherError

Split = Literal["train", "val"]

DATA_SOURCE = "arithmetic"
DEFAULT_DIGITS = 3
DEFAULT_SIZES: dict[Split, int] = {"train": 4096, "val": 256}

MIN_DIGITS, MAX_DIGITS = 2, 12
TENTHS: dict[Split, int] = {"train": 9, "val": 1}  # of all operand pairs


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


def arithmetic_rows(
    split: Split, *, digits: int = DEFAULT_DIGITS, size: int | None = None
) -> list[dict[str, Any]]:
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
