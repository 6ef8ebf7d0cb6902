r"""The built-in task: sums of two numbers, worked out column by column from the units.

For 347+586 the one right response is

    7+6+0=13
    4+8+1=13
    3+5+1=9
    \boxed{933}

Each line but the last adds two digits and the carry of the line above. Because the right text is known to the
last character, so is the first place where a response leaves it: the ground truth for influence scores.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MAX_WRITTEN_SUM = 19  # a column holds at most 9+9+1

_BOX = r"\boxed{"
_DIGITS = re.compile("[0-9]+")

MistakeKind = Literal["operand", "carry", "sum", "answer", "missing", "malformed"]


@dataclass(frozen=True)
class Mistake:
    r"""Where a response first leaves the right one.

    `kind` says what is wrong: a copied `operand`, the `carry`, a written `sum`, the boxed `answer`; `missing`
    when the response stops early or boxes an answer with steps still to write; `malformed` for anything else.

    `[start, end)` are the wrong characters: for a wrong number its digits from the first wrong one on,
    otherwise the one character that should have been another. A number that is too short is wrong in the
    character after it. A response that stops early has no wrong character: `start == end == len(response)`,
    and the wrong token is the one that ended it.
    """

    kind: MistakeKind
    line: int  # of the response, counted from 0; also the column of the sum, counted from the units
    start: int
    end: int


def prompt_messages(a: int, b: int) -> list[dict[str, str]]:
    """The chat messages that ask for `a + b`."""
    return [{"role": "user", "content": f"{a}+{b}="}]


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
            wrong = (total - 2, total - 1, total + 1, total + 2)
            total = rng.choice([s for s in wrong if 0 <= s <= MAX_WRITTEN_SUM])
        lines.append(f"{x}+{y}+{carry}={total}")
        answer = str(total % 10) + answer
        carry = total // 10
    answer = (str(carry) if carry else "") + answer
    return "\n".join([*lines, f"{_BOX}{answer}}}"])


def _right_pieces(a: int, b: int) -> Iterator[tuple[str, int, MistakeKind | None]]:
    """The right response in pieces, each with its line: numbers, which have a kind, and signs."""
    pairs, carry = columns(a, b), 0
    for line, (x, y) in enumerate(pairs):
        total = x + y + carry
        numbers: tuple[tuple[int, MistakeKind, str], ...] = (
            (x, "operand", "+"),
            (y, "operand", "+"),
            (carry, "carry", "="),
            (total, "sum", "\n"),
        )
        for number, kind, sign in numbers:
            yield str(number), line, kind
            yield sign, line, None
        carry = total // 10
    yield _BOX, len(pairs), None
    yield str(a + b), len(pairs), "answer"
    yield "}", len(pairs), None


def first_mistake(a: int, b: int, response: str) -> Mistake | None:
    """The first thing that is wrong in a response to `a + b`; None for the right response."""
    position, line = 0, 0
    for text, line, kind in _right_pieces(a, b):
        digits = _DIGITS.match(response, position)
        number = digits.group() if digits else ""
        found = response[position : position + len(text)] if kind is None else number
        if found != text:
            shorter = min(len(found), len(text))
            start = position + next((i for i in range(shorter) if found[i] != text[i]), shorter)
            if start == len(response):
                return Mistake("missing", line, start, start)
            if kind is not None and found:
                return Mistake(kind, line, start, max(position + len(found), start + 1))
            jumped = kind is not None and response.startswith(_BOX, start)
            return Mistake("missing" if jumped else "malformed", line, start, start + 1)
        position += len(text)
    return Mistake("malformed", line, position, position + 1) if position < len(response) else None
