"""Random answers: nothing crashes or hangs, and algebra agrees with exact rational arithmetic."""

import re
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from archer.rewards import RewardRequest
from archer.rewards.math import fast_verdict, reference_answers, verify_answer
from archer.rewards.math.algebra import SampledAlgebra
from archer.rewards.math.evaluate import UndefinedError, evaluate, precision
from archer.rewards.math.expression import UnreadableError, read_expression, variables
from archer.rewards.math.structure import read

PIECES = [
    *"0123456789xyeinAR+-*/^_=(){}[],.;:!%$&|<> \n'",
    *(
        "\\",
        "\\\\",
        "\\{",
        "\\}",
        "\\%",
        "\\$",
        "\\,",
        "\\frac",
        "\\sqrt",
        "\\pi",
        "\\infty",
        "\\text",
        "\\text{or}",
    ),
    *(
        "\\pm",
        "\\cup",
        "\\in",
        "\\le",
        "\\ne",
        "\\circ",
        "\\approx",
        "\\left(",
        "\\right)",
        "\\begin{pmatrix}",
    ),
    *(
        "\\end{pmatrix}",
        "\\sin",
        "\\log",
        "\\binom",
        "\\lfloor",
        "\\rfloor",
        "\\boxed",
        "\\overline",
        " and ",
        "cm",
    ),
    *(
        "9^{9^{9}}",
        "^{99999}",
        "\\frac{1}{2}",
        "{}",
        "\\sum_{k=1}^{9}",
        "\\int",
        "\\cdot",
        "°",
        "²",
        "½",
        "√",
        "٣",
    ),
]
MATH_TEXT = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
ANY_TEXT = st.one_of(st.text(), MATH_TEXT)


@settings(deadline=None, max_examples=300)
@given(ANY_TEXT, ANY_TEXT.filter(str.strip))
def test_the_fast_path_never_raises(answer, reference):
    assert fast_verdict(answer, reference_answers(reference)) in (True, False, None)


@settings(deadline=None, max_examples=300)
@given(MATH_TEXT)
def test_an_expression_is_read_and_evaluated_or_refused(text):
    try:
        node = read_expression(text)
        with precision(30):
            evaluate(node, {name: Fraction(3, 2) for name in variables(node)})
    except (UnreadableError, UndefinedError):
        pass


@settings(max_examples=30, deadline=None)
@given(answers=st.lists(ANY_TEXT, min_size=16, max_size=16))
def test_verification_never_crashes_nor_calls_nonsense_right(answers, scorer):
    requests = [RewardRequest("math", rf"\boxed{{{answer}}}", "271828.75") for answer in answers]
    for result in scorer.score(requests):
        assert not result.correct
        assert result.failure in (None, "timeout")


@dataclass(frozen=True)
class Tree:
    """An expression in x and y that exact rational arithmetic can evaluate."""

    operation: str
    parts: tuple["Tree", ...] = ()

    def latex(self) -> str:
        inner = [part.latex() for part in self.parts]
        match self.operation:
            case "+" | "-":
                return f"({inner[0]} {self.operation} {inner[1]})"
            case "*":
                return rf"{inner[0]} \cdot {inner[1]}" if self.parts[1].operation != "neg" else "".join(inner)
            case "/":
                return rf"\frac{{{inner[0]}}}{{{inner[1]}}}"
            case "^2":
                return f"({inner[0]})^{{2}}"
            case "neg":
                return f"(-{inner[0]})"
        return self.operation

    def value(self, point: dict[str, Fraction]) -> Fraction:
        values = [part.value(point) for part in self.parts]
        match self.operation:
            case "+":
                return values[0] + values[1]
            case "-":
                return values[0] - values[1]
            case "*":
                return values[0] * values[1]
            case "/":
                return values[0] / values[1]
            case "^2":
                return values[0] ** 2
            case "neg":
                return -values[0]
        return point[self.operation] if self.operation in point else Fraction(self.operation)


LEAVES = st.one_of(st.integers(0, 12).map(str), st.sampled_from("xy")).map(Tree)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: Tree(op, (a, b)), st.sampled_from("+-*/"), inner, inner),
        st.builds(lambda op, a: Tree(op, (a,)), st.sampled_from(["^2", "neg"]), inner),
    ),
    max_leaves=6,
)
POINTS = [
    {"x": Fraction(x, 7), "y": Fraction(y, 11)} for x, y in ((3, 5), (-16, 9), (22, -4), (47, 68), (1, -31))
]


def rational_values(tree: Tree) -> list[Fraction]:
    try:
        return [tree.value(point) for point in POINTS]
    except ZeroDivisionError:
        assume(False)
        raise


@settings(deadline=None, max_examples=400)
@given(TREES, TREES)
def test_equality_agrees_with_exact_arithmetic(a, b):
    equal = rational_values(a) == rational_values(b)
    assert SampledAlgebra().same(a.latex(), b.latex()) is equal


def rewritings(tree: Tree) -> list[Tree]:
    """The same value, written otherwise."""
    one, two = Tree("1"), Tree("2")
    swapped = [Tree(tree.operation, tree.parts[::-1])] if tree.operation in ("+", "*") else []
    return [
        *swapped,
        Tree("neg", (Tree("neg", (tree,)),)),
        Tree("/", (Tree("*", (tree, two)), two)),
        Tree("-", (Tree("+", (tree, Tree("x"))), Tree("x"))),
        Tree("*", (one, tree)),
        Tree("-", (Tree("*", (two, tree)), tree)),
    ]


@settings(deadline=None, max_examples=100)
@given(TREES)
def test_an_expression_equals_itself_rewritten_and_differs_from_itself_perturbed(tree):
    values = rational_values(tree)
    algebra = SampledAlgebra()
    for same in rewritings(tree):
        assert algebra.same(same.latex(), tree.latex())
    for change in ("1", "x"):
        assert not algebra.same(Tree("+", (tree, Tree(change))).latex(), tree.latex())
    if any(values):
        assert not algebra.same(Tree("neg", (tree,)).latex(), tree.latex())


def typesettings(text: str) -> list[str]:
    """The same text, set otherwise."""
    return [
        f" {text} ",
        f"${text}$",
        rf"\({text}\)",
        f"{{{text}}}",
        f"{text}.",
        re.sub(r"([-+=()^{}])", r" \1 ", text),
        text.replace(r"\frac", r"\dfrac"),
        text.replace("(", r"\left(").replace(")", r"\right)"),
        text.replace(r" \cdot ", r" \times "),
        text.replace(" ", r"\, "),
        rf"\displaystyle {text}",
    ]


@settings(deadline=None, max_examples=60)
@given(TREES, TREES)
def test_the_verdict_does_not_depend_on_the_typesetting(a, b):
    rational_values(a), rational_values(b)  # what has no value equals itself by spelling alone
    reference = b.latex()
    verdict = verify_answer(a.latex(), reference)
    for text in typesettings(a.latex()):
        assert verify_answer(text, reference) is verdict
    for text in typesettings(reference):
        assert verify_answer(text, reference)


NUMBERS = st.fractions(min_value=-1000, max_value=1000, max_denominator=200)


@settings(deadline=None, max_examples=60)
@given(st.lists(NUMBERS, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_a_set_has_no_order_and_a_tuple_has(numbers, shuffler):
    texts = [rf"\frac{{{number.numerator}}}{{{number.denominator}}}" for number in numbers]
    order = shuffler.sample(range(len(numbers)), len(numbers))
    shuffled = [f"{numbers[index].numerator}/{numbers[index].denominator}" for index in order]
    assert verify_answer(", ".join(shuffled), rf"\{{{','.join(texts)}\}}")
    in_order = [numbers[index] for index in order] == numbers
    assert verify_answer(f"({', '.join(shuffled)})", f"({','.join(texts)})") is in_order
    assert not verify_answer(", ".join([*shuffled, "1/3"]), ",".join(texts))


@pytest.mark.parametrize("text", ["(" * 21 + "5" + ")" * 21, "5)", "(5", r"\left(5", "{5", r"\{5"])
def test_unbalanced_or_too_deep_text_has_no_structure(text):
    assert read(text) == read("")
