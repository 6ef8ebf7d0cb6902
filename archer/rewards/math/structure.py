r"""The structure of an answer: list, set, tuple, interval, union, matrix, equation, inequality, or one value.

`read` only takes texts apart, at the top level of their brackets; what the values mean is for others.
"""

import re

from archer.rewards.math.forms import (
    NOTHING,
    Bracketed,
    Collection,
    Equation,
    Matrix,
    Relation,
    Scalar,
    Structure,
    Union,
)
from archer.rewards.math.line import REAL_LINE, interval, named_reals, points_excepted, without_points
from archer.rewards.math.numeric import parse_number
from archer.rewards.math.text import (
    enclosed,
    is_sound,
    split,
    squash,
    tidy,
    tokens,
    top_level_matches,
    unwrapped,
)

_CLOSING_BRACES = (r"\}", r"\rbrace")
_LEFT = ("(", "[", r"\{", r"\lbrace", r"\langle")
_SEPARATOR = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?P<text>and|or)\s*\}|(?<![A-Za-z\\])(?P<word>and|or)(?![A-Za-z]))\s*|\s*,\s*"
)
_SEMICOLON = re.compile(r"\s*;\s*")
_COMMA = re.compile(r"\s*,\s*")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_EQUALS = re.compile(r"=")
_CONGRUENCE = re.compile(r"\\equiv(?![A-Za-z])")
_MODULUS = re.compile(r"\\pmod\{[^{}]*\}$")
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])")
_RELATION = re.compile(r"\\(?:leqslant|leq|le|geqslant|geq|ge|lt|gt|neq|ne)(?![A-Za-z])|<|>")
_OPERATORS = {"leq": "<=", "leqslant": "<=", "le": "<=", "lt": "<", "<": "<"}
_OPERATORS |= {"geq": ">=", "geqslant": ">=", "ge": ">=", "gt": ">", ">": ">", "ne": "!=", "neq": "!="}
_VARIABLE = r"(?:\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?)"
_MEMBER = re.compile(rf"{_VARIABLE}\s*\\in(?![A-Za-z])\s*")
_MEMBERS = re.compile(
    rf"(?P<names>\(\s*{_VARIABLE}(?:\s*,\s*{_VARIABLE})+\s*\))\s*\\in(?![A-Za-z])\s*(?=\\\{{)"
)
_POINT = re.compile(r"(?P<name>[A-Z](?:'|_(?:[A-Za-z0-9]|\{[^{}]*\}))?)\s*(?=\()")
_SUCH_THAT = re.compile(
    r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid(?![A-Za-z])|\||:)(?P<condition>.*)\\\}"
)
_MATRIX = re.compile(
    r"(?P<factor>[^&=,;<>\[(]*?|[^&=,;<>]*\))(?P<left>\[|\()?\s*\\begin\{(?P<name>[pbB]?(?:small)?matrix|array)\}\s*(?:\{[clr|\s]*\})?(?P<body>.*)"
    r"\\end\{(?P=name)\}\s*(?P<right>\]|\))?",
    re.DOTALL,
)
_SYSTEM = re.compile(
    r"(?:\\\{\s*)?\\begin\{(?P<name>aligned|align\*?|gathered|cases|array|matrix|split)\}\s*(?:\{[lcr ]*\})?"
    r"(?P<body>.*)"
    r"\\end\{(?P=name)\}\s*",
    re.DOTALL,
)
_ROW_END = re.compile(r"\\\\")
_MINUS_SET = re.compile(r"\\(?:setminus|backslash)(?![A-Za-z])|(?<=[)\]}R])\s*-\s*(?=\\\{)")
_THINGS = r"(?:numbers?|integers?|values?|roots?|[a-z])"
_NO_SOLUTION = (
    r"(?:(?:there|it) (?:is|are|has|have) |has |have )?"
    r"no (?:(?:real|integer|such|possible|valid|positive|rational|complex) )*"
    rf"(?:solutions?|{_THINGS}(?: of [a-z])? exists?|such {_THINGS})(?: (?:exists?|in \\?[a-z]+))?"
)
_EMPTY = re.compile(
    rf"\\(?:emptyset|varnothing)|\\\{{\s*\\\}}|\\text\{{\s*(?:{_NO_SOLUTION}|none)\s*\}}|{_NO_SOLUTION}|none",
    re.IGNORECASE,
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*")
_SUBSCRIPT = re.compile(r"_\s*(?:\\?[A-Za-z0-9]+|\{[^{}]*\})")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z])\s*\([^()]*\)")
_NAME = re.compile(r"[A-Za-z{} '|]+")
_LETTER = re.compile(r"[A-Za-z]")
_NAMING = re.compile(
    r"\\(?:text|angle|triangle|overline|vec|hat|bar|widehat|overrightarrow|mathcal|mathbb|max|min|deg|Pr|ell|alpha"
    r"|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|(?:var)?phi|chi|psi"
    r"|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega)(?![A-Za-z])"
)


def read(text: str) -> Structure:
    """Return the structure of an answer. Unbalanced or too deeply nested text has none: an empty scalar."""
    text = tidy(text)
    return _read(text) if is_sound(text) else NOTHING


def _read(text: str) -> Structure:
    text = unwrapped(text)
    if _EMPTY.fullmatch(text):
        return Collection((), braces=True)
    if (points := points_excepted(text)) is not None:
        return without_points(REAL_LINE, _read(points)) or Scalar(text)
    if r"\\" in text and (system := _read_system(text)):
        return system
    items = _list_items(text)
    if items is not None:
        return items
    if member := _MEMBER.match(text):
        return _read(text[member.end() :])
    if members := _MEMBERS.match(text):
        return _read_members(members["names"], text[members.end() :])
    if such_that := _SUCH_THAT.fullmatch(text):
        return _read(such_that["condition"])
    base, *taken = split(text, _MINUS_SET)
    if len(taken) == 1 and base.strip():
        return without_points(_read(base), _read(taken[0])) or Scalar(text)
    pieces = split(text, _UNION)
    if len(pieces) > 1:
        return Union(tuple(_read(piece) for piece in pieces))
    return _read_one(text)


def _read_system(text: str) -> Structure | None:
    """Read equations on lines of their own, also in an environment."""
    system = _SYSTEM.fullmatch(text)
    rows = [row.replace("&", "").strip() for row in _ROW_END.split(system["body"] if system else text)]
    rows = [re.sub(r"[,;.]$|\\text\s*\{\s*,?\s*and\s*\}$", "", row).strip() for row in rows if row]
    if len(rows) < 2 or not all(is_name(row.partition("=")[0]) and row.count("=") for row in rows):
        return None
    return Collection(tuple(map(_read, rows)), braces=False)


def _read_members(names: str, values: str) -> Structure:
    r"""Read `(a,b) \in \{(1,2),(3,4)\}`: to each tuple its names."""
    parts = tokens(values.strip())
    if parts[-1] not in _CLOSING_BRACES or not enclosed(parts):
        return NOTHING
    tuples = split("".join(parts[1:-1]), _COMMA)
    return Collection(tuple(Equation((names, each.strip())) for each in tuples), braces=True)


def is_name(text: str) -> bool:
    r"""Tell whether a text names something, as opposed to stating it: `x`, `f(2)`, `\angle ABC`, `S_{10}`."""
    bare = _ARGUMENTS.sub("", _SUBSCRIPT.sub("", _NAMING.sub("x", text)))
    return "{}" not in bare and _NAME.fullmatch(bare) is not None and _LETTER.search(bare) is not None


def _list_items(text: str) -> Structure | None:
    """Read a list without brackets: by semicolons if there are any, else by commas, "and", "or"."""
    separator = _SEMICOLON if len(split(text, _SEMICOLON)) > 1 else _SEPARATOR
    pieces = split(text, separator)
    if len(pieces) == 1:
        return None
    if not all(piece.strip() for piece in pieces):
        return NOTHING
    items = tuple(_read(piece) for piece in pieces)
    if any(isinstance(item, Relation) for item in items) and (found := _without_unequal(items, text)):
        return found
    if all(isinstance(item, Relation) for item in items):
        return _join_relations(items, all_of="or" not in text)
    return Collection(_flat(items), braces=False)


def _join_relations(items: tuple[Structure, ...], all_of: bool) -> Structure:
    """Two bounds that hold together are one chain; alternatives are a union."""
    if not all_of:
        return Union(items)
    found = [solved(item) for item in items if isinstance(item, Relation)]
    if len(items) == len(found) == 2 and found[0] and found[1] and found[0][0] == found[1][0]:
        bounds = found[0][1], found[1][1]
        for a, b in (bounds, bounds[::-1]):
            if a.items[1] == Scalar(r"\infty") and b.items[0] == Scalar(r"-\infty"):
                if _is_after(a.items[0], b.items[1]):
                    return Union(items)  # x < 1, x > 3: nothing is both
                return Bracketed(a.left, (a.items[0], b.items[1]), b.right)
    return Collection(items, braces=False)


def _without_unequal(items: tuple[Structure, ...], text: str) -> Structure | None:
    r"""Read `0<x<3, x\ne 1`, `x\ne 1, 2`: what holds together, less the points that are ruled out."""
    if "or" in text:
        return None
    ruled_out, bounds = [], []
    name = ""
    for item in items:
        if isinstance(item, Relation) and item.operators == ("!=",) and is_name(item.parts[0]):
            name = name or squash(item.parts[0])
            ruled_out.append(_read(item.parts[1]))
            if squash(item.parts[0]) != name:
                return None
        elif isinstance(item, Scalar) and ruled_out:
            ruled_out.append(item)
        else:
            bounds.append(item)
    if not ruled_out:
        return None
    base: Structure | None = REAL_LINE
    if bounds:
        joined = _join_relations(tuple(bounds), all_of=True) if len(bounds) > 1 else bounds[0]
        found = solved(joined) if isinstance(joined, Relation) else None
        base = (
            joined
            if isinstance(joined, Bracketed)
            else found[1]
            if found and squash(found[0]) == name
            else None
        )
    return without_points(base, Collection(_flat(tuple(ruled_out)), braces=True)) if base else None


def _is_after(low: Structure, high: Structure) -> bool:
    ends = [parse_number(end.text) if isinstance(end, Scalar) else None for end in (low, high)]
    return ends[0] is not None and ends[1] is not None and ends[0].value >= ends[1].value


def _read_one(text: str) -> Structure:
    """Read what is neither a list nor a union."""
    if (reals := named_reals(text)) is not None:
        return reals
    if (point := _POINT.match(text)) and isinstance(_read(text[point.end() :]), Bracketed):
        return Equation((point["name"], text[point.end() :]))
    for reader in (
        _read_relation,
        _read_matrix,
        _read_congruence,
        _read_equation,
        _read_brackets,
        _read_signs,
    ):
        found = reader(text)
        if found is not None:
            return found
    return Scalar(text)


def _read_relation(text: str) -> Relation | None:
    parts = split(text, _RELATION)
    if len(parts) == 1:
        return None
    signs = [match[0].lstrip("\\") for match in top_level_matches(text, _RELATION)]
    return Relation(tuple(part.strip() for part in parts), tuple(_OPERATORS[sign] for sign in signs))


def _read_equation(text: str) -> Structure | None:
    exact, *rough = split(text, _APPROXIMATELY)
    if rough and not exact.strip():
        return _read(rough[0])
    if rough and not is_name(exact):
        return _read(exact) if _rounds(exact, rough) else NOTHING
    parts = split("=".join([exact, *rough]), _EQUALS)
    if len(parts) == 1:
        return None
    return Equation(tuple(part.strip() for part in parts)) if all(map(str.strip, parts)) else NOTHING


def _read_congruence(text: str) -> Structure | None:
    r"""Read `x \equiv 5 \pmod{7}` as `x = 5 \pmod{7}`, and `f(x) \equiv 5` as `f(x) = 5`."""
    first, *others = split(text, _CONGRUENCE)
    if not others or not first.strip() or not others[-1].strip():
        return None
    if is_name(first) or not _MODULUS.search(text):
        return Equation((first.strip(), *(other.strip() for other in others)))
    return _read(others[-1]) if not re.search("[a-z]", first) else None


def _rounds(exact: str, rough: list[str]) -> bool:
    """Tell whether what follows a sign of approximation may be a rounded value of what stands before it."""
    value = parse_number(split(exact, _EQUALS)[-1])
    for text in rough:
        number = parse_number(text)
        if number is None or (value and abs(number.value - value.value) * 20 > abs(value.value)):
            return False
    return True


def _read_matrix(text: str) -> Structure | None:
    match = _MATRIX.fullmatch(text)
    if match is None or (match["name"] in ("matrix", "array", "smallmatrix")) != bool(match["left"]):
        return None
    rows = [row for row in match["body"].split(r"\\") if row.strip()]
    factor = re.sub(r"\\(?:cdot|times)\s*$", "", match["factor"]).strip()
    return Matrix(tuple(tuple(_read(_multiple(factor, entry)) for entry in row.split("&")) for row in rows))


def _multiple(factor: str, entry: str) -> str:
    """Return the text of a matrix's factor times an entry."""
    if not factor:
        return entry
    numbers = parse_number("-1" if factor == "-" else factor), parse_number(entry)
    if numbers[0] and numbers[1]:
        product = numbers[0].value * numbers[1].value
        return (
            rf"\frac{{{product.numerator}}}{{{product.denominator}}}"
            if product.denominator > 1
            else str(product)
        )
    return f"-({entry})" if factor == "-" else rf"({factor})\cdot({entry})"


def _read_signs(text: str) -> Structure | None:
    r"""Read the two values of a \pm."""
    if not _PLUS_MINUS.search(text):
        return None
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    both = (re.sub(r"(?:^|(?<=[(\[,]))\s*\+", "", each) for each in (upper, lower))
    return Collection(tuple(map(_read, both)), braces=False)


def _read_brackets(text: str) -> Structure | None:
    parts = tokens(text)
    if len(parts) < 2 or parts[0] not in _LEFT:
        return None
    left, right = parts[0], parts[-1]
    if not enclosed(parts):
        return None
    inside = "".join(parts[1:-1])
    if (signs := _PLUS_MINUS.findall(inside)) and left in "([" and (len(signs) == 1 or len(set(signs)) == 2):
        return _read_signs(text)  # (3, \pm 2), (1 \pm a, 1 \mp a): two tuples
    separator = _SEMICOLON if len(split(inside, _SEMICOLON)) > 1 else _COMMA
    pieces = split(inside, separator)
    if not all(piece.strip() for piece in pieces):
        return NOTHING
    if len(pieces) == 1 and (left, right) == ("(", ")"):
        return _read(inside)
    items = tuple(_read(piece) for piece in pieces)
    if left in (r"\{", r"\lbrace"):
        return Collection(_flat(items), braces=True) if right in _CLOSING_BRACES else NOTHING
    if len(pieces) == 1:
        return None
    left, right = {r"\langle": "("}.get(left, left), {r"\rangle": ")"}.get(right, right)
    return Bracketed(left, items, right) if left in "([" and right in ")]" else NOTHING


def _flat(items: tuple[Structure, ...]) -> tuple[Structure, ...]:
    r"""Lay the two values of a \pm among the other members of its set."""
    return tuple(
        inner
        for item in items
        for inner in (item.items if isinstance(item, Collection) and not item.braces else (item,))
    )


def solved(relation: Relation) -> tuple[str, Bracketed] | None:
    """Return the variable and interval of an inequality x < a, a < x or a < x < b; None for other forms."""
    parts, operators = relation.parts, relation.operators
    if operators[0] in (">", ">="):  # read it from the other side
        flipped = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "!=": "!="}
        parts, operators = parts[::-1], tuple(flipped[operator] for operator in operators[::-1])
    if not all(operator in ("<", "<=") for operator in operators):
        return None
    brackets = [("[", "]") if operator == "<=" else ("(", ")") for operator in operators]
    is_variable = [re.fullmatch(_VARIABLE, squash(part)) is not None for part in parts]
    if len(parts) == 3 and is_variable[1]:
        return parts[1], interval(brackets[0][0], parts[0], parts[2], brackets[1][1])
    if len(parts) == 2 and is_variable[0]:
        return parts[0], interval("(", r"-\infty", parts[1], brackets[0][1])
    if len(parts) == 2 and is_variable[1]:
        return parts[1], interval(brackets[0][0], parts[0], r"\infty", ")")
    return None
