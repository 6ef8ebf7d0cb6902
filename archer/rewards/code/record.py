"""Reading the tests of a problem from the ground truth of a data row.

The forms of the field's data sets are told apart by their keys; JSON text is read first:

| form | keys |
|---|---|
| HumanEval | `test`, `entry_point`, perhaps `prompt` |
| LeetCodeDataset | the same, `entry_point` being `Solution().method`, `prompt` the tests' helpers |
| LiveCodeBench | `public_test_cases` and `private_test_cases`, or a list of `input`, `output`, `testtype` |
| APPS, TACO and their like | `inputs`, `outputs`, perhaps `fn_name` |
| LeetCode of rLLM | `functional`: code that ends in `check(Solution().method)` |
| MBPP | `test_list`, perhaps `test_setup_code` or `test_imports` |
| plain | Python code with assertions |

Each may also lie under `tests`, `test_cases` or `input_output`.

The private cases of LiveCodeBench's published files are a JSON text that was pickled, compressed and written
in base64. A pickle can run code when it is loaded, so none is loaded here: its instructions are read one by
one, and anything but "here is a text" is refused.
"""

import ast
import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from typing import Any

from archer.errors import ArcherError
from archer.rewards.code import AssertTests, CallTests, ScriptCase, ScriptTests, Tests, is_idle

_WRAPPERS = ("tests", "test_cases", "input_output")
_SHOWN_CHARS = 200
_MAX_UNPACKED_BYTES = 512 * 2**20
_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_HARMLESS = {"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
_ADVICE = (
    "Expected tests in reward_model.ground_truth: HumanEval's test and entry_point, LiveCodeBench's "
    "public_test_cases and private_test_cases, inputs and outputs (with fn_name for calls), test_list, "
    "or Python code with assertions."
)
_METHOD = re.compile(r"def\s+(\w+)\s*\(\s*self\b")


def read_tests(ground_truth: Any) -> Tests:
    """Return the tests that a ground truth holds; an ArcherError says what it should have held."""
    if isinstance(ground_truth, str):
        text = ground_truth.strip()
        if text[:1] in ("{", "["):
            try:
                return read_tests(json.loads(text))
            except ValueError as error:
                raise ArcherError(
                    f"The ground truth looks like JSON but is not: {error}. {_ADVICE}"
                ) from error
        return _assert_tests(text)
    if isinstance(ground_truth, list | tuple) and ground_truth:
        if all(isinstance(item, dict) for item in ground_truth):
            return tests_of_cases(list(ground_truth), None)
        if all(isinstance(item, str) for item in ground_truth):
            return _assert_tests("\n".join(ground_truth))
    if isinstance(ground_truth, dict):
        return _read_record(ground_truth)
    raise ArcherError(f"The ground truth {ground_truth!r:.{_SHOWN_CHARS}} holds no tests. {_ADVICE}")


def _read_record(record: dict[str, Any]) -> Tests:
    if "test" in record and "entry_point" in record:
        return _humaneval(record)
    if "public_test_cases" in record or "private_test_cases" in record:
        keys = "public_test_cases", "private_test_cases"
        cases = [case for key in keys for case in _read_cases(record.get(key) or [], key)]
        return tests_of_cases(cases, _function_name(record))
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
    raise ArcherError(f"The ground truth has the keys {', '.join(map(str, record))}: no tests. {_ADVICE}")


def _humaneval(record: dict[str, Any]) -> AssertTests:
    prompt, source, entry = str(record.get("prompt") or ""), str(record["test"]), str(record["entry_point"])
    try:
        compile(prompt, "prompt", "exec")
    except (SyntaxError, ValueError):
        prompt = ""  # a sentence, or the beginning of a function: nothing that runs by itself
    if not entry.isidentifier():  # LeetCodeDataset's `Solution().method`
        return _assert_tests(f"{source}\n\ncheck({entry})", setup=prompt)
    return _assert_tests(source, setup=prompt, entry_point=entry)


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
    expected = [_json_or_text(each) if isinstance(each, str) else each for each in outputs]
    cases = tuple(json.dumps(case) for case in zip(arguments, expected, strict=True))
    wrapped = all(isinstance(each, list) and len(each) == 1 for each in expected)
    return CallTests(str(function), cases, unwrap=wrapped)


def _text(given: Any) -> str:
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def _json_lines(text: str) -> list[Any]:
    return [_parse(line) for line in text.split("\n") if line.strip()]


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _assert_tests(source: str, setup: str = "", entry_point: str | None = None) -> AssertTests:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArcherError(
            f"The tests {source!r:.{_SHOWN_CHARS}} are not Python: {error}. {_ADVICE}"
        ) from error
    count = sum(isinstance(node, ast.Assert) and not is_idle(node) for node in nodes)
    if not count:
        raise ArcherError(
            f"The tests {source!r:.{_SHOWN_CHARS}} assert nothing, so every program would pass. {_ADVICE}"
        )
    return AssertTests(source, count, setup, entry_point)


def tests_of_cases(cases: list[dict[str, Any]], function: str | None) -> Tests:
    """Return tests from cases with `input`, `output` and perhaps `testtype` and `metadata`."""
    kinds = {str(case.get("testtype") or "stdin") for case in cases}
    complete = all("input" in case and "output" in case for case in cases)
    if not complete or kinds not in ({"stdin"}, {"stdin_stdout"}, {"functional"}):
        raise ArcherError(
            f"The ground truth has {len(cases)} test cases of testtype {', '.join(sorted(kinds)) or 'none'}: "
            "expected some, each with input and output, all of testtype stdin or all functional."
        )
    if kinds != {"functional"}:
        return ScriptTests(tuple(ScriptCase(str(case["input"]), str(case["output"])) for case in cases))
    function = function or _function_name(cases[0])
    if function is None:
        raise ArcherError(
            "The ground truth has functional test cases but does not say what to call: expected "
            "metadata.func_name or a starter_code with a method."
        )
    pairs = ((_json_lines(str(case["input"])), _parse(case["output"])) for case in cases)
    return CallTests(function, tuple(map(json.dumps, pairs)))


def _parse(text: Any) -> Any:
    """Read JSON; what is no text has been read already."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError as error:  # also an integer of more digits than Python reads
        raise ArcherError(
            f"A functional test case holds {text!r:.100}, which is not JSON: {error}. Expected one JSON "
            "value a line in input, and one in output."
        ) from error


def _function_name(record: Mapping[str, Any]) -> str | None:
    metadata = _parse(record.get("metadata") or {})
    if metadata.get("func_name"):
        return str(metadata["func_name"])
    method = _METHOD.search(str(record.get("starter_code") or ""))
    return method[1] if method else None


def _read_cases(value: Any, key: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        text = value if value.lstrip().startswith("[") else unpack_text(value)
        value = _parse(text)
    if not isinstance(value, list) or not all(isinstance(case, dict) for case in value):
        raise ArcherError(f"{key} of the ground truth is no list of test cases.")
    return value


def unpack_text(packed: str) -> str:
    """Return the text in a base64 of a zlib of a pickled string, without loading the pickle."""
    try:
        inflater = zlib.decompressobj()
        pickled = inflater.decompress(base64.b64decode(packed, validate=True), _MAX_UNPACKED_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ArcherError(
            f"private_test_cases of the ground truth is neither JSON nor LiveCodeBench's packed form: {error}"
        ) from error
    if not inflater.eof:
        raise ArcherError(
            f"private_test_cases of the ground truth is cut off, or unpacks to more than "
            f"{_MAX_UNPACKED_BYTES >> 20} MiB."
        )
    texts: list[str] = []
    try:
        for instruction, argument, _ in pickletools.genops(pickled):
            if instruction.name in _TEXT:
                texts.append(str(argument))
            elif instruction.name not in _HARMLESS:
                raise ValueError(f"the instruction {instruction.name}")
    except ValueError as error:
        raise ArcherError(
            f"private_test_cases of the ground truth is a pickle of more than a text ({error}). It is not "
            "loaded, because a pickle can run code: convert it to JSON yourself if you trust it."
        ) from error
    if len(texts) != 1:
        raise ArcherError(
            f"private_test_cases of the ground truth is a pickle of {len(texts)} texts, not one."
        )
    return texts[0]
