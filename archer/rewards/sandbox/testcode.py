"""Reading test code: what it tests, and what it tests with.

From the program come only the names under test. What a test uses to judge (`isclose(f(2), 1.41)`) or to say
what it expects (`f(2) == reference(2)`) comes from the test itself or from the examiner's prelude, and is
missing otherwise: a program that defines it does not help itself.
"""

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from archer.rewards.sandbox import prelude
from archer.rewards.sandbox.remote import ANSWERS_OF_DATA

_PROGRAM_MODULES = ("solution", "program", "main", "__main__")
_JUDGES = {
    "isclose",
    "deque",
    "defaultdict",
    "date",
    "timedelta",
    *(name for name in prelude.FOR_TESTS if name not in prelude.LIBRARY),
} - {"Node"}


@dataclass(frozen=True)
class TestCode:
    """The tests, what of the program they name, and where the program's results and arguments are in them."""

    __test__ = False

    tree: ast.Module
    entries: frozenset[str]  # what comes from the program
    objects: frozenset[str]  # those of them that are classes, by the way that the tests use them
    compares: bool  # whether tests compare objects of such classes
    results: frozenset[str]  # variables that hold what the program returned, parameters that hold functions
    arguments: frozenset[str]  # variables that were given to the program
    offers: frozenset[str]  # functions and classes that are there for programs to use: `guess(num)`


def read_test_code(source: str, setup: str, entry_point: str | None) -> TestCode:
    """Analyse tests; `entry_point` is the function that the data set names, if it does."""
    tree = ast.parse(source)
    whole = ast.Module([*ast.parse(setup).body, *tree.body], [])
    imported = _take_out_imports(tree)
    bound = _bound_names(whole) - imported
    handed = _handed_over(whole, bound)
    if entry_point is not None:
        entries = {entry_point}
    elif handed and not any(isinstance(each, ast.Assert) and _calls(each) for each in tree.body):
        entries = set(handed)
    else:
        entries = _entries(whole, bound) | set(handed) | imported
    roots = entries | {parameter for names in handed.values() for parameter in names}
    if entry_point is not None:
        checks = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "check"]
        roots |= {each.args.args[0].arg for each in checks if each.args.args}
    results = _result_variables(whole, roots)
    arguments = {
        each.id
        for call in _calls(whole)
        if root_name(call.func) in roots | results
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for each in ast.walk(argument)
        if isinstance(each, ast.Name)
    }
    objects, compares = _classes(whole, entries)
    return TestCode(
        tree,
        frozenset(entries),
        frozenset(objects),
        compares,
        frozenset(results | roots),
        frozenset(arguments - roots),
        frozenset(_offers(tree) - entries),
    )


def root_name(node: ast.AST) -> str | None:
    """Return `a` for `a.b(c)[d].e`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def has_result(
    node: ast.AST,
    results: frozenset[str] | set[str],
    classes: frozenset[str] | None = None,
    instances: frozenset[str] | set[str] = frozenset(),
) -> bool:
    """Tell whether an expression holds what the program returned, not just an object made of its class.

    Where the classes are not known, names with a capital letter are taken for such. What a method of one of
    the `instances` returns is a result as well.
    """
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and root_name(each) in results:
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            if root_name(each.func) in instances:
                return True
        elif isinstance(each, ast.Name) and each.id in results:
            constructs = each.id[:1].isupper() if classes is None else each.id in classes
            if not constructs:
                return True
    return False


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def _take_out_imports(tree: ast.Module) -> set[str]:
    """Remove `from solution import f`, and return what it names."""
    found: set[str] = set()
    for each in list(tree.body):
        if isinstance(each, ast.ImportFrom) and each.module in _PROGRAM_MODULES:
            found |= {alias.name for alias in each.names if alias.name != "*"}
            tree.body.remove(each)
    return found


def _bound_names(tree: ast.Module) -> set[str]:
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return bound


def _offers(tree: ast.Module) -> set[str]:
    """Return the functions that the tests define and do not use themselves, and their classes.

    A function that tests use may judge, or say what is expected.
    """
    offers = {each.name for each in tree.body if isinstance(each, ast.ClassDef) and not each.decorator_list}
    for function in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
        others = ast.Module([each for each in tree.body if each is not function], [])
        names = {each.id for each in ast.walk(others) if isinstance(each, ast.Name)}
        if function.name not in names | {"check"}:
            offers.add(function.name)
    return offers


def _handed_over(tree: ast.Module, bound: set[str]) -> dict[str, list[str]]:
    """Return what is given to functions of the test, as in `check(f)`, with the parameters that hold it."""
    functions = {each.name: each.args.args for each in tree.body if isinstance(each, ast.FunctionDef)}
    handed: dict[str, list[str]] = {}
    for call in _calls(tree):
        parameters = functions.get(call.func.id, []) if isinstance(call.func, ast.Name) else []
        given = [(each.arg, value) for each, value in zip(parameters, call.args, strict=False)]
        given += [(each.arg, each.value) for each in call.keywords if each.arg is not None and parameters]
        for parameter, value in given:
            name = root_name(value)
            if name is not None and name not in bound:
                handed.setdefault(name, []).append(parameter)
    return handed


def _entries(tree: ast.Module, bound: set[str]) -> set[str]:
    """Return the names under test where nothing but their use tells."""
    used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} - bound
    known = (set(dir(builtins)) | set(prelude.FOR_TESTS)) - {"Node"}  # programs have nodes of many kinds
    unknown = used - known
    results = _result_variables(tree, unknown)
    results |= {parameter for names in _handed_over(tree, bound).values() for parameter in names}
    asserts = [each.test for each in ast.walk(tree) if isinstance(each, ast.Assert)]
    instances = _variables_of(tree, lambda value: root_name(value) in unknown)
    entries = unknown - _helpers(asserts, unknown, results, instances)
    for test in asserts:
        if not has_result(test, entries | results) and not _looks_inside(test, tree, unknown):
            entries |= set(_library_functions(test, bound)[-1:])
    if not entries:
        nodes = asserts if any(_called_names(test, bound) for test in asserts) else [tree]
        library = [name for node in nodes for name in _library_functions(node, bound)]
        plain = [name for node in nodes for name in _called_names(node, bound) if hasattr(builtins, name)]
        functions = [name for name in plain if not isinstance(getattr(builtins, name), type)]
        entries = set((library or functions or plain)[-1:])
    return entries


def _called_names(node: ast.AST, bound: set[str]) -> list[str]:
    """Return the names that are called as such, the inner ones last."""
    return [
        each.func.id for each in _calls(node) if isinstance(each.func, ast.Name) and each.func.id not in bound
    ]


def _library_functions(node: ast.AST, bound: set[str]) -> list[str]:
    """Return the functions called that have the name of one in the library: the program may mean its own."""
    names = (name for name in _called_names(node, bound) if name in prelude.LIBRARY and name not in _JUDGES)
    return [name for name in names if name[0].islower() and not isinstance(prelude.LIBRARY[name], ModuleType)]


def _looks_inside(test: ast.AST, tree: ast.Module, unknown: set[str]) -> bool:
    """Tell whether an assertion looks at attributes of an object that was made of an unknown class."""
    made = unknown | _variables_of(tree, lambda value: root_name(value) in unknown)
    return any(isinstance(each, ast.Attribute) and root_name(each) in made for each in ast.walk(test))


def _result_variables(tree: ast.Module, roots: set[str]) -> set[str]:
    instances = _variables_of(tree, lambda value: root_name(value) in roots)
    found: set[str] = set()
    for _ in range(3):  # what is assigned from what was assigned
        known = roots | found

        def holds(value: ast.expr, known: set[str] = known) -> bool:
            return has_result(value, known, None, instances)

        found |= _variables_of(tree, holds)
    return found


def _variables_of(tree: ast.Module, holds: Callable[[ast.expr], bool]) -> set[str]:
    """Return the variables that are given a value of which this holds."""
    found: set[str] = set()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign) and holds(node.value):
            targets = node.targets
        elif (
            isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr)
            and node.value
            and holds(node.value)
        ) or (isinstance(node, ast.For | ast.comprehension) and holds(node.iter)):
            targets = [node.target]
        found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return found


def _helpers(asserts: list[ast.expr], unknown: set[str], results: set[str], instances: set[str]) -> set[str]:
    """Return the unknown names that only judge what others return, or only say what is expected."""
    helpers, subjects = set(), set()
    for test in asserts:
        judges = {
            call.func.id
            for call in _truths(test)
            if isinstance(call.func, ast.Name)
            and (
                any(
                    has_result(each, (unknown | results) - {call.func.id}, None, instances)
                    for each in (*call.args, *call.keywords)
                )
                or _weighs(call, unknown)
            )
        }
        for compare in (each for each in ast.walk(test) if isinstance(each, ast.Compare)):
            first, *others = [compare.left, *compare.comparators]
            if has_result(first, unknown | results, None, instances):
                mine = {root_name(call.func) for call in _calls(first)}
                judges |= {
                    call.func.id
                    for other in others
                    for call in _calls(other)
                    if isinstance(call.func, ast.Name)
                    and not call.func.id[:1].isupper()
                    and call.func.id not in mine
                }
        helpers |= judges
        subjects |= {str(root_name(call.func)) for call in _calls(test)} - judges
    return helpers - subjects


def _weighs(call: ast.Call, unknown: set[str]) -> bool:
    """Tell whether a call is given what a name under test returned, and a literal: `same(Diff(a), [2])`.

    `contains(Box(1), 2)` reads the same and may be meant otherwise. It cannot be judged then: the program
    would define what decides.
    """
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    made = any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in unknown
        for each in given
    )
    return made and any(_is_literal(each) for each in given)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _truths(test: ast.expr) -> Iterator[ast.Call]:
    """Yield the calls whose answer decides an assertion by itself."""
    if isinstance(test, ast.Call):
        yield test
    elif isinstance(test, ast.UnaryOp):
        yield from _truths(test.operand)
    elif isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _truths(each)
    elif isinstance(test, ast.Compare) and len(test.comparators) == 1:
        sides = [test.left, test.comparators[0]]
        if any(isinstance(side, ast.Constant) and isinstance(side.value, bool) for side in sides):
            for side in sides:
                yield from _truths(side)


def _makes(value: ast.expr, name: str) -> bool:
    """Tell whether an expression is made of objects of a class: one, or lists and dictionaries of them."""
    if isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp):
        return any(root_name(call.func) == name for call in _calls(value))
    return root_name(value) == name


def _filled_with(tree: ast.Module, name: str) -> Iterator[set[str]]:
    """Yield the variables that objects of a class are put into by a statement: `heappush(heap, Task(2))`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            given = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
            if any(root_name(each) == name for each in given):
                yield {each.id for each in given if isinstance(each, ast.Name)}
                yield (
                    {str(root_name(node.value.func))} if isinstance(node.value.func, ast.Attribute) else set()
                )


def _classes(tree: ast.Module, entries: set[str]) -> tuple[set[str], bool]:
    """Return the names under test that are used as classes: their objects are looked into, or compared."""
    found, compares = set(), False
    for name in (each for each in entries if each[:1].isupper()):
        made = {name} | _variables_of(tree, lambda value, name=name: _makes(value, name))  # type: ignore[misc]
        made |= {variable for holder in _filled_with(tree, name) for variable in holder}
        for node in ast.walk(tree):
            looks = (
                isinstance(node, ast.Attribute)
                and node.attr not in ANSWERS_OF_DATA
                and any(isinstance(each, ast.Name) and each.id in made for each in ast.walk(node.value))
            )
            sides = [node.left, node.comparators[0]] if isinstance(node, ast.Compare) else []
            both = bool(sides) and all(
                made & {x.id for x in ast.walk(side) if isinstance(x, ast.Name)} for side in sides
            )
            if looks or both:
                found.add(name)
                compares = compares or both
    return found, compares
