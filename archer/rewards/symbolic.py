"""Algebraic comparison by math-verify, made strict where math-verify is generous.

math-verify's own limits are SIGALRM handlers, which fail outside the main thread; they are switched off,
and the worker pool enforces the time. Nothing here is bounded: call it in a worker.

Four things that math-verify calls equal are not accepted: numbers that differ but both vanish when rounded
to six decimals (10^{-8} for 0), numerals side by side (it reads "12 5" and "12{5}" as the mixed number 17),
an equation that is itself false (7 = 5 for 5), and the part of a text before a brace that nothing opened.
"""

import logging
import re
from functools import cache
from itertools import accumulate
from typing import Any

from archer.rewards.boxed import closing_brace
from archer.rewards.numeric import parse_number

_COMMAND = re.compile(r"(?:\\[A-Za-z]+|[_^])\s*(?:\[[^][]*\])?(?:\s*\{[^{}]*\})+")
_SIDE_BY_SIDE = re.compile(r"[0-9][\s{}$]+[0-9]")
_MAX_NESTING = 20
_PERCENT = re.compile(r"(?P<number>.*[0-9])\s*\\?%", re.DOTALL)
_RELATIVE_TOLERANCE = 1e-5
_CONFIRM_DIGITS = 30


@cache
def load_math_verify() -> Any:
    """Import math-verify (a third of a second: sympy) and silence its notice that its own limits are off."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    return math_verify


def symbolic_verdict(answer: str, references: tuple[str, ...]) -> bool:
    """Tell whether a tidy answer is mathematically equal to one of the tidy references. Never raises."""
    return any(_equal(answer, reference) for reference in references)


def _equal(answer: str, reference: str) -> bool:
    if not (_readable(answer) and _readable(reference)):
        return False
    gold, prediction = _parse(reference), _parse(answer)
    if any(isinstance(reading, str) and _has_numerals_side_by_side(reading) for reading in gold + prediction):
        return False  # dropping a unit between two numerals leaves them side by side
    if not load_math_verify().verify(gold, prediction, timeout_seconds=None):
        return False
    try:
        return _confirmed(gold[0], prediction[0])
    except Exception:  # sympy raises anything on hostile input; what cannot be confirmed is not right
        return False


def _readable(text: str) -> bool:
    balanced = closing_brace("{" + text + "}", 0) == len(text) + 1
    # The parser takes exponential time in the depth, and a policy that collapses likes to repeat brackets.
    shallow = _nesting(text) <= _MAX_NESTING
    return balanced and shallow and not _has_numerals_side_by_side(text)


def _nesting(text: str) -> int:
    """Return the most brackets that are open at once, whether or not they are ever closed."""
    depths = accumulate((c in "([{") - (c in ")]}") for c in text)
    return max(depths, default=0)


def _has_numerals_side_by_side(text: str) -> bool:
    """Look for digits with only blanks or braces between them, other than in a command's arguments."""
    for _ in range(_MAX_NESTING):
        shorter = _COMMAND.sub("x", text)
        if shorter == text:
            break
        text = shorter
    return _SIDE_BY_SIDE.search(text) is not None


def _parse(text: str) -> list[Any]:
    """Return math-verify's reading of a text: the expression, if it can be read, and a normalised string."""
    library = load_math_verify()
    # Only the LaTeX reader, on the whole text: the plain-expression reader picks a number out of any prose.
    config = [library.LatexExtractionConfig(boxed_match_priority=0)]
    percent = _PERCENT.fullmatch(text)
    if percent and parse_number(percent["number"]):
        wrapped = f"${percent['number']}$%"  # inside the delimiters a percent sign is not understood
    else:
        wrapped = f"\\boxed{{{text}}}"
    return library.parse(wrapped, extraction_config=config, parsing_timeout=None)


def _confirmed(gold: Any, prediction: Any) -> bool:
    from sympy import Eq, Expr, UnevaluatedExpr, simplify
    from sympy.logic.boolalg import And

    equations = prediction.args if isinstance(prediction, And) else (prediction,)
    for equation in equations:
        if isinstance(equation, Eq) and simplify(equation.lhs - equation.rhs).is_nonzero:
            return False
    gold, prediction = (side.rhs if isinstance(side, Eq) else side for side in (gold, prediction))
    if not (isinstance(gold, Expr) and isinstance(prediction, Expr)):
        return True  # sets, intervals, matrices, strings: nothing to measure
    if not (gold.is_number and prediction.is_number):
        return True
    if _close(gold, prediction):
        return True
    percentage = gold.has(UnevaluatedExpr) or prediction.has(UnevaluatedExpr)
    return percentage and (_close(gold * 100, prediction) or _close(gold, prediction * 100))


def _close(a: Any, b: Any) -> bool:
    a, b = a.doit().evalf(_CONFIRM_DIGITS), b.doit().evalf(_CONFIRM_DIGITS)
    if a.is_infinite or b.is_infinite:
        return bool(a == b)
    return bool(abs(a - b) <= _RELATIVE_TOLERANCE * max(abs(a), abs(b)))  # raises if either is not a number
