r"""Math problems with a final answer: a question, and an answer that `\boxed{}` is compared with."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from archer.data.prepare.example import Example, RowError, kept, text_field
from archer.errors import ArcherError
from archer.rewards.extract import last_boxed
from archer.rewards.math import reference_answers

MAX_ANSWER_CHARS = 2000
QUESTION_FIELDS = ("problem", "question", "input", "prompt")
ANSWER_FIELDS = ("answer", "final_answer", "target", "expected_answer")
META_FIELDS = ("subject", "type", "subfield", "level", "difficulty", "year", "url", "unit", "answer_type")
ID_FIELDS = ("unique_id", "id", "ID", "problem_id")
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_DAPO_HEAD = re.compile(r"\ASolve the following math problem step by step\..*?\n\n", re.DOTALL)
_DAPO_TAIL = re.compile(r"\n\nRemember to put your answer on its own line after \"Answer:\"\.?\s*\Z")


def math_row(values: Mapping[str, Any]) -> Example:
    r"""A question with its answer; without an answer field, the last `\boxed{}` of the solution is taken."""
    question = text_field(values, *QUESTION_FIELDS)
    name = next((name for name in ANSWER_FIELDS if values.get(name) is not None), None)
    answer = last_boxed(text_field(values, "solution")) if name is None else answer_text(values[name], name)
    if answer is None:
        raise RowError("no answer, and the solution has no closed \\boxed{}")
    return Example(question, checked(answer), _identifier(values, *ID_FIELDS), kept(values, *META_FIELDS))


def aime_row(values: Mapping[str, Any]) -> Example:
    """A question whose answer is an integer of 0 to 999; AIME writes 25 as 025."""
    row = math_row(values)
    if not re.fullmatch(r"-?[0-9]+", row.ground_truth):
        raise RowError("answer is not an integer")
    number = int(row.ground_truth)
    if not 0 <= number <= 999:
        raise RowError("answer is not in 0 ... 999")
    return replace(row, ground_truth=str(number))


def arithmetic_row(values: Mapping[str, Any]) -> Example:
    """The built-in sums; the operands are kept."""
    return replace(math_row(values), meta=kept(values, "a", "b"))


def gsm8k_row(values: Mapping[str, Any]) -> Example:
    """OpenAI's rows: the answer is a worked solution, its last line `#### 1,234`."""
    question, solution = text_field(values, "question"), text_field(values, "answer")
    if "####" not in solution:
        raise RowError("answer has no #### line")
    worked, _, final = solution.rpartition("####")
    number = final.strip().replace(",", "").removeprefix("$")
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", number):
        raise RowError("what follows #### is not a number")
    return Example(question, number, meta={"solution": _CALCULATOR.sub("", worked).strip()})


def olympiad_row(values: Mapping[str, Any]) -> Example:
    """OlympiadBench: `final_answer` is a list of one text; a context, where there is one, goes first."""
    answers = values.get("final_answer")
    if not isinstance(answers, list) or len(answers) != 1:
        raise RowError("final_answer is not a list of one answer")
    row = math_row({**values, "final_answer": answers[0], "answer": None})
    context = values.get("context")
    before = f"{context.strip()}\n\n" if isinstance(context, str) and context.strip() else ""
    meta = {**row.meta, **kept(values, "is_multiple_answer", "error")}
    return replace(row, question=before + row.question, meta=meta)


def dapo_row(values: Mapping[str, Any]) -> Example:
    """DAPO-Math-17k as on the hub (text and solution) and as verl reads it (messages and reward_model).

    The instruction that the original wraps around each problem asks for a last line `Answer:`; it is taken
    off, so that the chosen instruction is the only one.
    """
    question = _DAPO_TAIL.sub("", _DAPO_HEAD.sub("", _dapo_question(values))).strip()
    if not question:
        raise RowError("prompt is empty")
    reward_model = values.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    if truth is not None:
        answer = answer_text(truth, "reward_model.ground_truth")
    else:
        answer = text_field(values, "solution")
    extra = values.get("extra_info")
    return Example(question, checked(answer), _identifier(extra if isinstance(extra, dict) else {}, "index"))


def _dapo_question(values: Mapping[str, Any]) -> str:
    prompt = values.get("prompt")
    if not isinstance(prompt, list):
        return text_field(values, "prompt")
    spoken = [message for message in prompt if isinstance(message, dict) and message.get("role") == "user"]
    if len(spoken) != 1 or len(prompt) > 2:
        raise RowError("prompt is not one user message")
    return text_field(spoken[0], "content")


def answer_text(value: Any, name: str) -> str:
    """An answer as text: integers that are written as floats (142.0) become integers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(f"{name} is {type(value).__name__}, not text or a number")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RowError(f"{name} is not finite")
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    text = str(value).strip()
    if not text:
        raise RowError(f"{name} is empty")
    return text


def checked(answer: str) -> str:
    """The answer, if a response could ever match it."""
    if len(answer) > MAX_ANSWER_CHARS:
        raise RowError(f"answer has more than {MAX_ANSWER_CHARS} characters")
    try:
        reference_answers(answer)
    except ArcherError as error:
        raise RowError("answer can never be matched") from error
    return answer


def _identifier(values: Mapping[str, Any], *names: str) -> str:
    return next((str(value) for value in kept(values, *names).values()), "")
