r"""What may be stripped from an answer or respelt in it without changing what it says.

Every scan is linear (or takes off a bounded number of layers), so that no text can make it slow.
"""

import re

from archer.rewards.boxed import closing_brace

_LAYERS = 16

_UNICODE = {
    "\u2212": "-",
    "\u2013": "-",
    "\u00d7": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": r"\div ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "∞": r"\infty ",
    "π": r"\pi ",
    "θ": r"\theta ",
    "\u03b1": r"\alpha ",
    "β": r"\beta ",
    "\u03b3": r"\gamma ",
    "λ": r"\lambda ",
    "°": r"^\circ ",
    "\u222a": r"\cup ",
    "∈": r"\in ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∅": r"\emptyset ",
    "\u211d": r"\mathbb{R}",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "²": "^{2}",
    "³": "^{3}",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
}
_UNICODE_TABLE = str.maketrans(_UNICODE)
_UNICODE_ROOT = re.compile(r"√\s*([0-9]+|[A-Za-z])")

_NOT_ESCAPED = r"(?<!\\)"
_GROUPED_DIGITS = re.compile(r"(?<=[0-9])(?:,\\!\s*|\{,\}\s*|\\,(?=[0-9]{3}))(?=[0-9])")
_SIZING = re.compile(
    _NOT_ESCAPED + r"(?:\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle)"
    r"(?![A-Za-z])|\\!)"
)
_SPACING = re.compile(_NOT_ESCAPED + r"\\(?:[,;:> ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~|\s+")
_FRACTION = re.compile(_NOT_ESCAPED + r"\\[dtc]frac(?![A-Za-z])")
_BINOMIAL = re.compile(_NOT_ESCAPED + r"\\[dt]binom(?![A-Za-z])")
_UPRIGHT = re.compile(
    _NOT_ESCAPED + r"\\(?:textbf|textit|textrm|textnormal|textsf|texttt|mbox|mathrm|mathsf|operatorname)"
    r"\s*(?=\{)"
)
_BOLD = re.compile(_NOT_ESCAPED + r"\\(?:mathbf|mathit|boldsymbol|bm)\s*(?=\{)")
_PLAIN_IN_TEXT = re.compile(r"\\text\s*\{([^{}A-Za-z\\]*[0-9][^{}A-Za-z\\]*)\}")
_INFINITY = re.compile(r"\\text\s*\{\s*infinity\s*\}|(?<![A-Za-z\\])infinity(?![A-Za-z])")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree(?![A-Za-z])")
_DOLLAR = re.compile(_NOT_ESCAPED + r"\$\$?")
_DELIMITED = ((r"\(", r"\)"), (r"\[", r"\]"))
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")


def tidy(text: str) -> str:
    """Return an answer without delimiters, sizing, spacing commands and a final stop, in one spelling."""
    text = _UNICODE_ROOT.sub(r"\\sqrt{\1}", text).translate(_UNICODE_TABLE)
    text = _GROUPED_DIGITS.sub(",", text)
    text = _SPACING.sub(" ", _SIZING.sub("", text)).strip()
    text = _BINOMIAL.sub(r"\\binom", _FRACTION.sub(r"\\frac", text))
    text = _BOLD.sub("", _UPRIGHT.sub(r"\\text", text))
    text = _INFINITY.sub(r"\\infty ", _PLAIN_IN_TEXT.sub(r"\1", text))
    text = _DEGREE.sub(r"^\\circ ", text).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return unwrapped(_without_dollars(text))


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
