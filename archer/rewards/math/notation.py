r"""Spellings of one thing, respelt as one: `4.5e33`, `1{,}000`, `{1 \over 2}`, `\text{20 cm}`, `[0,1[`.

Every function takes and returns the text of an answer and leaves alone what has two readings. All scans are
linear, or take off a bounded number of layers.
"""

import re

from archer.rewards.extract import closing_brace

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_RAISED, _LOWERED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+"), re.compile(f"[{''.join(_SUBSCRIPTS)}]+")

_COLOUR = re.compile(
    r"(?<!\\)\\(?:(?:text)?color|colorbox)\s*(?:\[[^\[\]{}]*\]\s*)?\{[^{}]*\}"
    r"|(?<!\\)\\fcolorbox\s*\{[^{}]*\}\s*\{[^{}]*\}|(?<!\\)\\bbox\s*(?:\[[^\[\]{}]*\])?"
    r"|(?<!\\)\\(?:underline|framebox|mathstrut)(?![A-Za-z])"
)
_BLANK = re.compile(
    r"(?<!\\)\\[hv]space\s*\*?\s*\{[^{}]*\}|(?<!\\)\\(?:enspace|thinspace|medspace|thickspace)(?![A-Za-z])"
)
_ONE_BRACE = re.compile(
    r"(?<!\\)\\left\s*\\\{\s*(?P<rows>\\begin\{(?P<name>array|aligned|cases|matrix|gathered)\}.*\\end\{(?P=name)\})"
    r"\s*\\right\s*\.",
    re.DOTALL,
)
_ROW_GAP = re.compile(r"(?<=\\\\)\s*\[\s*-?[0-9.]+\s*(?:pt|em|ex|mm|cm|in)\s*\]")
_ORNAMENT = re.compile(
    r"(?<!\\)\\(?:checkmark|blacksquare|qed|qedsymbol|therefore|tag\s*\{[^{}]*\})(?![A-Za-z])"
)
_LOGICAL = re.compile(r"(?<!\\)\\(?:(?P<either>lor|vee)|land|wedge)(?![A-Za-z])")
_MODULUS = re.compile(
    r"\s*(?:\\pmod(?![A-Za-z])\s*\{?|\(\s*(?:\\bmod|\\mod|\\text\s*\{\s*mod\s*\}|mod(?:ulo)?)(?![A-Za-z])\s*"
    r"|\\text\s*\{\s*\(\s*mod\s+|\\mod(?![A-Za-z])\s*\{?)\s*\$?(?P<modulus>[0-9]{1,9}|[A-Za-z])\$?\s*[})]{0,2}$"
)
_ROUGHLY = re.compile(
    r"^(?:\\text\s*\{\s*(?:approximately|approx\.?|about|roughly)\s*\}|(?:approximately|approx\.?|about|roughly)(?=\s)"
    r"|\\(?:sim|simeq|approxeq|doteq)(?![A-Za-z]))\s*(?=[$0-9.\\-])",
    re.IGNORECASE,
)
_INFIX = re.compile(r"(?<!\\)\\(over|choose)(?![A-Za-z])")
_INFIX_COMMANDS = {"over": r"\frac", "choose": r"\binom"}
_MAX_INFIX = 16

_NUMERAL = r"[0-9]+(?:[,.][0-9]+)*"
_POWER_IN_TEXT = re.compile(r"(\\text\s*\{[^{}$]*?)\s*\$?\^\s*(?:\{\s*([23])\s*\}|([23]))\s*\$?\s*\}")
_NUMBER_IN_TEXT = re.compile(
    rf"\\text\s*\{{\s*(?P<number>[+-]?\s*(?:\\?\$)?\s*[+-]?{_NUMERAL}(?:[eE][+-]?[0-9]+)?(?:/[0-9]+)?)"
    r"(?P<percent>\s*\\?%)?(?P<rest>[^{}\\]*)\}"
)
_EQUATION_IN_TEXT = re.compile(r"\\text\s*\{(\s*[A-Za-z]\s*=[^{}\\A-Za-z]*[0-9][^{}\\A-Za-z]*)\}")
_LABEL_IN_TEXT = re.compile(r"\\text\s*\{\s*(\([A-J]\)|[A-J][).:])\s+([^{}]*[^{}\s][^{}]*)\}")
_JOINED = re.compile(r"(?<![A-Za-z])(and|or)(?![A-Za-z])")
_UNIT_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*(\^\s*\{?\s*[23]\s*\}?)?\s*\}"
)
_UNIT_QUOTIENTS = (
    re.compile(
        r"\\text\s*\{([^{}]*)\}\s*(?:\\cdot\s*)?\\text\s*\{\s*([A-Za-z]+)\s*\}\s*\^\s*\{\s*-\s*([12])\s*\}"
    ),
    re.compile(
        r"\\text\s*\{([^{}]*[A-Za-z])(?:\s+|\s*\\cdot\s*)([A-Za-z]+)\s*\^\s*\{\s*-\s*([12])\s*\}\s*\}"
    ),
)
_HALF_OF_DAY = re.compile(r"(?<=:[0-9]{2})\s*([AaPp][Mm])(?![A-Za-z])")
_NOON = re.compile(r"(?<![A-Za-z])([AaPp])\.\s?([Mm])\.?(?![A-Za-z])")

_EXPONENT = r"(?:\{\s*[+-]?[0-9]{1,5}\s*\}|\(\s*[+-]?[0-9]{1,5}\s*\)|[+-]?[0-9]{1,5})"
_LETTER_TIMES = re.compile(
    rf"(?<=[0-9])\s*(?:[xX]|\\text\s*\{{\s*[xX]\s*\}})\s*(?=[({{]?10[)}}]?\s*\^\s*{_EXPONENT})"
)
_E_TEXT = re.compile(r"(?<=[0-9])\s*\\text\s*\{\s*([eE])\s*\}\s*\{?\s*([+-]?[0-9]{1,5})(?![0-9])\s*\}?")
_E_NOTATION = re.compile(
    r"(?<![0-9A-Za-z.\\_])(?P<mantissa>(?:[0-9]+(?:,[0-9]{3})*)?(?:\.[0-9]*)?)(?<=[0-9.])"
    r"[eE](?P<exponent>[+-]?[0-9]{1,5})(?![0-9.]|\s*\^)"
)

_EXPLICIT = r"(?:,\\!\s*|\{,\}\s*|\\,|\\thinspace\s*|['_\u2009\u202f\u2019])"
_EXPLICITLY_GROUPED = re.compile(
    rf"(?<![0-9.,'_}}])[1-9][0-9]{{0,2}}(?:{_EXPLICIT}[0-9]{{3}})+(?![0-9]|{_EXPLICIT}[0-9])"
    r"|(?<![0-9.,'_] )(?<![0-9.,'_])[1-9][0-9]{0,2}(?: [0-9]{3})* 0[0-9]{2}(?: [0-9]{3})*(?! ?[0-9])"
)
_NO_DIGIT = re.compile("[^0-9]+")
_COMMA = re.compile(r"(?<=[0-9])(?:,\\!|\{,\})\s*(?=[0-9])")
_GROUPED = re.compile(r"(?<![0-9.,'_])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_DECIMAL_COMMA = re.compile(r"(?<![0-9.,}])([0-9]+)\{,\}([0-9]+)(?![0-9]|\{,\}|[.,][0-9])")
_RUN = re.compile(r"(?<![0-9.,])[0-9]+(?:,[0-9]+)+(?![0-9])")
_OPENING = {"(": 1, "[": 1, r"\{": 1, r"\lbrace": 1, r"\langle": 1}
_CLOSING = {")", "]", r"\}", r"\rbrace", r"\rangle"}
_MARK = re.compile(r"\\[A-Za-z]+|\\.|[()\[\];]|,\s", re.DOTALL)

_ROOT_DEGREE = re.compile(r"(\\sqrt\s*)\[([^\[\]]*)\]")
_SQUARE_PAIR = re.compile(r"(?P<left>[\[\]])(?P<inside>[^\[\]]*)(?P<right>[\[\]])")
_ENDS = re.compile(r"[^,;]*[^,;\s][^,;]*[,;][^,;]*[^,;\s][^,;]*")


def respell(text: str) -> str:
    r"""Return an answer with superscripts, colours, blanks and `\over` written as LaTeX's own or left out."""
    text = _RAISED.sub(lambda run: f"^{{{''.join(_SUPERSCRIPTS[sign] for sign in run[0])}}}", text)
    text = _LOWERED.sub(lambda run: f"_{{{''.join(_SUBSCRIPTS[sign] for sign in run[0])}}}", text)
    text = text.replace("**", "^").replace(r"\lbrack", "[").replace(r"\rbrack", "]")
    text = _ONE_BRACE.sub(lambda system: system["rows"], _ORNAMENT.sub("", _ROW_GAP.sub(" ", text)))
    text = _LOGICAL.sub(lambda sign: r"\text{ or }" if sign["either"] else r"\text{ and }", text)
    text = _ROUGHLY.sub(r"\\approx ", _MODULUS.sub(r"\\pmod{\g<modulus>}", text.strip()))
    text = _NOON.sub(r"\1\2", _BLANK.sub(" ", _COLOUR.sub("", text)))
    text = _HALF_OF_DAY.sub(lambda half: f" {half[1].upper()}", text)
    return _without_infix(re.sub(r"(?<!\\)\\ast(?![A-Za-z])", "*", text))


def _without_infix(text: str) -> str:
    r"""Write `{a \over b}` as `\frac{a}{b}`: they divide all of the group that they stand in."""
    for _ in range(_MAX_INFIX):
        infix = _INFIX.search(text)
        if infix is None:
            return text
        start, end = _group_around(text, infix.start())
        above, below = text[start : infix.start()], text[infix.end() : end]
        # Two in one group have no meaning, and outside all groups `x = 1 \over 2` has two.
        if _group_level_infix(below) or (start == 0 and end == len(text) and re.search("[=,;<>]", text)):
            return text
        text = f"{text[:start]}{_INFIX_COMMANDS[infix[1]]}{{{above.strip()}}}{{{below.strip()}}}{text[end:]}"
    return text


def _group_around(text: str, position: int) -> tuple[int, int]:
    """Return where the inside of the braces around a position starts and ends; without any, the text."""
    openings: list[int] = []
    index = 0
    while index < position:
        if text[index] == "\\":
            index += 1
        elif text[index] == "{":
            openings.append(index)
        elif text[index] == "}" and openings:
            openings.pop()
        index += 1
    if not openings:
        return 0, len(text)
    end = closing_brace(text, openings[-1])
    return openings[-1] + 1, len(text) if end is None else end


def _group_level_infix(text: str) -> bool:
    depth = 0
    for token in re.finditer(r"\\[A-Za-z]+|\\.|[{}]", text):
        depth += (token[0] == "{") - (token[0] == "}")
        if depth == 0 and _INFIX.fullmatch(token[0]):
            return True
    return False


def numbers_out_of_text(text: str) -> str:
    r"""Write `\text{20 cm}` as `20\text{ cm}`, `\text{5 and 6}` as `5 and 6`, `\text{x = 5}` as `x = 5`."""

    def outside(match: re.Match[str]) -> str:
        number, rest = match["number"] + (match["percent"] or ""), match["rest"]
        if _JOINED.search(rest) and re.search("[0-9]", rest):
            return f"{number}{rest}"
        if not re.search("[A-Za-z]", rest):
            return f"{number}{rest}"
        return rf"{number}\text{{{rest}}}"

    text = _LABEL_IN_TEXT.sub(r"\\text{\1} \\text{\2}", text)
    text = _UNIT_FRACTION.sub(r"\\text{\1/\2}\3", text)
    for quotient in _UNIT_QUOTIENTS:
        text = quotient.sub(
            lambda match: rf"\text{{{match[1]}/{match[2]}}}" + ("^{2}" if match[3] == "2" else ""), text
        )
    text = _POWER_IN_TEXT.sub(lambda match: f"{match[1]}}}^{{{match[2] or match[3]}}}", text)
    return _EQUATION_IN_TEXT.sub(r"\1", _NUMBER_IN_TEXT.sub(outside, text))


def scientific(text: str) -> str:
    r"""Write `4.5e33`, `4.5 x 10^33` and the like as `4.5\cdot 10^{33}`.

    `2e-3` within an expression may be Euler's number less three: a signed exponent is one if the mantissa has
    a decimal point, the exponent a leading zero, or if there is nothing else.
    """
    text = _E_TEXT.sub(r"\1\2", _LETTER_TIMES.sub(r"\\cdot ", text))

    def power(match: re.Match[str]) -> str:
        mantissa, exponent = match["mantissa"], match["exponent"]
        alone = match[0] == text.strip().lstrip("+-")
        sure = exponent.isdigit() or "." in mantissa or exponent[1:2] == "0" or alone
        return rf"{mantissa}\cdot 10^{{{int(exponent)}}}" if sure and mantissa != "." else match[0]

    return _E_NOTATION.sub(power, text)


def without_thousands(text: str) -> str:
    r"""Join digits that are grouped by thousands: `1,000\pi`, `(1{,}000, 5)`, `1\,000`, `1'000`.

    Outside brackets a comma that groups digits by three does that. In brackets it rather separates: there it
    groups only if the group starts with a 0, which no number does, or if the other commas are followed by
    blanks and it is not. `{,}` before other than three digits is a decimal comma.
    """
    text = _DECIMAL_COMMA.sub(_decimal_comma, text)
    text = _EXPLICITLY_GROUPED.sub(lambda match: _NO_DIGIT.sub("", match[0]), text)
    text = _COMMA.sub(",", text)
    return _RUN.sub(_Brackets(text).join, text)


def _decimal_comma(match: re.Match[str]) -> str:
    grouped = len(match[2]) == 3 and 1 <= len(match[1]) <= 3 and match[1][0] != "0"
    return match[0] if grouped else f"{match[1]}.{match[2]}"


class _Brackets:
    """Tells, for a place in a text, whether it is in brackets, and whether those have spaced separators."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._spans: list[tuple[int, int, bool]] = []
        open_spans: list[list[int]] = []  # start, number of spaced separators
        for mark in _MARK.finditer(text):
            if mark[0] in _OPENING:
                open_spans.append([mark.start(), 0])
            elif mark[0] in _CLOSING and open_spans:
                start, spaced = open_spans.pop()
                self._spans.append((start, mark.start(), spaced > 0))
            elif open_spans and (mark[0] == ";" or mark[0][0] == ","):
                open_spans[-1][1] += 1

    def join(self, run: re.Match[str]) -> str:
        digits = run[0]
        around = [span for span in self._spans if span[0] < run.start() < span[1]]
        if _GROUPED.fullmatch(digits):
            is_number = not around or max(around)[2] or re.search(",0", digits)
            return digits.replace(",", "") if is_number else digits
        return (
            re.sub(r"(?<![0-9])([1-9][0-9]{0,2}),(0[0-9]{2})(?![0-9])", r"\1\2", digits) if around else digits
        )


def inward_intervals(text: str) -> str:
    """Write intervals that open outwards with round ones: `[0,1[` as `[0,1)`, `]2,3]` as `(2,3]`."""
    if text.count("[") + text.count("]") < 2:
        return text
    hidden = _ROOT_DEGREE.sub("\\1\x01\\2\x02", text)
    pairs = list(_SQUARE_PAIR.finditer(hidden))
    rest = _SQUARE_PAIR.sub("", hidden)
    if "[" in rest or "]" in rest or all((pair["left"], pair["right"]) == ("[", "]") for pair in pairs):
        return text
    if not all(_is_pair_of_ends(pair["inside"]) for pair in pairs):
        return text

    def inward(pair: re.Match[str]) -> str:
        left, right = "[" if pair["left"] == "[" else "(", "]" if pair["right"] == "]" else ")"
        return left + pair["inside"] + right

    return _SQUARE_PAIR.sub(inward, hidden).replace("\x01", "[").replace("\x02", "]")


def _is_pair_of_ends(inside: str) -> bool:
    without_groups = re.sub(r"\([^()]*\)|\{[^{}]*\}", "x", inside)
    return _ENDS.fullmatch(without_groups) is not None
