"""A text as the lexemes that equations are read from: numbers, signs, brackets, words.

Mark-up, currency signs and blanks are passed over. `BREAK` ends whatever stood before it, `STRANGE` is
something that makes what it touches unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from fractions import Fraction

CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
NUMBER = re.compile(r"(?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
PERCENT = re.compile(r" ?\\?%")
WORD = re.compile(r"[^\W\d_]+(?:[-'\u2019][^\W\d_]+)*")
PLAIN_BRACKETS = re.compile(r"\(\s*([^\W\d_]{2,}(?:[\s/-]+[^\W\d_]{2,})*)\s*\)")
COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
ELLIPSIS = re.compile(r"\.\.+|…|\\l?dots\b")
ATTACHED_UNITS = frozenset(
    [
        "kg",
        "cm",
        "mm",
        "km",
        "mg",
        "ml",
        "lb",
        "lbs",
        "oz",
        "ft",
        "hr",
        "hrs",
        "min",
        "mins",
        "sec",
        "mph",
        "kwh",
        "am",
        "pm",
    ]
)
DASH = "\u2013"
MINUSES = "\u2212" + DASH
TIMES = "*\u00d7\u00b7\u22c5"
DIVIDES = "/\u00f7"
OPERATORS = {
    **{"+": "+", "-": "-"},
    **dict.fromkeys(MINUSES, "-"),
    **dict.fromkeys(TIMES, "*"),
    **dict.fromkeys(DIVIDES, "/"),
}
COMMANDS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "\\*": "*"}
FRACTIONS = frozenset({"\\frac", "\\dfrac", "\\tfrac"})
HOLDING = frozenset({"\\text", "\\textbf", "\\mathrm", "\\mathbf", "\\boxed", "\\textrm", "\\mbox"})
PASSED = frozenset({"\\left", "\\right", "\\quad", "\\qquad", "\\,", "\\;", "\\!", "\\:", "\\ ", "\\$"})
IGNORED = frozenset(" \t\r\u00a0\u202f$€£&")
MAX_DIGITS = 30


class Kind(Enum):
    """What a lexeme is."""

    NUMBER = auto()
    OPERATOR = auto()
    OPEN = auto()
    CLOSE = auto()
    FRACTION = auto()
    EQUALS = auto()
    WORD = auto()
    STRANGE = auto()
    BREAK = auto()


@dataclass(frozen=True)
class Lexeme:
    """A piece of the text; `text` is an operator's sign or a word in small letters."""

    kind: Kind
    start: int
    end: int
    text: str = ""
    value: Fraction = Fraction(0)
    decimals: int = 0  # of a number, as written
    percent: bool = False
    ellipsis: bool = False  # 0.333...
    tight: bool = False  # a sign that touches what follows

    def negated(self, start: int) -> Lexeme:
        """The number with a minus that stands at `start`."""
        return replace(self, start=start, value=-self.value)


def lexemes(text: str) -> list[Lexeme]:
    """All lexemes of a text, in order."""
    return list(_Lexer(text).run())


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.last: Lexeme | None = None
        self.braces: list[str] = []  # what each open brace belongs to
        self.expected: str | None = None  # what the next brace belongs to
        self.code = {match.start(): match.end() for match in CODE.finditer(text)}

    def run(self) -> Iterator[Lexeme]:
        """Yield lexeme after lexeme."""
        while self.at < len(self.text):
            found = self._next()
            if found is not None:
                self.last = self._with_suffix(found) if found.kind == Kind.NUMBER else found
                yield self.last

    def _next(self) -> Lexeme | None:
        text, at = self.text, self.at
        if at in self.code:
            return self._take(Kind.BREAK, self.code[at] - at)
        char = text[at]
        if char == "{":
            return self._open_brace()
        wanted, self.expected = self.expected, None
        if char in IGNORED:
            self.expected = wanted
            return self._skip(1)
        if char == "\n":
            follows = text[at:].lstrip()[:1] if self.last is not None else ""
            if follows == "=" or (self.last is not None and self.last.kind == Kind.EQUALS):
                return self._skip(1)
            return self._take(Kind.BREAK, 1)
        if (number := NUMBER.match(text, at)) is not None:
            return self._number(number)
        if char == "\\":
            return self._command()
        if char == "}":
            return self._close_brace()
        if char == "=":
            return self._equals()
        if (word := WORD.match(text, at)) is not None:
            return self._word(word)
        return self._sign(char)

    def _number(self, found: re.Match[str]) -> Lexeme:
        start, end = found.span()
        before = self.text[start - 1 : start]
        digits = found.group().replace("{,}", "").replace(",", "")
        if (before.isalpha() and before not in "xX") or before == "_" or len(digits) > MAX_DIGITS:
            return self._take(Kind.STRANGE, end - start)
        whole, _, decimals = digits.partition(".")
        self.at = end
        value = Fraction(int((whole or "0") + decimals), 10 ** len(decimals))
        return Lexeme(Kind.NUMBER, start, end, value=value, decimals=len(decimals))

    def _with_suffix(self, number: Lexeme) -> Lexeme:
        """Take the % or the dots that follow a number."""
        percent = PERCENT.match(self.text, self.at)
        if percent is not None:
            self.at = percent.end()
            return replace(number, value=number.value / 100, percent=True)
        dots = ELLIPSIS.match(self.text, self.at)
        if dots is not None:
            self.at = dots.end()
            return replace(number, ellipsis=True)
        return number

    def _command(self) -> Lexeme | None:
        found = COMMAND.match(self.text, self.at)
        name = found.group() if found is not None else "\\"
        if name in COMMANDS:
            return self._take(Kind.OPERATOR, len(name), COMMANDS[name])
        if name in FRACTIONS:
            self.expected = "numerator"
            return self._take(Kind.FRACTION, len(name))
        if name in HOLDING:
            self.expected = "holding"
            return self._skip(len(name))
        if name in PASSED:
            return self._skip(len(name))
        breaks = name in ("\\(", "\\)", "\\[", "\\]", "\\\\", "\\approx", "\\ldots", "\\dots")
        return self._take(Kind.BREAK if breaks else Kind.STRANGE, len(name))

    def _open_brace(self) -> Lexeme | None:
        belongs, self.expected = self.expected, None
        self.braces.append(belongs or "")
        if belongs in ("numerator", "denominator"):
            return self._take(Kind.OPEN, 1)
        return self._skip(1) if belongs == "holding" else self._take(Kind.STRANGE, 1)

    def _close_brace(self) -> Lexeme | None:
        belonged = self.braces.pop() if self.braces else ""
        if belonged == "numerator":
            self.expected = "denominator"
        if belonged in ("numerator", "denominator"):
            return self._take(Kind.CLOSE, 1)
        return self._skip(1) if belonged == "holding" else self._take(Kind.BREAK, 1)

    def _equals(self) -> Lexeme:
        before, after = self.text[self.at - 1 : self.at], self.text[self.at + 1 : self.at + 2]
        alone = before not in tuple("=!<>:") and after not in tuple("=>~")
        return self._take(Kind.EQUALS if alone else Kind.BREAK, 1)

    def _word(self, found: re.Match[str]) -> Lexeme:
        word, size = found.group(), len(found.group())
        after = self.text[found.end() :].lstrip(" $\\")[:1]
        touches = self.at > 0 and self.text[self.at - 1].isdigit()
        if (
            word in ("x", "X")
            and self.last is not None
            and (after.isdigit() or (after in ("(", ".") and after))
        ):
            return self._take(Kind.OPERATOR, 1, "*")
        if touches and word.lower() not in ATTACHED_UNITS:
            return self._take(Kind.STRANGE, size)
        if size == 1 and word.isascii() and word not in ("a", "A", "I"):
            return self._take(Kind.STRANGE, 1)
        return self._take(Kind.WORD, size, word.lower())

    def _sign(self, char: str) -> Lexeme | None:
        text, at = self.text, self.at
        before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
        if text.startswith("**", at):
            power = (before.isdigit() or before == ")") and (text[at + 2 : at + 3] or " ") in "0123456789("
            return self._take(Kind.STRANGE, 2) if power else self._skip(2)
        if char == "/" and after.isalpha() and (word := WORD.match(text, at + 1)) is not None:
            return self._take(Kind.WORD, 1 + len(word.group()), word.group().lower())
        if char in OPERATORS:
            touching = after.isdigit() or (after in (".", "$", "(") and after != "")
            if char == DASH and before.isdigit() and touching:
                return self._take(Kind.STRANGE, 1)  # a range: 3-5 with a long dash
            return self._take(Kind.OPERATOR, 1, OPERATORS[char], tight=touching)
        if char == "(":
            if (plain := PLAIN_BRACKETS.match(text, at)) is not None:
                return self._take(Kind.WORD, len(plain.group()), plain.group(1).split()[0].lower())
            return self._take(Kind.OPEN, 1)
        if char == ")":
            return self._take(Kind.CLOSE, 1)
        if char in ",.:" and before.isdigit() and after.isdigit():
            return self._take(Kind.STRANGE, 1)  # 3,4 or 1.2.3 or 10:30
        strange = char in "^_" or char.isalnum() or char in "√°"
        return self._take(Kind.STRANGE if strange else Kind.BREAK, 1)

    def _take(self, kind: Kind, size: int, text: str = "", tight: bool = False) -> Lexeme:
        start, self.at = self.at, self.at + size
        return Lexeme(kind, start, self.at, text=text, tight=tight)

    def _skip(self, size: int) -> Lexeme | None:
        """Pass over something that is no lexeme."""
        self.at += size
        return None
