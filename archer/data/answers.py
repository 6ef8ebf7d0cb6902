"""What kind of answer a ground truth is: for statistics, not for judging."""

import json
import re
from typing import Any

_KINDS = (
    ("integer", re.compile(r"[+-]?[0-9][0-9,]*")),
    ("decimal", re.compile(r"[+-]?[0-9,]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")),
    ("fraction", re.compile(r"[+-]?(?:[0-9]+/[0-9]+|\\[dt]?frac\{?[0-9]+\}?\{?[0-9]+\}?)")),
    ("tuple, set or interval", re.compile(r"(?:\\left)?\s*(?:[(\[]|\\\{).*,.*(?:[)\]]|\\\})", re.DOTALL)),
    ("list", re.compile(r"[^{}]*,.*", re.DOTALL)),
    ("choice", re.compile(r"\(?[A-E]\)?")),
    ("text", re.compile(r"(?:\\text\{[^{}]*\}|[A-Za-z][A-Za-z .'-]+)")),
)


def answer_kind(ground_truth: Any) -> str:
    """The kind of a ground truth: integer, fraction, expression, stdin tests, ..."""
    if isinstance(ground_truth, bool) or ground_truth is None:
        return "other"
    if isinstance(ground_truth, int | float):
        return "integer" if float(ground_truth).is_integer() else "decimal"
    if isinstance(ground_truth, list):
        return "several answers"
    if not isinstance(ground_truth, str):
        return "other"
    text = ground_truth.strip()
    if text.startswith(("{", "[")) and (tests := _tests_kind(text)) is not None:
        return tests
    text = text.strip("$").strip()
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(text)), "expression")


def _tests_kind(text: str) -> str | None:
    try:
        tests = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(tests, dict):
        return None
    if "functional" in tests or "test" in tests:
        return "asserts"
    if "inputs" in tests:
        return "function tests" if tests.get("fn_name") else "stdin tests"
    return None
