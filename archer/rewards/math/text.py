r"""What may be stripped from an answer or respelt in it without changing what it says, and its brackets.

Every scan is linear (or takes off a bounded number of layers), so that no text can make it slow. An interval
may open with one kind of bracket and close with another, so of brackets only the depth is counted.
"""

import re
from collections.abc import Iterator
from itertools import accumulate

from archer.rewards.extract import closing_brace
from archer.rewards.math.notation import (
    inward_intervals,
    numbers_out_of_text,
    respell,
    scientific,
    without_thousands,
)

_LAYERS = 16

_COMMANDS = {  # signs and the commands that they stand for
    "\u00d7·⋅÷≤≥≠≈": "times cdot cdot div le ge ne approx",
    "∞πθ\u03b1β\u03b3λ": "infty pi theta alpha beta gamma lambda",
    "\u222a∈±∓∅⟨⟩": "cup in pm mp emptyset langle rangle",
}
_UNICODE_TABLE = str.maketrans(
    {
        **{"\u2212": "-", "\u2013": "-", "°": r"^\circ ", "\u211d": r"\mathbb{R}"},
        **{
            s: f"\\{name} "
            for signs, names in _COMMANDS.items()
            for s, name in zip(signs, names.split(), strict=True)
        },
        **{sign: rf"\frac{{{top}}}{{{bottom}}}" for sign, top, bottom in ("½12", "¼14", "¾34", "⅓13", "⅔23")},
        **dict.fromkeys("\u00a0\u2009\u202f", " "),
        "…": "...",
        "\u3002": ".",
        **{chr(ord(sign) + 0xFEE0): sign for sign in ",;:()"},  # full-width
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},  # full-width digits
    }
)
_UNICODE_ROOT = re.compile(r"(?P<sign>[√∛∜])\s*(?:(?P<simple>[0-9]+|[A-Za-z])|(?=[({\\]))")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}

_NOT_ESCAPED = r"(?<!\\)"
_SIZING = re.compile(
    _NOT_ESCAPED
    + r"(?:\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle"
    r"|tiny|scriptsize|footnotesize|small|normalsize|[lL]arge|LARGE|[hH]uge|bf|it|rm|sf|tt|bfseries|itshape)"
    r"(?![A-Za-z])|\\!)"
)
_SPACING = re.compile(_NOT_ESCAPED + r"\\(?:[,;:> ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~|\s+")
_FRACTION = re.compile(_NOT_ESCAPED + r"\\[dtc]frac(?![A-Za-z])")
_BINOMIAL = re.compile(_NOT_ESCAPED + r"\\[dt]binom(?![A-Za-z])")
_UPRIGHT = re.compile(
    _NOT_ESCAPED
    + r"\\(?:textbf|textit|textrm|textnormal|textsf|texttt|textup|emph|mbox|mathrm|mathsf|operatorname)"
    r"\s*(?=\{)"
)
_BOLD = re.compile(_NOT_ESCAPED + r"\\(?:mathbf|mathit|mathtt|boldsymbol|bm)(?![A-Za-z])\s*")
_PLAIN_IN_TEXT = re.compile(r"\\text\s*\{([^{}A-Za-z\\]*[0-9][^{}A-Za-z\\]*)\}")
_INFINITY = re.compile(r"\\text\s*\{\s*infinity\s*\}|(?<![A-Za-z\\])infinity(?![A-Za-z])")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree(?![A-Za-z])")
_CURRENCY = re.compile(_NOT_ESCAPED + r"\\(?:text)?(pounds|sterling|euro|yen|dollar)(?![A-Za-z])")
_CURRENCY_SIGNS = {"pounds": "£", "sterling": "£", "euro": "€", "yen": "¥", "dollar": r"\$"}
_EMPHASIS = re.compile(r"\s*(?P<mark>\*{1,3}|`{1,3})(?P<inside>[^*`]+)(?P=mark)(?=\s|$|[.,;])")
_NOTHING_AROUND = re.compile(r"^(?:\\text\s*\{\s*\}\s*)+|(?:\s*(?:\\text\s*\{\s*\}|(?<!\\)\\\\))+(?=\.?$)")
_DOLLAR = re.compile(_NOT_ESCAPED + r"\$\$?")
_DELIMITED = ((r"\(", r"\)"), (r"\[", r"\]"))
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")
MAX_NESTING = 20
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPENING = frozenset(("(", "[", "{", r"\{", r"\langle", r"\lbrace", r"\lfloor", r"\lceil", r"\begin"))
_CLOSING = frozenset((")", "]", "}", r"\}", r"\rangle", r"\rbrace", r"\rfloor", r"\rceil", r"\end"))


def tidy(text: str) -> str:
    """Return an answer without delimiters, sizing, spacing commands and a final stop, in one spelling."""
    text = _EMPHASIS.sub(lambda match: match["inside"], text, count=1) if _EMPHASIS.match(text) else text
    text = without_thousands(_UNICODE_ROOT.sub(_root, text))
    text = respell(text.translate(_UNICODE_TABLE))
    text = _CURRENCY.sub(lambda match: _CURRENCY_SIGNS[match[1]], text)
    text = _SPACING.sub(" ", _SIZING.sub("", text)).strip()
    text = _BINOMIAL.sub(r"\\binom", _FRACTION.sub(r"\\frac", text))
    text = _NOTHING_AROUND.sub("", _BOLD.sub("", _UPRIGHT.sub(r"\\text", text))).strip()
    text = _INFINITY.sub(r"\\infty ", _PLAIN_IN_TEXT.sub(r"\1", text))
    text = _DEGREE.sub(r"^\\circ ", inward_intervals(scientific(numbers_out_of_text(text)))).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return unwrapped(_without_dollars(text))


def _root(root: re.Match[str]) -> str:
    return _ROOTS[root["sign"]] + (f"{{{root['simple']}}}" if root["simple"] else "")


def _without_dollars(text: str) -> str:
    """Turn `$...$` into a group; a lone leading `$` is a currency."""
    signs = _DOLLAR.findall(text)
    if len(signs) % 2:
        return "\\" + text if len(signs) == 1 and text.startswith("$") else text
    pieces = _DOLLAR.split(text)
    if len(pieces) == 3 and not pieces[0] and not pieces[2]:
        return pieces[1].strip().removesuffix(".").strip()
    # Groups keep numerals apart: "$5$ $6$" must not become "5 6".
    return "".join(f"{{{piece.strip()}}}" if index % 2 else piece for index, piece in enumerate(pieces))


def unwrapped(text: str) -> str:
    r"""Strip braces and `\( \)` that enclose the whole text."""
    text = text.strip()
    for _ in range(_LAYERS):
        if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
            continue
        for opening, closing in _DELIMITED:
            if text.startswith(opening) and text.find(closing) == len(text) - 2 > 0:
                text = text[2:-2].strip()
                break
        else:
            break
    return text


def squash(text: str) -> str:
    """Drop the blanks of a tidy text, except one between letters or digits, where it separates."""
    return re.sub(r"\s+", " ", _LOOSE_SPACE.sub("", text))


def tokens(text: str) -> list[str]:
    """Return the commands and characters of a text."""
    return _TOKEN.findall(text)


def _depths(parts: list[str]) -> Iterator[int]:
    """How many brackets are open after each token."""
    return accumulate((token in _OPENING) - (token in _CLOSING) for token in parts)


def is_sound(text: str) -> bool:
    """Tell whether all brackets are closed, in order and not nested too deeply to be worth reading."""
    depth = 0
    for depth in _depths(tokens(text)):
        if depth < 0 or depth > MAX_NESTING:
            return False
    return depth == 0


def enclosed(parts: list[str]) -> bool:
    """Tell whether the first bracket is closed by the last token."""
    return next((index for index, depth in enumerate(_depths(parts)) if depth == 0), None) == len(parts) - 1


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Split a text at the separators that stand outside all brackets."""
    pieces, start = [], 0
    for match in top_level_matches(text, separator):
        pieces.append(text[start : match.start()])
        start = match.end()
    return [*pieces, text[start:]]


def top_level_matches(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return a pattern's matches outside all brackets."""
    if not pattern.search(text):
        return []
    depths, depth = [0] * (len(text) + 1), 0
    for token in _TOKEN.finditer(text):
        depths[token.start()] = depth
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
    return [match for match in pattern.finditer(text) if depths[match.start()] == 0]
