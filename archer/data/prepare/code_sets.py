r"""Programming problems. The ground truth is JSON in the usual shapes, which `archer.rewards.code` reads:

{"inputs": ["3\n"], "outputs": ["9\n"]}                      a program that reads stdin and writes stdout
{"inputs": ["[1,2]\n3"], "outputs": ["5"], "fn_name": "f"}   a function; one JSON argument a line
{"functional": "def check(candidate): ...\ncheck(f)"}        asserts about what the response defines
{"test": "def check(candidate): ...", "entry_point": "f", "prompt": "..."}      HumanEval, LeetCodeDataset
{"test_list": ["assert f(1) == 2"], "test_setup_code": "..."}                  MBPP
"""

import json
from collections.abc import Mapping
from typing import Any

from archer.data.prepare.example import Example, RowError, compact_json, kept, text_field
from archer.errors import ArcherError
from archer.rewards.code.record import read_tests, unpack_text

STDIN, FUNCTION = "code-stdin", "code-function"


def humaneval_row(values: Mapping[str, Any]) -> Example:
    """HumanEval: complete a function; `test` defines `check`, which may use the prompt's helpers."""
    prompt, entry = text_field(values, "prompt"), text_field(values, "entry_point")
    truth = {"test": text_field(values, "test"), "entry_point": entry, "prompt": f"{prompt}\n"}
    question = f"Complete the following Python function.\n\n```python\n{prompt}\n```"
    identifier = str(values.get("task_id", ""))
    meta = {"entry_point": entry, **_gold(values)}
    return Example(question, _checked(truth), identifier, meta, FUNCTION)


def mbpp_row(values: Mapping[str, Any]) -> Example:
    """MBPP, also its sanitized part: a sentence, and assertions that name the function."""
    tests = values.get("test_list")
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise RowError("test_list is not a list of texts")
    truth = {"test_list": tests, **kept(values, "test_setup_code", "test_imports")}
    asked = "\n".join(tests)
    question = (
        f"{text_field(values, 'text', 'prompt')}\nIt should pass these tests:\n\n```python\n{asked}\n```"
    )
    meta = _gold(values)
    return Example(question, _checked(truth), str(values.get("task_id", "")), meta, FUNCTION)


def _gold(values: Mapping[str, Any]) -> dict[str, Any]:
    """The data set's own solution, for `archer data check-gold`."""
    names = ("solution", "solutions", "canonical_solution", "completion", "code")
    found = next((values[name] for name in names if values.get(name)), None)
    return {} if found is None else {"solution": found}


def coding_row(values: Mapping[str, Any]) -> Example:
    """A problem with tests: LiveCodeBench's own rows, rLLM's (LeetCode, TACO, LiveCodeBench), APPS's."""
    if "entry_point" in values and "test" in values:
        return _leetcode_dataset_row(values)
    question = text_field(values, "question_content", "problem", "question", "prompt")
    if "public_test_cases" in values:
        tests = [
            case
            for name in ("public_test_cases", "private_test_cases")
            for case in _unpacked(values.get(name) or [], name)
        ]
    else:
        tests = _unpacked(values.get("tests", values.get("input_output")), "tests")
    truth, kind = canonical_tests(tests, _function_name(values.get("metadata")))
    identifier = values.get("question_id", values.get("id", values.get("task_id", "")))
    meta = kept(values, "question_title", "difficulty", "platform", "contest_date", "url") | _gold(values)
    return Example(_with_starter(question, values), _checked(truth), str(identifier), meta, kind)


def _leetcode_dataset_row(values: Mapping[str, Any]) -> Example:
    """LeetCodeDataset: `prompt` holds the helpers of the tests, `input_output` what nobody can run."""
    question = text_field(values, "problem_description", "query", "question", "problem")
    truth = {name: text_field(values, name) for name in ("test", "entry_point")} | kept(values, "prompt")
    meta = kept(values, "difficulty", "tags", "question_id", "entry_point") | _gold(values)
    identifier = str(values.get("task_id", ""))
    return Example(_with_starter(question, values), _checked(truth), identifier, meta, FUNCTION)


def _with_starter(question: str, values: Mapping[str, Any]) -> str:
    """The question and the beginning of the program, where that is not in the question already."""
    starter = values.get("starter_code")
    if isinstance(starter, str) and starter.strip() and starter.strip() not in question:
        question += f"\n\n```python\n{starter.rstrip()}\n```"
    return question


def canonical_tests(tests: Any, fn_name: str | None) -> tuple[dict[str, Any], str]:
    """(ground truth, instruction preset) of tests in any of the usual shapes."""
    if isinstance(tests, dict) and isinstance(tests.get("functional"), str):
        return {"functional": tests["functional"]}, FUNCTION
    if isinstance(tests, list):
        tests = _from_cases(tests, fn_name)
    if not isinstance(tests, dict) or not tests.get("inputs"):
        raise RowError("no tests")
    inputs, outputs = tests["inputs"], tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise RowError("tests have not as many outputs as inputs")
    found = {"inputs": inputs, "outputs": outputs}
    name = tests.get("fn_name")
    return (found | {"fn_name": name}, FUNCTION) if name else (found, STDIN)


def _from_cases(cases: list[Any], fn_name: str | None) -> dict[str, Any]:
    """LiveCodeBench's list of {input, output, testtype} as inputs and outputs."""
    if not all(isinstance(case, dict) and "input" in case and "output" in case for case in cases):
        raise RowError("tests are not a list of {input, output}")
    kinds = {case.get("testtype") == "functional" for case in cases}
    if len(kinds) > 1:
        raise RowError("tests are partly for stdin, partly functional")
    found: dict[str, Any] = {"inputs": [c["input"] for c in cases], "outputs": [c["output"] for c in cases]}
    if kinds == {True}:
        name = fn_name or _function_name(cases[0].get("metadata"))
        if name is None:
            raise RowError("functional tests name no function")
        found["fn_name"] = name
    return found


def _function_name(metadata: Any) -> str | None:
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except json.JSONDecodeError:
            raise RowError("metadata is not JSON") from None
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else None


def _unpacked(value: Any, name: str) -> Any:
    """Tests as they are, or from JSON text, or from LiveCodeBench's packed form."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return json.loads(text if text[:1] in ("[", "{") else unpack_text(text))
    except (json.JSONDecodeError, ArcherError) as error:
        raise RowError(f"{name} cannot be unpacked", str(error)) from error


def _checked(truth: dict[str, Any]) -> str:
    """The ground truth as JSON text, if the rewards can use it."""
    try:
        read_tests(truth)
    except ArcherError as error:
        raise RowError("the tests cannot be used", str(error)) from error
    return compact_json(truth)
