"""Reading the tests of a problem from the ground truth of a data row.

The forms of the field's data sets are told apart by their keys; JSON text is read first:

| form | keys |
|---|---|
| HumanEval | `test`, `entry_point`, perhaps `prompt` |
| LiveCodeBench | `public_test_cases` and `private_test_cases`, or a list of `input`, `output`, `testtype` |
| APPS, TACO and their like | `inputs`, `outputs`, perhaps `fn_name` |
| LeetCode of rLLM | `functional`: code that ends in `check(Solution().method)` |
| MBPP | `test_list`, perhaps `test_setup_code` or `test_imports` |
| plain | Python code with assertions |

Each may also lie under `tests`, `test_cases` or `input_output`.
"""

import ast
import json
from typing import Any

from archer.errors import ArcherError
from archer.rewards.code.livecodebench import read_livecodebench, tests_of_cases
from archer.rewards.code.problem import AssertTests, CallTests, ScriptCase, ScriptTests, Tests

_WRAPPERS = ("tests", "test_cases", "input_output")
_SHOWN_CHARS = 200


def read_tests(ground_truth: Any) -> Tests:
    """Return the tests that a ground truth holds; an ArcherError says what it should have held."""
    if isinstance(ground_truth, str):
        text = ground_truth.strip()
        if text[:1] in ("{", "["):
            try:
                return read_tests(json.loads(text))
            except ValueError as error:
                raise ArcherError(
                    f"The ground truth looks like JSON but is not: {error}. {_advice()}"
                ) from error
        return _assert_tests(text)
    if isinstance(ground_truth, list | tuple) and ground_truth:
        if all(isinstance(item, dict) for item in ground_truth):
            return tests_of_cases(list(ground_truth), None)
        if all(isinstance(item, str) for item in ground_truth):
            return _assert_tests("\n".join(ground_truth))
    if isinstance(ground_truth, dict):
        return _read_record(ground_truth)
    raise ArcherError(f"The ground truth {ground_truth!r:.{_SHOWN_CHARS}} holds no tests. {_advice()}")


def _read_record(record: dict[str, Any]) -> Tests:
    if "test" in record and "entry_point" in record:
        return _humaneval(record)
    if "public_test_cases" in record or "private_test_cases" in record:
        return read_livecodebench(record)
    if "inputs" in record and "outputs" in record:
        return _inputs_and_outputs(record)
    if "functional" in record:
        return _assert_tests(str(record["functional"]))
    if "test_list" in record:
        imports = "\n".join(record.get("test_imports") or [])
        setup = f"{imports}\n{record.get('test_setup_code') or ''}".strip()
        return _assert_tests("\n".join(record["test_list"]), setup=setup)
    for key in _WRAPPERS:
        if record.get(key):
            return read_tests(record[key])
    raise ArcherError(f"The ground truth has the keys {', '.join(map(str, record))}: no tests. {_advice()}")


def _humaneval(record: dict[str, Any]) -> AssertTests:
    prompt = str(record.get("prompt") or "")
    try:
        compile(prompt, "prompt", "exec")
    except (SyntaxError, ValueError):
        prompt = ""  # a sentence, or the beginning of a function: nothing that runs by itself
    return _assert_tests(str(record["test"]), setup=prompt, entry_point=str(record["entry_point"]))


def _inputs_and_outputs(record: dict[str, Any]) -> Tests:
    inputs, outputs = list(record["inputs"]), list(record["outputs"])
    if not inputs or len(inputs) != len(outputs):
        raise ArcherError(
            f"The ground truth has {len(inputs)} inputs and {len(outputs)} outputs: expected pairs, at "
            "least one."
        )
    function = record.get("fn_name")
    if not function:
        pairs = zip(map(_text, inputs), map(_text, outputs), strict=True)
        return ScriptTests(tuple(ScriptCase(given, expected) for given, expected in pairs))
    arguments = [_json_lines(given) if isinstance(given, str) else list(given) for given in inputs]
    expected = [json.loads(each) if isinstance(each, str) and _is_json(each) else each for each in outputs]
    cases = tuple(json.dumps(case) for case in zip(arguments, expected, strict=True))
    wrapped = all(isinstance(each, list) and len(each) == 1 for each in expected)
    return CallTests(str(function), cases, unwrap=wrapped)


def _text(given: Any) -> str:
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def _json_lines(text: str) -> list[Any]:
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise ArcherError(
            f"The input {text!r:.{_SHOWN_CHARS}} of a test is not one JSON value a line: {error}"
        ) from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _assert_tests(source: str, setup: str = "", entry_point: str | None = None) -> AssertTests:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArcherError(
            f"The tests {source!r:.{_SHOWN_CHARS}} are not Python: {error}. {_advice()}"
        ) from error
    count = sum(isinstance(node, ast.Assert) and not is_idle(node) for node in nodes)
    if not count:
        raise ArcherError(
            f"The tests {source!r:.{_SHOWN_CHARS}} assert nothing, so every program would pass. {_advice()}"
        )
    return AssertTests(source, count, setup, entry_point)


def is_idle(node: ast.Assert) -> bool:
    """Tell whether an assertion is `assert True`, which says nothing."""
    return isinstance(node.test, ast.Constant) and bool(node.test.value)


def _advice() -> str:
    return (
        "Expected tests in reward_model.ground_truth: HumanEval's test and entry_point, LiveCodeBench's "
        "public_test_cases and private_test_cases, inputs and outputs (with fn_name for calls), test_list, "
        "or Python code with assertions."
    )
