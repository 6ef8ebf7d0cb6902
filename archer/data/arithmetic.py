"""The built-in task: sums of two numbers, worked out column by column from the units.

For 347+586 the one right response is

    7+6+0=13
    4+8+1=13
    3+5+1=9
    \\boxed{933}

Each line but the last adds two digits and the carry of the line above. Because the right text is known to the
last character, so is the first place where a response leaves it: see `archer.data.mistakes`.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Any, Literal

from archer.errors import ArcherError

Split = Literal["train", "val"]

DATA_SOURCE = "arithmetic"
DEFAULT_DIGITS = 3
DEFAULT_SIZES: dict[Split, int] = {"train": 4096, "val": 256}

MIN_DIGITS, MAX_DIGITS = 2, 12
VAL_TENTHS = 1  # tenths of all operand pairs that belong to validation
MAX_WRITTEN_SUM = 19  # a column holds at most 9+9+1


def columns(a: int, b: int) -> list[tuple[int, int]]:
    """The digit pairs of `a` and `b` from the units up; the shorter number is filled up with zeros."""
    width = max(len(str(a)), len(str(b)))
    return [(int(x), int(y)) for x, y in zip(f"{a:0{width}}"[::-1], f"{b:0{width}}"[::-1], strict=True)]


def write_steps(a: int, b: int, rng: random.Random | None = None, mistake_rate: float = 0.0) -> str:
    """Write out `a + b`; each written sum is wrong with probability `mistake_rate`.

    A mistake moves a sum by one or two, and what follows is consistent with it: the wrong sum's tens are
    carried and its units appear in the answer. With a rate of 0 this is the right response.
    """
    if mistake_rate > 0 and rng is None:
        raise ValueError("mistakes are drawn at random: write_steps needs an rng when mistake_rate > 0")
    lines, answer, carry = [], "", 0
    for x, y in columns(a, b):
        total = x + y + carry
        if rng is not None and rng.random() < mistake_rate:
            total = rng.choice([s for s in _neighbours(total) if 0 <= s <= MAX_WRITTEN_SUM])
        lines.append(f"{x}+{y}+{carry}={total}")
        answer = str(total % 10) + answer
        carry = total // 10
    answer = (str(carry) if carry else "") + answer
    return "\n".join([*lines, rf"\boxed{{{answer}}}"])


def _neighbours(total: int) -> tuple[int, ...]:
    return (total - 2, total - 1, total + 1, total + 2)


def prompt_messages(a: int, b: int) -> list[dict[str, str]]:
    """The chat messages that ask for `a + b`."""
    return [{"role": "user", "content": f"{a}+{b}="}]


def split_of(a: int, b: int) -> Split:
    """The split an operand pair belongs to, fixed by a hash; `a+b` and `b+a` are always in the same one."""
    digest = hashlib.blake2b(f"{min(a, b)}+{max(a, b)}".encode(), digest_size=8).digest()
    return "val" if int.from_bytes(digest) % 10 < VAL_TENTHS else "train"


def draw_pairs(split: Split, digits: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """An endless stream of random operand pairs of `split`, each operand with exactly `digits` digits."""
    low, high = 10 ** (digits - 1), 10**digits
    while True:
        a, b = rng.randrange(low, high), rng.randrange(low, high)
        if split_of(a, b) == split:
            yield a, b


def arithmetic_rows(split: Split, *, digits: int = DEFAULT_DIGITS, size: int | None = None) -> list[dict[str, Any]]:
    """`size` different problems of `split` as rows in verl's schema, always the same ones in the same order.

    A smaller `size` gives the first rows of a larger one.
    """
    if not MIN_DIGITS <= digits <= MAX_DIGITS:
        raise ArcherError(f"arithmetic: digits={digits} is not supported; choose {MIN_DIGITS} to {MAX_DIGITS}.")
    size = DEFAULT_SIZES[split] if size is None else size
    # Drawing without replacement slows down as the pool empties, so a tenth of it is left alone.
    tenths = VAL_TENTHS if split == "val" else 10 - VAL_TENTHS
    largest = (9 * 10 ** (digits - 1)) ** 2 * tenths * 9 // 100
    if not 1 <= size <= largest:
        raise ArcherError(
            f"arithmetic: size={size} is not possible for the {split} split with digits={digits}; "
            f"choose 1 to {largest}, or more digits."
        )
    pairs: dict[tuple[int, int], None] = {}  # keeps the order of drawing
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
