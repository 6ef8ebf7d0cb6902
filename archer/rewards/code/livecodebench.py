"""LiveCodeBench's records: public and private test cases, by standard input or by calls.

The private cases of the published files are a JSON text that was pickled, compressed and written in base64.
A pickle can run code when it is loaded, so none is loaded here: its instructions are read one by one, and
anything but "here is a text" is refused.
"""

import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from typing import Any

from archer.errors import ArcherError
from archer.rewards.code.problem import CallTests, ScriptCase, ScriptTests, Tests

_MAX_UNPACKED_BYTES = 512 * 2**20
_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_HARMLESS = {"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
_METHOD = re.compile(r"def\s+(\w+)\s*\(\s*self\b")


def read_livecodebench(record: Mapping[str, Any]) -> Tests:
    """Return the public and private tests of a record, in this order."""
    cases = [
        case
        for key in ("public_test_cases", "private_test_cases")
        for case in _read_cases(record.get(key) or [], key)
    ]
    return tests_of_cases(cases, _function_name(record))


def tests_of_cases(cases: list[dict[str, Any]], function: str | None) -> Tests:
    """Return tests from cases with `input`, `output` and perhaps `testtype` and `metadata`."""
    kinds = {str(case.get("testtype") or "stdin") for case in cases}
    if not cases or len(kinds) != 1 or any("input" not in case or "output" not in case for case in cases):
        raise ArcherError(
            f"The ground truth has {len(cases)} test cases of testtype {', '.join(sorted(kinds)) or 'none'}: "
            "expected some, each with input and output, all of testtype stdin or all functional."
        )
    kind = kinds.pop()
    if kind in ("stdin", "stdin_stdout"):
        return ScriptTests(tuple(ScriptCase(str(case["input"]), str(case["output"])) for case in cases))
    if kind != "functional":
        raise ArcherError(
            f"The ground truth has test cases of testtype {kind!r}: expected stdin or functional."
        )
    function = function or _function_name(cases[0])
    if function is None:
        raise ArcherError(
            "The ground truth has functional test cases but does not say what to call: expected "
            "metadata.func_name or a starter_code with a method."
        )
    return CallTests(function, tuple(json.dumps([_arguments(case), _expected(case)]) for case in cases))


def _arguments(case: Mapping[str, Any]) -> list[Any]:
    return [_parse(line) for line in str(case["input"]).split("\n") if line.strip()]


def _expected(case: Mapping[str, Any]) -> Any:
    return _parse(case["output"]) if isinstance(case["output"], str) else case["output"]


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # also an integer of more digits than Python reads
        raise ArcherError(
            f"A functional test case holds {text!r:.100}, which is not JSON: {error}. Expected one JSON "
            "value a line in input, and one in output."
        ) from error


def _function_name(record: Mapping[str, Any]) -> str | None:
    metadata = record.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = _parse(metadata)
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
