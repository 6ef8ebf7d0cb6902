"""Equality of expressions, by their values to many digits at many points.

Two expressions that agree to fifty digits at a dozen irregular points are equal for every purpose of a
reward, and one disagreement proves them different; unlike simplification this takes milliseconds and ends.

What `expression.py` does not read (sums, integrals, limits) equals nothing but its own spelling. A second
opinion by math-verify there was measured on public data and not worth it: docs/rewards.md has the figures.
"""

import math
import random
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from archer.rewards.math.compare import Algebra, Verdict
from archer.rewards.math.evaluate import MAX_DIGITS, UndefinedError, Value, evaluate, measure, precision
from archer.rewards.math.expression import (
    Apply,
    Constant,
    Node,
    Numeral,
    UnreadableError,
    nodes,
    read_expression,
    variables,
)
from archer.rewards.math.numeric import Number, parse_number, rounding_tolerance

_DIGITS = 60
_MORE_DIGITS = 300
_TRUSTED_DIGITS = 45  # of _DIGITS
_PLAIN_SIZE = 40  # decimal exponents up to which the trusted digits reach below the units
_NOISE = 1e-40
_RANGES = ((0, 2), (3, 40), (-3, 0))
_POINTS_EACH = 4
_INTEGER_POINTS = 12
_MIN_POINTS = 3
_WHOLE_NUMBERS = frozenset(("floor", "ceil", "!", "binom"))

Point = dict[str, Fraction]


class SampledAlgebra(Algebra):
    """The algebra that answers every question."""

    def same(self, a: str, b: str) -> Verdict:
        """Tell whether two expressions are equal."""
        first, second = _tree(a), _tree(b)
        return first is not None and second is not None and _equal(*_with_one_logarithm(first, second))

    def answers(self, answer: str, reference: str) -> Verdict:
        """Tell whether they are equal, and the answer to a plain number is a number that is worked out."""
        number, tree = parse_number(reference), _tree(answer)
        if number is not None and (tree is None or not is_finished(tree)):
            return False
        if _rounds_to(tree, number) or _rounds_to(_tree(reference), parse_number(answer)):
            return True
        return self.same(answer, reference)

    def equivalent(self, a: tuple[str, str], b: tuple[str, str]) -> Verdict:
        """Tell whether the differences of the equations' sides are multiples of each other."""
        first, second = _difference(a), _difference(b)
        return first is not None and second is not None and _proportional(first, second)


def _difference(equation: tuple[str, str]) -> Node | None:
    left, right = map(_tree, equation)
    return None if left is None or right is None else Apply("+", (left, Apply("neg", (right,))))


def _with_one_logarithm(a: Node, b: Node) -> tuple[Node, Node]:
    """Read a logarithm without a base as the decimal one where one of two expressions names that base."""
    decimal = any(
        isinstance(node, Apply) and (node.operation == "lg" or node.arguments[1:] == (Numeral(Fraction(10)),))
        for node in nodes(a, b)
        if isinstance(node, Apply) and node.operation in ("lg", "log")
    )
    return (_decimal(a), _decimal(b)) if decimal else (a, b)


def _decimal(node: Node) -> Node:
    if not isinstance(node, Apply):
        return node
    operation = "lg" if node.operation == "log" and len(node.arguments) == 1 else node.operation
    return Apply(operation, tuple(map(_decimal, node.arguments)))


@lru_cache(maxsize=4096)
def _tree(text: str) -> Node | None:
    try:
        return read_expression(text)
    except UnreadableError:
        return None


def is_finished(node: Node) -> bool:
    """Tell whether an expression may stand for a plain number: nothing is left to work out but conventions.

    Numerals, fractions, mixed numbers, powers, roots, factorials and binomials of numerals are, and products
    of them with one plain numeral at most; a sum, a product of plain numerals, a function or a variable is a
    question repeated.
    """
    match node:
        case Numeral():
            return True
        case Apply("^", (_, Numeral(exponent))) if exponent in (0, 1):
            return False
        case Apply("neg" | "!" | "binom" | "root" | "mixed" | "^" | "/", arguments):
            return all(map(is_finished, arguments))
        case Apply("*"):
            parts = list(_factors(node))
            numerals = sum(isinstance(part, Numeral) for part in parts)
            return numerals < 2 and all(map(is_finished, parts))
    return False


def _factors(node: Node) -> Iterator[Node]:
    match node:
        case Apply("*", arguments):
            for argument in arguments:
                yield from _factors(argument)
        case _:
            yield node


def _equal(a: Node, b: Node) -> bool:
    if not variables(a, b):
        try:
            return _agree(a, b, {})[0]
        except UndefinedError:
            return False
    real: list[bool] = []
    other: list[bool] = []
    complex_numbers = Constant("i") in nodes(a, b)
    for point in _points(a, b):
        try:
            equal, on_real_line = _agree(a, b, point)
        except UndefinedError:
            continue
        if on_real_line or complex_numbers:
            if not equal:
                return False
            real.append(True)
        else:
            other.append(equal)
    # Where roots and logarithms leave the real line, identities hold only up to a branch: those points decide
    # nothing unless there are no others.
    return len(real) >= _MIN_POINTS or (len(real) + len(other) >= _MIN_POINTS and all(other))


def _agree(a: Node, b: Node, point: Point) -> tuple[bool, bool]:
    """Tell whether two values are equal, and whether they are real.

    With as many digits as it takes to tell a difference from rounding errors.
    """
    gap = measure(a, b, point, _DIGITS)
    if gap.size == -math.inf or (
        abs(gap.size) < _PLAIN_SIZE and gap.difference <= gap.size - _TRUSTED_DIGITS
    ):
        return True, gap.real
    # Rounding errors shrink with the digits and a real difference stays; large integers need all theirs.
    digits = max(_MORE_DIGITS, int(gap.size) + _DIGITS)
    if digits > MAX_DIGITS:
        raise UndefinedError
    gap = measure(a, b, point, digits)
    trusted = digits - _DIGITS + _TRUSTED_DIGITS
    return gap.difference <= gap.size - trusted or gap.size <= -trusted, gap.real


def _points(*trees: Node) -> Iterator[Point]:
    """Yield points, always the same for the same names. Where whole numbers are meant, they are whole."""
    names = sorted(variables(*trees))
    if any(isinstance(node, Apply) and node.operation in _WHOLE_NUMBERS for node in nodes(*trees)):
        for index in range(_INTEGER_POINTS):
            yield {name: Fraction(_stream(name, index).randint(1, 30)) for name in names}
        return
    for low, high in _RANGES:
        for index in range(_POINTS_EACH):
            yield {
                name: low
                + (high - low) * Fraction(_stream(name, index + 100 * low).randint(1, 10**6), 10**6 + 3)
                for name in names
            }


def _stream(name: str, index: int) -> random.Random:
    return random.Random(f"{name} {index}")


def _proportional(a: Node, b: Node) -> bool:
    """Tell whether a = c b for one constant c other than 0."""
    with precision(_DIGITS):
        ratios: list[Value] = []
        for point in _points(a, b):
            try:
                x, y = evaluate(a, point), evaluate(b, point)
            except UndefinedError:
                continue
            if abs(x) < _NOISE or abs(y) < _NOISE:
                return False
            ratios.append(x / y)
        same = all(abs(ratio - ratios[0]) <= abs(ratios[0]) * _NOISE for ratio in ratios)
        return len(ratios) >= _MIN_POINTS and same


def _rounds_to(node: Node | None, rounded: Number | None) -> bool:
    """Tell whether a decimal with enough digits is an expression's value, rounded."""
    tolerance = rounding_tolerance(rounded) if rounded else None
    if node is None or rounded is None or tolerance is None or variables(node):
        return False
    try:
        with precision(_DIGITS):
            return bool(
                abs(evaluate(node, {}) - evaluate(Numeral(rounded.value), {}))
                <= evaluate(Numeral(tolerance), {})
            )
    except UndefinedError:
        return False
