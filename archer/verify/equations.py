r"""Equations written in a text, computed exactly, and the character at which one becomes false.

What is read: `a op b = c` and chains of it (`a + b + c = d`, `a + b = c * d = e`), with + - * / and their
other signs (x, times, obelus, \frac and the like), brackets, thousands separators, decimals and %. Units,
currency signs and mark-up between the numbers are passed over. What cannot be read for certain is no equation
here: letters as variables, powers, mixed numbers, "20 % of 50", magnitudes in words, code. A missed mistake
costs one case; a wrong label costs trust.

An equation becomes false at the first character after which no continuation of c is a way to write the true
value. A value rounded to the places written is one, in either convention for halves; so is one cut after a
decimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from archer.verify.lexemes import MINUSES, Kind, Lexeme, lexemes

MAX_SIDE = 80  # lexemes of one side
MAX_DEPTH = 40  # brackets within brackets
# Words after or before which a number is not what it seems: 20 % of 50, 5 less than 8, step 2.
BINDING = frozenset(
    {
        *("of", "times", "plus", "minus", "divided", "multiplied", "by", "than", "less"),
        *("more", "over", "per", "half", "twice", "thrice", "double", "triple", "remainder"),
        *("step", "part", "case", "option", "equation", "problem", "question", "example", "million"),
        *("billion", "thousand", "hundred", "dozen", "modulo", "mod"),
    }
)
JOINING = frozenset({"and", "to", "or", "from", "per"})  # between numbers: 5 apples and 3 + 4
MAX_UNIT_WORDS = 4


@dataclass(frozen=True)
class WrittenEquation:
    """One number c that is said to equal an expression."""

    start: int
    """Where c begins in the text."""
    end: int
    wrong: int | None
    """The character at which the equation becomes false; None: it is true. It may be the one after c."""
    true: tuple[Fraction, ...] = ()
    """What the expression comes to, in every way that c may be read."""

    @property
    def false(self) -> bool:
        """Whether c is wrong."""
        return self.wrong is not None


@dataclass(frozen=True)
class Side:
    """What stands at one side of an equals sign."""

    value: Fraction
    number: Lexeme | None  # the number itself where the side is no more than that
    percent: bool  # whether some number of it is one


class _UnreadableError(Exception):
    """Not an expression that is understood for certain."""


def numbers(text: str) -> frozenset[Fraction]:
    """Every number that a text holds outside code, without its sign."""
    return frozenset(lexeme.value for lexeme in lexemes(text) if lexeme.kind == Kind.NUMBER)


def first_false(text: str) -> WrittenEquation | None:
    """The false equation whose mistake stands first in the text."""
    wrong = [equation for equation in equations(text) if equation.wrong is not None]
    return min(wrong, key=lambda equation: equation.wrong or 0, default=None)


def equations(text: str) -> list[WrittenEquation]:
    """Every equation `expression = number` of the text that can be read, in order."""
    found: list[WrittenEquation] = []
    for chain in _chains(lexemes(text)):
        found += _judged(chain, text)
    return found


def _chains(line: Sequence[Lexeme]) -> list[list[Sequence[Lexeme]]]:
    """The sides of each run of equals signs that nothing interrupts."""
    chains: list[list[Sequence[Lexeme]]] = []
    sides: list[Sequence[Lexeme]] = []
    begin = 0
    for place, lexeme in enumerate(line):
        if lexeme.kind == Kind.EQUALS:
            sides.append(line[begin:place])
            begin = place + 1
        elif lexeme.kind == Kind.BREAK:
            if sides:
                chains.append([*sides, line[begin:place]])
            sides, begin = [], place + 1
    if sides:
        chains.append([*sides, line[begin:]])
    return chains


def _judged(chain: Sequence[Sequence[Lexeme]], text: str) -> list[WrittenEquation]:
    """Each number of a chain against the expression that it is said to equal."""
    found: list[WrittenEquation] = []
    known: list[Fraction] = []  # what the next number may be; empty where nothing was computed
    percent = False
    for place, side in enumerate(chain):
        right = _right_side(side) if place else None
        left = _left_side(side, first=place == 0) if place < len(chain) - 1 else None
        if known and right is not None and right.number is not None:
            equation = _compared(right.number, known, percent, text)
            if equation is not None:
                found.append(equation)
        if left is not None and left.number is None:
            known, percent = [left.value], left.percent
        elif known and left is not None and right is not None and left.value == right.value:
            known = [*known, right.value]
        else:
            known = []
    return found


def _compared(number: Lexeme, known: Sequence[Fraction], percent: bool, text: str) -> WrittenEquation | None:
    """The equation `known = number`; None where the text ends before it is decided."""
    written = number.value * (100 if number.percent else 1)
    factors = (1, 100) if percent or number.percent else (1,)
    true = [value * factor for value in known for factor in factors]
    if any(_is_written(written, number, value) for value in true):
        return WrittenEquation(number.start, number.end, None, tuple(true))
    characters = _characters(number, text)
    fits = max(_common(characters, value, number.decimals) for value in true)
    if fits < len(characters):
        return WrittenEquation(number.start, number.end, characters[fits][1], tuple(true))
    if number.end == len(text):
        return None
    return WrittenEquation(number.start, number.end, number.end, tuple(true))


def _is_written(written: Fraction, number: Lexeme, true: Fraction) -> bool:
    """Whether a number is a way to write the true value: exact, rounded (halves either way), or cut."""
    unit = Fraction(1, 10**number.decimals)
    if written in (_rounded_up(true, unit), round(true / unit) * unit):
        return True
    cut = int(true / unit) * unit  # towards zero
    return written == cut and (number.decimals > 0 or number.ellipsis)


def _rounded_up(value: Fraction, unit: Fraction) -> Fraction:
    """The nearest multiple of the unit, halves away from zero."""
    steps = abs(value) / unit + Fraction(1, 2)
    return (steps.numerator // steps.denominator) * unit * (-1 if value < 0 else 1)


def _characters(number: Lexeme, text: str) -> list[tuple[str, int]]:
    """(character, place) of a number as written: sign, digits, point and separators, no mark-up."""
    found = []
    for place in range(number.start, number.end):
        char = "-" if text[place] in MINUSES else text[place]
        if char.isdigit() or char in "-," or (char == "." and text[place + 1 : place + 2].isdigit()):
            found.append((char, place))
    return found


def _common(characters: Sequence[tuple[str, int]], value: Fraction, decimals: int) -> int:
    """How many characters agree with the value as it would be written, in full or rounded."""
    written = [char for char, _ in characters]
    minus = "-" if value < 0 else ""
    ways = []
    for places, exact in ((decimals + 2, True), (decimals, False)):
        unit = Fraction(1, 10**places)
        shown = abs(int(value / unit) if exact else int(_rounded_up(value, unit) / unit))
        digits = f"{shown:0{places + 1}d}"
        whole = digits[: len(digits) - places]
        fraction = f".{digits[len(digits) - places :]}" if places else ""
        ways += [minus + whole + fraction, f"{minus}{int(whole):,}{fraction}"]
    if written[:1] == ["."]:
        ways = [way.replace("0.", ".", 1) for way in ways]
    return max(_prefix(written, way) for way in ways)


def _prefix(written: Sequence[str], way: str) -> int:
    count = 0
    for here, there in zip(written, way, strict=False):
        if here != there:
            break
        count += 1
    return count


# --- sides -------------------------------------------------------------------------------------------------


def _right_side(line: Sequence[Lexeme]) -> Side | None:
    """What follows an equals sign: all of the side, or the number it begins with and words after it."""
    line = _before_unmatched_close(line[:MAX_SIDE])
    try:
        return _whole(line)
    except _UnreadableError:
        pass
    reader = _Reader(line)
    try:
        number = reader.signed_number()
    except _UnreadableError:
        return None
    words = reader.words()
    rest = line[reader.place :]
    if words is None or (rest and not _ends_there(words, rest)):
        return None
    return Side(number.value, number, number.percent)


def _ends_there(words: Sequence[str], rest: Sequence[Lexeme]) -> bool:
    """Whether a number and the words after it are complete before `rest`."""
    if rest[0].kind == Kind.OPERATOR:  # mark-up at the end, or a dash before a word
        return len(rest) == 1 or (rest[0].text == "-" and rest[1].kind == Kind.WORD)
    return bool(words) and words[-1] not in JOINING - {"and"}


def _left_side(line: Sequence[Lexeme], first: bool) -> Side | None:
    """What leads to an equals sign: the longest readable end of the side, words before it."""
    line = _after_unmatched_open(line[-MAX_SIDE:])
    if first and line and line[0].kind == Kind.OPERATOR and not line[0].tight and line[0].text in "-*+":
        line = line[1:]  # the mark of a list
    for begin, lexeme in enumerate(line):
        signed = lexeme.kind == Kind.OPERATOR and lexeme.text == "-" and lexeme.tight
        if lexeme.kind not in (Kind.NUMBER, Kind.OPEN, Kind.FRACTION) and not signed:
            continue
        if begin:
            before = line[begin - 1]
            if before.kind != Kind.WORD:
                continue
            if before.text in BINDING:
                return None
            if before.text in JOINING and any(some.kind == Kind.NUMBER for some in line[:begin]):
                return None
        try:
            return _whole(line[begin:])
        except _UnreadableError:
            continue
    return None


def _after_unmatched_open(line: Sequence[Lexeme]) -> Sequence[Lexeme]:
    """What follows the last bracket that is not closed on this side: `(3 + 4 = 7)`."""
    opened: list[int] = []
    for place, lexeme in enumerate(line):
        if lexeme.kind == Kind.OPEN:
            opened.append(place)
        elif lexeme.kind == Kind.CLOSE and opened:
            opened.pop()
    return line[opened[-1] + 1 :] if opened else line


def _before_unmatched_close(line: Sequence[Lexeme]) -> Sequence[Lexeme]:
    """What stands before the first bracket that was opened on another side."""
    depth = 0
    for place, lexeme in enumerate(line):
        depth += (lexeme.kind == Kind.OPEN) - (lexeme.kind == Kind.CLOSE)
        if depth < 0:
            return line[:place]
    return line


def _whole(line: Sequence[Lexeme]) -> Side:
    """All of the lexemes as one expression, units at its end allowed."""
    reader = _Reader(line)
    value = reader.sum()
    if reader.place != len(line):
        raise _UnreadableError
    numbers = [lexeme for lexeme in line if lexeme.kind == Kind.NUMBER]
    adds = any(lexeme.kind == Kind.OPERATOR and lexeme.text in "+-" for lexeme in line)
    if adds and len({number.percent for number in numbers}) > 1:
        raise _UnreadableError  # 100 - 20 %: of what?
    alone = reader.operators == 0 and len(numbers) == 1
    if alone:
        return Side(value, _with_sign(line, numbers[0]), numbers[0].percent)
    return Side(value, None, any(number.percent for number in numbers))


def _with_sign(line: Sequence[Lexeme], number: Lexeme) -> Lexeme:
    """The number with the minus before it, if there is one."""
    signs = [lexeme for lexeme in line if lexeme.kind == Kind.OPERATOR]
    return number.negated(signs[0].start) if signs else number


class _Reader:
    """Reads an expression out of lexemes, from left to right."""

    def __init__(self, line: Sequence[Lexeme]) -> None:
        self.line = line
        self.place = 0
        self.operators = 0
        self._depth = 0

    def sum(self) -> Fraction:
        """Products, added and subtracted."""
        value = self.product()
        while (sign := self._operator("+-")) is not None:
            other = self.product()
            value = value + other if sign == "+" else value - other
        return value

    def product(self) -> Fraction:
        """Numbers and brackets, multiplied and divided."""
        value = self._atom()
        while (sign := self._operator("*/")) is not None:
            other = self._atom()
            if sign == "/" and other == 0:
                raise _UnreadableError
            value = value * other if sign == "*" else value / other
        return value

    def signed_number(self) -> Lexeme:
        """A number, perhaps with a minus."""
        here = self._peek()
        minus = here is not None and here.kind == Kind.OPERATOR and here.text == "-"
        if minus:
            self.place += 1
        number = self._peek()
        if number is None or number.kind != Kind.NUMBER:
            raise _UnreadableError
        self.place += 1
        return number.negated(here.start) if minus and here is not None else number

    def words(self) -> list[str] | None:
        """Pass over words; None where one of them changes what the number means."""
        passed = []
        while (here := self._peek()) is not None and here.kind == Kind.WORD:
            passed.append(here.text)
            self.place += 1
        near = passed[:MAX_UNIT_WORDS]
        return None if any(word in BINDING for word in near) else passed

    def _atom(self) -> Fraction:
        here = self._peek()
        if here is None:
            raise _UnreadableError
        if here.kind == Kind.OPERATOR and here.text == "-":
            self.place += 1
            follows = self._peek()
            if follows is None or follows.kind == Kind.OPERATOR:
                raise _UnreadableError
            return -self._atom()
        self.place += 1
        if here.kind == Kind.NUMBER:
            value = here.value
        elif here.kind == Kind.OPEN:
            value = self._bracket()
        elif here.kind == Kind.FRACTION:
            value = self._fraction()
        else:
            raise _UnreadableError
        words = self.words()
        if words is None or len(words) > MAX_UNIT_WORDS:
            raise _UnreadableError
        return value

    def _bracket(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _UnreadableError
        value = self.sum()
        here = self._peek()
        if here is None or here.kind != Kind.CLOSE:
            raise _UnreadableError
        self.place += 1
        self._depth -= 1
        return value

    def _fraction(self) -> Fraction:
        """\\frac{a}{b}: its braces come as brackets."""
        parts = []
        for _ in range(2):
            here = self._peek()
            if here is None or here.kind != Kind.OPEN:
                raise _UnreadableError
            self.place += 1
            parts.append(self._bracket())
        self.operators += 1
        if parts[1] == 0:
            raise _UnreadableError
        return parts[0] / parts[1]

    def _operator(self, signs: str) -> str | None:
        here = self._peek()
        if here is None or here.kind != Kind.OPERATOR or here.text not in signs:
            return None
        self.place += 1
        self.operators += 1
        return here.text

    def _peek(self) -> Lexeme | None:
        return self.line[self.place] if self.place < len(self.line) else None
