"""Expressions as trees."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Numeral:
    """A number as written."""

    value: Fraction


@dataclass(frozen=True)
class Constant:
    """One of `pi`, `e`, `i`."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A letter, with its subscript."""

    name: str


@dataclass(frozen=True)
class Apply:
    """An operation: `+ * / ^ neg` or the name of a function, on its arguments."""

    operation: str
    arguments: tuple["Node", ...]


Node = Numeral | Constant | Variable | Apply


def variables(node: Node) -> frozenset[str]:
    """Return the names of the variables of an expression."""
    match node:
        case Variable(name):
            return frozenset((name,))
        case Apply(_, arguments):
            return frozenset().union(*map(variables, arguments))
    return frozenset()


def operations(node: Node) -> frozenset[str]:
    """Return the operations in an expression."""
    if not isinstance(node, Apply):
        return frozenset()
    return frozenset((node.operation,)).union(*map(operations, node.arguments))
