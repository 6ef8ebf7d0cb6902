r"""A reader of expressions in LaTeX or plain notation: text in, tree out.

It is strict where readers for rendering are generous, because a lenient reading is a wrong reward: numerals
side by side, a double sign, `1/2x` and everything else with two readings is refused. Letters are variables of
one letter each, capitals are different from small letters, `e` and `i` are the constants.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 2000
_TOKEN = re.compile(r"\s*(\\[A-Za-z]+|\\[{}|]|[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+|[A-Za-z]+|[^\s])")
_INVERSE_FUNCTIONS = ("arcsin", "arccos", "arctan")
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc", *_INVERSE_FUNCTIONS, "sinh", "cosh", "tanh")
_FUNCTIONS = (*_TRIGONOMETRIC, "ln", "log", "lg", "exp")
_BARE_NAMES = frozenset([*_FUNCTIONS, "sqrt", "pi"])
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    r"|(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell)"
)
_TIMES = (r"\cdot", r"\times", "*")
_OVER = ("/", r"\div")
_GROUPS = {"(": ")", "[": "]", "{": "}"}
_FENCES = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil"), r"\lvert": (r"\rvert", "abs")}
_OF_TWO = {r"\frac": "/", r"\binom": "binom"}
_STARTS = frozenset(("(", "[", "{", r"\sqrt", r"\pi", *_OF_TWO, *_FENCES))
_MAX_LETTERS = 4


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


def nodes(*trees: Node) -> Iterator[Node]:
    """Yield all nodes of some trees."""
    open_nodes = list(trees)
    while open_nodes:
        node = open_nodes.pop()
        yield node
        if isinstance(node, Apply):
            open_nodes += node.arguments


def variables(*trees: Node) -> frozenset[str]:
    """Return the names of the variables of some expressions."""
    return frozenset(node.name for node in nodes(*trees) if isinstance(node, Variable))


class UnreadableError(Exception):
    """The text is no expression, or has more than one reading."""


def read_expression(text: str) -> Node:
    """Return the tree of a tidy text, or raise UnreadableError."""
    if len(text) > MAX_CHARS or not text.isascii():
        raise UnreadableError(text[:100])
    reader = _Reader(_tokens(text))
    node = reader.expression()
    if reader.peek() is not None:
        raise UnreadableError(text)
    return node


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    for token in _TOKEN.findall(text):
        if token[0].isalpha() and token not in _BARE_NAMES:
            if len(token) > _MAX_LETTERS:
                raise UnreadableError(token)
            tokens.extend(token)
        else:
            tokens.append("\\" + token if token in _BARE_NAMES else token)
    return tokens


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]
        self._last = ""
        self._open_bars = 0

    def peek(self) -> str | None:
        return self._tokens[-1] if self._tokens else None

    def _next(self) -> str:
        if not self._tokens:
            raise UnreadableError("it ends too soon")
        self._last = self._tokens.pop()
        return self._last

    def _take(self, *tokens: str) -> str | None:
        """Take the next token if it is one of these."""
        return self._next() if self.peek() in tokens else None

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise UnreadableError(f"{token} is missing")

    def expression(self) -> Node:
        """Read a sum."""
        terms = [self._term()]
        while sign := self._take("+", "-"):
            term = self._term(signed=False)
            terms.append(Apply("neg", (term,)) if sign == "-" else term)
        return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))

    def _term(self, signed: bool = True) -> Node:
        """Read a product; a sign before it belongs to all of it."""
        if sign := self._take("+", "-"):
            if not signed:
                raise UnreadableError("two signs")
            term = self._term(signed=False)
            return Apply("neg", (term,)) if sign == "-" else term
        node, divided = self._factor(), False
        while True:
            if self._take(*_TIMES):
                node, divided = Apply("*", (node, self._signed_factor())), False
            elif self._take(*_OVER):
                node, divided = Apply("/", (node, self._signed_factor())), True
            elif self._starts_factor(self.peek()):
                if divided:
                    raise UnreadableError("1/2x is 1/(2x) to some and (1/2)x to others")
                node = self._beside(node)
            else:
                return node

    def _signed_factor(self) -> Node:
        return Apply("neg", (self._factor(),)) if self._take("-") else self._factor()

    def _beside(self, node: Node) -> Node:
        """Read a factor that stands directly after another: a product, or the fraction of a mixed number."""
        is_fraction = self.peek() == r"\frac"
        if self._numeral_is_next() and not self._may_precede_numeral(node):
            raise UnreadableError("numerals side by side")
        factor = self._factor()
        if is_fraction and isinstance(node, Numeral) and node.value.denominator == 1 and _is_proper(factor):
            return Apply("mixed", (node, factor))
        return Apply("*", (node, factor))

    def _numeral_is_next(self) -> bool:
        inner = next((token for token in reversed(self._tokens) if token != "{"), "")
        return inner[:1].isdigit() or inner[:1] == "."

    def _may_precede_numeral(self, node: Node) -> bool:
        """Allow what has one reading: 3!7!, (n-2)2^n, n2^n."""
        following = self._tokens[-2] if len(self._tokens) > 1 else ""
        if self._last == "!":
            return following == "!"
        return bool(variables(node)) and (following == "^" or self._last == ")")

    def _starts_factor(self, token: str | None) -> bool:
        if token is None:
            return False
        if token == "|":
            return self._open_bars == 0
        if token.isalnum() or token[0] == "." or token in _STARTS:
            return True
        return _GREEK.fullmatch(token) is not None or self._is_function(token)

    @staticmethod
    def _is_function(token: str) -> bool:
        return token[1:] in _FUNCTIONS and token[0] == "\\"

    def _factor(self) -> Node:
        """Read a power, a factorial, or what they are made of."""
        token = self.peek()
        if token is not None and self._is_function(token):
            return self._function()
        node = self._primary()
        if self._take("!"):
            node = Apply("!", (node,))
        if self._take("^"):
            if self._take(r"\circ"):
                node = Apply("*", (node, Apply("/", (Constant("pi"), Numeral(Fraction(180))))))
            else:
                node = Apply("^", (node, self._exponent()))
        if self.peek() in ("!", "^", "_"):
            raise UnreadableError("stacked postfixes")
        return node

    def _exponent(self) -> Node:
        if self._take("-"):
            return Apply("neg", (self._exponent(),))
        token = self.peek()
        if token is not None and token[0].isdigit():
            return Numeral(Fraction(self._next()))  # x^10 is meant as x^{10}
        return self._group(self._next()) if token in ("(", "{") else self._argument()

    def _primary(self) -> Node:
        token = self._next()
        if token in _GROUPS:
            return self._group(token)
        if token in _FENCES:
            closing, name = _FENCES[token]
            return self._fenced(closing, name)
        if token == "|" and self._open_bars == 0:
            self._open_bars += 1
            node = self._fenced("|", "abs")
            self._open_bars -= 1
            return node
        if token in _OF_TWO:
            return Apply(_OF_TWO[token], (self._argument(), self._argument()))
        if token == r"\sqrt":
            return self._root()
        return self._atom(token)

    def _atom(self, token: str) -> Node:
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return Numeral(Fraction(token))
        if token == r"\pi":
            return Constant("pi")
        if token in ("e", "i") and self.peek() != "_":
            return Constant(token)
        if token.isalpha() or _GREEK.fullmatch(token):
            return Variable(token + self._subscript())
        raise UnreadableError(token)

    def _subscript(self) -> str:
        if not self._take("_"):
            return ""
        token = self._next()
        if token != "{":
            return f"_{token}"
        inside: list[str] = []
        while (token := self._next()) != "}":
            if token == "{":
                raise UnreadableError("a subscript with a group in it")
            inside.append(token)
        return "_" + "".join(inside)

    def _group(self, opening: str) -> Node:
        bars, self._open_bars = self._open_bars, 0
        node = self.expression()
        self._expect(_GROUPS[opening])
        self._open_bars = bars
        return node

    def _fenced(self, closing: str, name: str) -> Node:
        node = self.expression()
        self._expect(closing)
        return Apply(name, (node,))

    def _argument(self) -> Node:
        """Read what a LaTeX command takes: a group, or one character or symbol."""
        token = self._next()
        if token == "{":
            return self._group(token)
        if token.isdigit():
            if len(token) > 1:
                self._tokens.append(token[1:])
            return Numeral(Fraction(token[0]))
        if token.isalpha():
            return Constant(token) if token in ("e", "i") else Variable(token)
        if token == r"\pi" or _GREEK.fullmatch(token):
            return self._atom(token)
        raise UnreadableError(token)

    def _root(self) -> Node:
        degree: Node = Numeral(Fraction(2))
        if self._take("["):
            degree = self._group("[")
        radicand = self._group("(") if self._take("(") else self._argument()
        return Apply("root", (radicand, degree))

    def _function(self) -> Node:
        name = self._next()[1:]
        base: Node | None = None
        power: Node | None = None
        while mark := self._take("^", "_"):
            if mark == "^" and power is None:
                power = self._exponent()
            elif name == "log" and base is None:
                base = self._argument()
            else:
                raise UnreadableError(f"two powers or bases of {name}")
        if power in (Numeral(Fraction(-1)), Apply("neg", (Numeral(Fraction(1)),))) and name in _INVERSES:
            name, power = _INVERSES[name], None
        argument = self._function_argument()
        node = Apply(name, (argument,) if base is None else (argument, base))
        return node if power is None else Apply("^", (node, power))

    def _function_argument(self) -> Node:
        if self.peek() in ("(", "{", "[", "|", *_FENCES):
            argument = self._primary()
            if self.peek() in ("^", "!"):
                raise UnreadableError("a power of a function's argument, or of the function")
            return argument
        node = self._factor()
        while (token := self.peek()) is not None and self._starts_factor(token):
            if self._is_function(token) or token in ("(", "[", "|"):
                break
            node = self._beside(node)
        return node


def _is_proper(node: Node) -> bool:
    """Tell whether a fraction is one of plain positive integers, less than 1."""
    match node:
        case Apply("/", (Numeral(top), Numeral(bottom))):
            return top.denominator == bottom.denominator == 1 and 0 < top < bottom
    return False
