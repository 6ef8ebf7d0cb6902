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
_DIGITS = re.compile("[0-9]*")

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
    line_start: int  # the line is response[line_start:line_end], without its newline
    line_end: int
    start: int
    end: int
    expected: str  # what should have been written: the whole number or sign, not only its wrong part


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


@dataclass(frozen=True)
class _Piece:
    """A number (which has a kind) or a sign (which has none) of the right response."""

    text: str
    line: int
    kind: MistakeKind | None = None


def _right_pieces(a: int, b: int) -> Iterator[_Piece]:
    """The right response in pieces; joined they are `write_steps(a, b)`."""
    carry = 0
    pairs = columns(a, b)
    for line, (x, y) in enumerate(pairs):
        total = x + y + carry
        yield _Piece(str(x), line, "operand")
        yield _Piece("+", line)
        yield _Piece(str(y), line, "operand")
        yield _Piece("+", line)
        yield _Piece(str(carry), line, "carry")
        yield _Piece("=", line)
        yield _Piece(str(total), line, "sum")
        yield _Piece("\n", line)
        carry = total // 10
    yield _Piece(_BOX, len(pairs))
    yield _Piece(str(a + b), len(pairs), "answer")
    yield _Piece("}", len(pairs))


def first_mistake(a: int, b: int, response: str) -> Mistake | None:
    """The first thing that is wrong in a response to `a + b`; None for the right response."""
    position, line = 0, 0
    for piece in _right_pieces(a, b):
        line = piece.line
        wrong = _compare(piece, response, position)
        if wrong is not None:
            kind, start, end = wrong
            return _mistake(kind, line, start, end, piece.text, response)
        position += len(piece.text)
    if position < len(response):
        return _mistake("malformed", line, position, position + 1, "", response)
    return None


def _compare(piece: _Piece, response: str, position: int) -> tuple[MistakeKind, int, int] | None:
    """None if `response` has `piece` at `position`, else the kind and the span of the mistake."""
    if piece.kind is None:
        found = response[position : position + len(piece.text)]
    else:
        match = _DIGITS.match(response, position)
        assert match is not None  # the pattern matches the empty string
        found = match.group()
    if found == piece.text:
        return None
    start = position + _common_prefix_length(found, piece.text)
    end = position + len(found)
    if start == len(response):
        return "missing", start, start
    if piece.kind is None:
        return "malformed", start, start + 1
    if found == "":
        return "missing" if response.startswith(_BOX, start) else "malformed", start, start + 1
    return piece.kind, start, max(end, start + 1)


def _common_prefix_length(s: str, t: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(s, t, strict=False)) if x != y), min(len(s), len(t)))


def _mistake(kind: MistakeKind, line: int, start: int, end: int, expected: str, response: str) -> Mistake:
    line_start = response.rfind("\n", 0, start) + 1
    newline = response.find("\n", line_start)
    line_end = len(response) if newline < 0 else newline
    return Mistake(kind, line, line_start, line_end, start, end, expected)
