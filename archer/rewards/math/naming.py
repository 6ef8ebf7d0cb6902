"""Values that go by names (`x=1, y=2` and `(x,y)=(1,2)`), and the order in which they are meant."""

import re
from collections.abc import Sequence

from archer.rewards.math.forms import Bracketed, Collection, Equation, Scalar, Structure
from archer.rewards.math.structure import is_name, read
from archer.rewards.math.text import squash

_FAMILIES = tuple(map(frozenset, ("abcdef", "pqrs", "uvw", "xyz", "ABCDEF", "PQRS", "XYZ")))
_LETTER = re.compile(r"(?P<letter>[A-Za-z])(?:_\{?(?P<index>[0-9]{1,4})\}?)?")


def assignment(equation: Equation) -> tuple[str | None, Structure]:
    """Return the name that an equation gives a value to, if it does, and the value it ends in."""
    first, last = equation.parts[0], equation.parts[-1]
    if is_name(last) and not is_name(first):
        first, last = last, first
    named = is_name(first) or isinstance(read(first), Bracketed)
    return first if named else None, read(last)


def named_values(structure: Structure) -> tuple[tuple[str, ...], tuple[Structure, ...]] | None:
    """Return the names and values of a tuple of names that equals one of values, or of several equations.

    The values of several equations are these equations themselves. None where names are missing or doubled.
    """
    names: list[str | None] = []
    values: tuple[Structure, ...] = ()
    if isinstance(structure, Collection):
        values = structure.items
        names = [assignment(item)[0] if isinstance(item, Equation) else None for item in values]
    elif isinstance(structure, Equation) and structure.parts[0].startswith("("):
        left, right = read(structure.parts[0]), read(structure.parts[-1])
        if isinstance(left, Bracketed) and isinstance(right, Bracketed):
            values = right.items
            names = [
                item.text if isinstance(item, Scalar) and is_name(item.text) else None for item in left.items
            ]
    found = tuple(squash(name) for name in names if name is not None)
    if not 1 < len(found) == len(names) == len(values) == len(set(found)):
        return None
    return found, values


def pairs_by_name(answer: Structure, reference: Structure) -> list[tuple[Structure, Structure]] | None:
    """Return the values of an answer with those of a reference that go by the same names, if all do."""
    found = named_values(reference) and named_values(answer)
    wanted = named_values(reference) if found else None
    if not found or not wanted or set(found[0]) != set(wanted[0]):
        return None
    values = dict(zip(*found, strict=True))
    return [(values[name], value) for name, value in zip(*wanted, strict=True)]


def in_natural_order(structure: Structure) -> Sequence[Structure] | None:
    """Return the values that go by letters like x, y, z or a_1, a_2 in the order of these, if they do.

    Other names stand in an order that the question may have given them: `(n,k)`.
    """
    named = named_values(structure)
    letters = [_LETTER.fullmatch(name) for name in named[0]] if named else []
    keys = [(match["letter"], int(match["index"] or 0)) for match in letters if match]
    if named is None or len(keys) < len(letters):
        return None
    if not any(family.issuperset(letter for letter, _ in keys) for family in _FAMILIES):
        return None
    return [value for _, value in sorted(zip(keys, named[1], strict=True), key=lambda pair: pair[0])]
