"""The value of an expression at a point, to any number of digits, in bounded time.

mpmath computes; what would be too large to write down is refused before it is computed.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from archer.rewards.math.expression import Apply, Constant, Node, Numeral, Variable

MAX_DIGITS = 20_000
_MAX_FACTORIAL = 5_000
_MAX_GAMMA = 200

Value = Any  # mpmath's mpf or mpc, which have no types


class UndefinedError(Exception):
    """The expression has no value at the point, or one too large to compute."""


@cache
def load_mpmath() -> Any:
    """Import mpmath, which only workers need, and return its context of any precision."""
    import mpmath

    return mpmath.mp


def precision(digits: int) -> AbstractContextManager[None]:
    """Compute with that many decimal digits within the context."""
    return load_mpmath().workdps(digits)


def evaluate(node: Node, point: Mapping[str, Fraction]) -> Value:
    """Return the value with the variables of `point` set.

    Raise UndefinedError where there is none: 1/0, 0^0, log 0, a numeral of more than MAX_DIGITS digits.
    """
    mp = load_mpmath()
    value = _value(node, point, mp)
    if not mp.isfinite(value):
        raise UndefinedError
    return value


@dataclass(frozen=True)
class Gap:
    """How far apart two values are, as decimal exponents (minus infinity for 0)."""

    size: float  # of the larger value
    difference: float  # of their difference
    real: bool  # whether both are real numbers


def measure(a: Node, b: Node, point: Mapping[str, Fraction], digits: int) -> Gap:
    """Evaluate two expressions and measure the gap between them."""
    mp = load_mpmath()
    with precision(digits):
        x, y = evaluate(a, point), evaluate(b, point)
        size, difference = max(abs(x), abs(y)), abs(x - y)
        imaginary = max(abs(mp.im(x)), abs(mp.im(y)))
        return Gap(_exponent(mp, size), _exponent(mp, difference), bool(imaginary <= size * 1e-40))


def _exponent(mp: Any, value: Value) -> float:
    return float(mp.log10(value)) if value else -math.inf


def _value(node: Node, point: Mapping[str, Fraction], mp: Any) -> Value:
    match node:
        case Numeral(number):
            return mp.mpf(number.numerator) / number.denominator
        case Variable(name):
            return mp.mpf(point[name].numerator) / point[name].denominator
        case Constant("pi"):
            return +mp.pi
        case Constant("e"):
            return +mp.e
        case Constant():
            return mp.mpc(0, 1)
        case Apply(operation, arguments):
            values = [_value(argument, point, mp) for argument in arguments]
            try:
                return _OPERATIONS[operation](mp, *values)
            except (ZeroDivisionError, ValueError, OverflowError) as error:
                raise UndefinedError from error


def _power(mp: Any, base: Value, exponent: Value) -> Value:
    if base == 0:
        if mp.im(exponent) == 0 and mp.re(exponent) > 0:
            return mp.mpf(0)
        raise UndefinedError
    if abs(exponent) * abs(mp.log10(abs(base))) > MAX_DIGITS or abs(exponent) > 10**6:
        raise UndefinedError
    return mp.power(base, exponent)


def _root(mp: Any, radicand: Value, degree: Value) -> Value:
    """Return the root; an odd root of a negative number is real."""
    if degree == 0:
        raise UndefinedError
    is_odd = mp.isint(degree) and int(degree) % 2 == 1
    if is_odd and mp.im(radicand) == 0 and mp.re(radicand) < 0:
        return -_power(mp, -radicand, 1 / degree)
    return mp.mpf(0) if radicand == 0 else _power(mp, radicand, 1 / degree)


def _check_factorial(mp: Any, n: Value) -> None:
    if abs(n) > (_MAX_FACTORIAL if mp.isint(n) else _MAX_GAMMA):
        raise UndefinedError


def _factorial(mp: Any, n: Value) -> Value:
    _check_factorial(mp, n)
    return mp.gamma(n + 1)


def _binomial(mp: Any, n: Value, k: Value) -> Value:
    _check_factorial(mp, n)
    _check_factorial(mp, k)
    return mp.binomial(n, k)


def _rounded(direction: str) -> Callable[..., Value]:
    def apply(mp: Any, a: Value) -> Value:
        if mp.im(a) != 0:
            raise UndefinedError
        return getattr(mp, direction)(mp.re(a))

    return apply


def _logarithm(mp: Any, a: Value, base: Value | None = None) -> Value:
    if a == 0 or base in (0, 1):
        raise UndefinedError
    return mp.log(a) if base is None else mp.log(a) / mp.log(base)


def _bounded(name: str) -> Callable[..., Value]:
    """A function of mpmath's, kept from arguments whose size would cost time."""

    def apply(mp: Any, a: Value) -> Value:
        if abs(a) > 10**6 or (name.endswith("h") and abs(a) > MAX_DIGITS):
            raise UndefinedError
        return getattr(mp, name)(a)

    return apply


_OPERATIONS: dict[str, Callable[..., Value]] = {
    "+": lambda mp, *terms: mp.fsum(terms),
    "mixed": lambda mp, *terms: mp.fsum(terms),
    "*": lambda mp, a, b: a * b,
    "/": lambda mp, a, b: a / b,
    "neg": lambda mp, a: -a,
    "^": _power,
    "root": _root,
    "exp": lambda mp, exponent: _power(mp, +mp.e, exponent),
    "!": _factorial,
    "binom": _binomial,
    "abs": lambda mp, a: abs(a),
    "floor": _rounded("floor"),
    "ceil": _rounded("ceil"),
    "ln": _logarithm,
    "log": _logarithm,
    "lg": lambda mp, a: _logarithm(mp, a, mp.mpf(10)),
    **{name: _bounded(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
    "arcsin": _bounded("asin"),
    "arccos": _bounded("acos"),
    "arctan": _bounded("atan"),
}
