"""When two answers are the same: structures by their parts, single values by spelling, number and unit.

A verdict is True, False, or None where only an algebra could tell and the one at hand does not. With
plain `Algebra` the comparison is quick and bounded, and its True and False are certain; with `SampledAlgebra`
every question is answered.
"""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

from archer.rewards.math.clock import is_time, times_agree
from archer.rewards.math.forms import (
    Bracketed,
    Collection,
    Equation,
    Matrix,
    Relation,
    Scalar,
    Structure,
    Union,
)
from archer.rewards.math.line import REAL_LINE, without_points
from archer.rewards.math.naming import assignment, in_natural_order, named_values, pairs_by_name
from archer.rewards.math.numeric import Number, numbers_agree, parse_number, parse_ratio, ratios_agree
from archer.rewards.math.quantity import DEGREES, PERCENT, RADIANS, Quantity, read_quantities
from archer.rewards.math.structure import is_name, read, solved
from archer.rewards.math.text import squash

MAX_ITEMS = 100
_MAX_RESTATED = 3
_NUMERIC_COMMAND = re.compile(r"\\(?:frac|sqrt|pi|cdot|times|div|binom|circ|%)(?![A-Za-z])")
_INFINITE = re.compile(r"(?P<sign>[+-]?)\\infty")
_WORDS = re.compile(
    r"\\text\s*\{[^{}]*[A-Za-z][^{}]*\}|(?<![A-Za-z\\])(?!sqrt|sin|cos|tan|log|arc)[A-Za-z]{4,}"
)
_SHORT_WORD = re.compile(
    r"yes|no|all|odd|any|one|two|six|ten|red|tie|win|mon|tue|wed|thu|fri|sat|sun", re.IGNORECASE
)
_LINEAR_NOISE = re.compile(
    r"\\(?:frac|cdot|times|div)(?![A-Za-z])|_(?:[A-Za-z0-9]|\{[^{}]*\})|[0-9.+*/(){}\s-]"
)
_LINEAR = re.compile(r"[A-Za-z]")
_OF_AN_ANGLE = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_ARTICLE = re.compile(r"^(?:the|an?) ")

Verdict = bool | None


class Algebra:
    """What can be asked about the texts of expressions; this one leaves every question open."""

    def same(self, a: str, b: str) -> Verdict:
        """Tell whether two expressions are equal."""
        return None

    def answers(self, answer: str, reference: str) -> Verdict:
        """Tell whether they are equal, and the answer is no less worked out than the reference."""
        return None

    def equivalent(self, a: tuple[str, str], b: tuple[str, str]) -> Verdict:
        """Tell whether two equations, each of two sides, have the same solutions by being multiples."""
        return None


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return False at the first False, else None if anything is open, else True."""
    outcome: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        outcome = None if verdict is None else outcome
    return outcome


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return True at the first True, else None if anything is open, else False."""
    outcome: Verdict = False
    for verdict in verdicts:
        if verdict:
            return True
        outcome = None if verdict is None else outcome
    return outcome


def compare(answer: Structure, reference: Structure, algebra: Algebra) -> Verdict:
    """Judge an answer's structure against a reference's."""
    named = pairs_by_name(answer, reference)
    if named is not None:
        consistent = _is_consistent(answer, algebra) if isinstance(answer, Equation) else True
        return all_of((consistent, *(compare(*pair, algebra) for pair in named)))
    if isinstance(reference, Equation):
        return _compare_equation(answer, reference, algebra)
    if isinstance(answer, Equation):
        if _is_brought_to_zero(answer) or _is_unsolved(answer):
            return False
        value = _value(answer)
        return all_of((_is_consistent(answer, algebra), compare(value, reference, algebra)))
    if isinstance(answer, Relation) and isinstance(reference, Relation):
        return _compare_relations(answer, reference, algebra)
    answer, reference = _as_set(answer), _as_set(reference)
    match reference:
        case Scalar():
            return _compare_with_scalar(answer, reference, algebra)
        case Matrix():
            return _compare_matrices(answer, reference, algebra)
        case Bracketed():
            return _compare_bracketed(answer, reference, algebra)
        case Collection():
            if isinstance(answer, Collection) and named_values(reference) and not named_values(answer):
                return _pairwise(answer.items, reference.items, algebra)
            if isinstance(answer, Collection):
                return _same_items(answer.items, reference.items, algebra)
            return len(reference.items) == 1 and compare(answer, reference.items[0], algebra)
        case Union():
            pieces = answer.items if isinstance(answer, Collection) else ()
            pieces = answer.pieces if isinstance(answer, Union) else pieces
            wanted = tuple(map(_as_set, reference.pieces))
            return _same_items(tuple(map(_as_set, pieces)), wanted, algebra)
        case _:
            return False  # an inequality that is not solved, and no inequality to compare with it


def _value(equation: Equation) -> Structure:
    """Return the value that an equation ends in; a tuple's in the order of its names."""
    value, ordered = assignment(equation)[1], in_natural_order(equation)
    if not isinstance(value, Bracketed):
        return value
    names = read(equation.parts[0])
    if isinstance(names, Bracketed) and len(names.items) != len(value.items):
        return Scalar("")  # (x,y,z)=(1,2) says nothing
    if ordered is None:
        return value
    return Bracketed(value.left, tuple(ordered), value.right)


def _as_set(item: Structure) -> Structure:
    """Return an inequality as the set of values that satisfy it, if it is solved."""
    if not isinstance(item, Relation):
        return item
    if item.operators == ("!=",) and is_name(item.parts[0]):
        return without_points(REAL_LINE, read(item.parts[1])) or item
    found = solved(item)
    return item if found is None else found[1]


def _compare_with_scalar(answer: Structure, reference: Scalar, algebra: Algebra) -> Verdict:
    if isinstance(answer, Collection) and answer.braces and len(answer.items) == 1:
        return compare(answer.items[0], reference, algebra)
    if isinstance(answer, Collection) and not answer.braces:  # one value said twice: 1/4 or 25 %
        values = {squash(item.text) for item in answer.items if isinstance(item, Scalar)}
        return len(values) == len(answer.items) <= _MAX_RESTATED and all_of(
            compare_scalars(value, reference.text, algebra) for value in values
        )
    return isinstance(answer, Scalar) and compare_scalars(answer.text, reference.text, algebra)


def _compare_bracketed(answer: Structure, reference: Bracketed, algebra: Algebra) -> Verdict:
    if isinstance(answer, Collection) and not answer.braces:
        answer = Bracketed("(", tuple(in_natural_order(answer) or answer.items), ")")
    if isinstance(answer, Matrix) and all(len(row) == 1 for row in answer.rows):
        answer = Bracketed("(", tuple(row[0] for row in answer.rows), ")")
    if not isinstance(answer, Bracketed):
        return False
    same = (answer.left, answer.right) == (reference.left, reference.right)
    return same and _pairwise(answer.items, reference.items, algebra)


def _compare_matrices(answer: Structure, reference: Matrix, algebra: Algebra) -> Verdict:
    if isinstance(answer, Bracketed) and (answer.left, answer.right) == ("(", ")"):
        answer = Matrix(tuple((item,) for item in answer.items))  # (1,2) is a column, too
    if not isinstance(answer, Matrix) or len(answer.rows) != len(reference.rows):
        return False
    rows = zip(answer.rows, reference.rows, strict=True)
    return all_of(_pairwise(row, reference_row, algebra) for row, reference_row in rows)


def _pairwise(answers: Sequence[Structure], references: Sequence[Structure], algebra: Algebra) -> Verdict:
    if len(answers) != len(references):
        return False
    pairs = zip(answers, references, strict=True)
    return all_of(compare(answer, reference, algebra) for answer, reference in pairs)


def _same_items(answers: Sequence[Structure], references: Sequence[Structure], algebra: Algebra) -> Verdict:
    """Match each answer with a reference of its own. Sameness is transitive, so any match will do."""
    if len(answers) != len(references) or len(answers) > MAX_ITEMS:
        return False
    left = list(references)
    for answer in answers:
        verdicts = [compare(answer, reference, algebra) for reference in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        else:
            return None if None in verdicts else False
    return True


def _compare_relations(answer: Relation, reference: Relation, algebra: Algebra) -> Verdict:
    found, wanted = solved(answer), solved(reference)
    if wanted is not None:
        if found is None or squash(found[0]) != squash(wanted[0]):
            return False
        return compare(found[1], wanted[1], algebra)
    if answer.operators != reference.operators:
        return False
    pairs = zip(answer.parts, reference.parts, strict=True)
    return all_of(algebra.same(part, reference_part) for part, reference_part in pairs)


def _compare_equation(answer: Structure, reference: Equation, algebra: Algebra) -> Verdict:
    name, value = assignment(reference)
    if not isinstance(answer, Equation):
        return name is not None and compare(answer, value, algebra)
    consistent = _is_consistent(answer, algebra)
    answer_name, answer_value = assignment(answer)
    if name is not None and squash(name) == squash(answer_name or ""):
        return all_of((consistent, compare(answer_value, value, algebra)))
    if name is not None and isinstance(value, Scalar) and not _has_variable(value.text):
        return False  # the reference is solved, the answer is for something else or not solved
    sides = (answer.parts[0], answer.parts[-1]), (reference.parts[0], reference.parts[-1])
    return all_of((consistent, algebra.equivalent(*sides)))


def _is_brought_to_zero(equation: Equation) -> bool:
    """Tell whether it is an equation like 2x - 3y + 4 = 0, which gives no value to anything."""
    first, last = equation.parts[0], equation.parts[-1]
    return (
        last == "0" and _has_variable(first) and not is_name(first) and re.search("[0-9]", first) is not None
    )


def _is_unsolved(equation: Equation) -> bool:
    """Tell whether it is one like 2x + 1 = 5, linear in one unknown, which says 2 and not 5."""
    sides = equation.parts[0], equation.parts[-1]
    unknown = [side for side in sides if _has_variable(side)]
    if len(unknown) != 1 or is_name(unknown[0]):
        return False
    return _LINEAR.fullmatch(squash(_LINEAR_NOISE.sub("", unknown[0]))) is not None


def _is_consistent(equation: Equation, algebra: Algebra) -> Verdict:
    """Refuse a chain with a false link between numbers (7 = 5, x = 5 = 6) or several in one (x = 6 x = 5)."""
    first, *middle = map(squash, equation.parts[:-1])
    if any(part != first and part.endswith(first) for part in middle):
        return False
    links = pairwise(equation.parts)
    return all_of(
        _equal_values(a, b, algebra) for a, b in links if not _has_variable(a) and not _has_variable(b)
    )


def _equal_values(a: str, b: str, algebra: Algebra) -> Verdict:
    first, second = read(a), read(b)
    if not (isinstance(first, Scalar) and isinstance(second, Scalar)):
        return compare(first, second, algebra)
    numbers = parse_number(first.text), parse_number(second.text)
    if numbers[0] and numbers[1]:
        return numbers_agree(numbers[0], numbers[1])
    return any_of((compare_scalars(a, b, algebra), algebra.same(first.text, second.text)))


def _has_variable(text: str) -> bool:
    return re.search(r"[A-Za-z]", re.sub(r"[ei]", "", _NUMERIC_COMMAND.sub("", text))) is not None


def compare_scalars(answer: str, reference: str, algebra: Algebra) -> Verdict:
    """Judge one value, by its spelling, its words, its sign of infinity, its number and its unit."""
    if squash(answer) == squash(reference):
        return bool(answer)
    infinities = [_INFINITE.fullmatch(squash(text)) for text in (answer, reference)]
    if any(infinities):
        signs = {match["sign"] == "-" if match else None for match in infinities}
        return len(signs) == 1
    if is_time(reference) and is_time(answer):
        return times_agree(answer, reference)
    if parse_ratio(reference):
        return ratios_agree(answer, reference)
    found, wanted = read_quantities(answer, reference)
    if any(_is_said_in_words(quantity.value) for quantity in (found, wanted)):
        return words(answer) == words(reference) != ""
    verdict = _compare_quantities(found, wanted, algebra)
    if DEGREES in (found.unit, wanted.unit) and _OF_AN_ANGLE.search(answer + reference):
        return any_of((verdict, algebra.answers(answer, reference)))  # the degrees are within: \cos 15^\circ
    return verdict


def _is_said_in_words(text: str) -> bool:
    """Tell words from products of letters: long ones are, and short ones that are known."""
    return (_SHORT_WORD.fullmatch(text.strip()) or _WORDS.search(text)) is not None


def words(text: str) -> str:
    """Return the words of a text in small letters, without articles, quotes and brackets."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).lower()
    return _ARTICLE.sub("", " ".join(re.sub(r"[^\w+*/^=<>\\-]", " ", text).split()))


def _compare_quantities(answer: Quantity, reference: Quantity, algebra: Algebra) -> Verdict:
    def equal(scale: Fraction, reference_scale: Fraction) -> Verdict:
        return _equal_multiples((answer.value, scale), (reference.value, reference_scale), algebra)

    if (answer.unit, reference.unit) == (RADIANS, DEGREES):
        return algebra.same(answer.value, _in_radians(reference))
    if (answer.unit, reference.unit) == (DEGREES, RADIANS):
        return algebra.same(_in_radians(answer), reference.value)
    if answer.unit is not None and reference.unit is not None:
        scales = answer.scale * answer.unit.factor, reference.scale * reference.unit.factor
        return answer.unit.agrees(reference.unit) and equal(*scales)
    scales = Fraction(answer.scale), Fraction(reference.scale)
    plain = equal(*scales)
    if answer.unit is PERCENT:
        if _is_a_share(reference):
            return equal(scales[0] / 100, scales[1])
        return any_of((plain, equal(scales[0] / 100, scales[1])))
    if reference.unit is PERCENT:
        return any_of((plain, equal(scales[0], scales[1] / 100)))
    if reference.unit == DEGREES and r"\pi" in answer.value:
        return algebra.same(answer.value, _in_radians(reference))
    return plain


def _in_radians(degrees: Quantity) -> str:
    return rf"({degrees.value})\cdot\frac{{\pi}}{{180}}"


def _is_a_share(reference: Quantity) -> bool:
    """Tell whether a plain reference is between 0 and 1: 0.5 wants 50 %, not 0.5 %."""
    number = parse_number(reference.value)
    return number is not None and 0 < number.value * reference.scale < 1


def _equal_multiples(
    answer: tuple[str, Fraction], reference: tuple[str, Fraction], algebra: Algebra
) -> Verdict:
    """Compare values times factors."""
    numbers = parse_number(answer[0]), parse_number(reference[0])
    if numbers[0] is not None and numbers[1] is not None:
        if numbers[1].places is not None and _is_undone_division(answer[0], numbers[0]):
            return False
        return numbers_agree(_times(numbers[0], answer[1]), _times(numbers[1], reference[1]))
    ratio = answer[1] / reference[1]
    return algebra.answers(answer[0] if ratio == 1 else _multiple(answer[0], ratio), reference[0])


def _is_undone_division(text: str, number: Number) -> bool:
    return number.value.denominator == 1 and ("/" in text or r"\frac" in text)


def _times(number: Number, scale: Fraction) -> Number:
    return number if scale == 1 else Number(number.value * scale, None)


def _multiple(text: str, ratio: Fraction) -> str:
    return rf"({text})\cdot\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
