"""Judging a data set's own solutions, as responses are judged in training.

A row whose solution fails gives every response the same reward, zero: its tests are wrong, need what the
sandbox does not give, or judge with what nobody defines. Rows may be prepared ones (verl's schema, with the
solution in `extra_info`) or a data set's own records.
"""

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from archer.data.files import Row, read_source
from archer.data.prepare.example import RowError
from archer.data.prepare.math_sets import gsm8k_row, math_row
from archer.errors import ArcherError
from archer.files import write_atomically
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.code.record import read_tests
from archer.rewards.config import CodeConfig
from archer.rewards.extract import extract_program
from archer.rewards.rules import find_rule
from archer.rewards.rules.code import CodeRule

SOLUTION_FIELDS = ("solution", "solutions", "canonical_solution", "completion", "code", "gold", "answer")
_FENCE = "`" * 3
_AT_ONCE = 16  # rows judged for each worker between two looks at the progress


@dataclass(frozen=True)
class GoldRow:
    """A row and its solution as a response, or why there is none."""

    index: int  # from 0
    where: str
    request: RewardRequest | None = None
    problem: str = ""


@dataclass(frozen=True)
class GoldVerdict:
    """What became of a row's solution."""

    index: int
    where: str
    verdict: Literal["passed", "failed", "cannot be judged"]
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether the solution is right by the row's own tests or answer."""
        return self.verdict == "passed"


def read_gold(path: Path, field: str | None, data_source: str | None, limit: int | None) -> list[GoldRow]:
    """Read the rows of a file with their solutions; `field` and `data_source` replace what rows say."""
    if not path.is_file():
        raise ArcherError(f"{path} does not exist. Give a .parquet, .jsonl or .json file.")
    rows = [
        _gold_row(index, row, field, data_source)
        for index, row in enumerate(islice(read_source(path), limit))
    ]
    if not rows:
        raise ArcherError(f"{path}: there are no rows.")
    return rows


def _gold_row(index: int, row: Row, field: str | None, data_source: str | None) -> GoldRow:
    try:
        if row.problem is not None:
            raise RowError(row.problem)
        request = _request(row.values, field, data_source)
    except (RowError, ArcherError) as error:
        return GoldRow(index, row.where, problem=str(error))
    return GoldRow(index, row.where, request)


def _request(values: Mapping[str, Any], field: str | None, data_source: str | None) -> RewardRequest:
    source, truth = _truth(values, data_source)
    solution = _solution(values, field)
    if find_rule(source) is CodeRule:
        return RewardRequest(source, _as_response(solution, values), truth)
    return RewardRequest(source, solution, truth)


def _truth(values: Mapping[str, Any], data_source: str | None) -> tuple[str, Any]:
    """Return the data source and the ground truth: a prepared row's, or what the record is read as."""
    model = values.get("reward_model")
    if isinstance(model, dict) and model.get("ground_truth") is not None:
        return data_source or str(values.get("data_source")), model["ground_truth"]
    try:
        read_tests(dict(values))
        return data_source or "code", dict(values)
    except ArcherError as error:
        no_tests = error
    try:
        convert = gsm8k_row if "####" in str(values.get("answer")) else math_row
        return data_source or "math", convert(values).ground_truth
    except RowError as error:
        raise RowError(f"neither tests nor an answer: {no_tests}; {error.reason}") from error


def _solution(values: Mapping[str, Any], field: str | None) -> str:
    """Return the solution, from the row, from its `extra_info`, or from the JSON in `extra_info.meta`."""
    names = (field,) if field is not None else SOLUTION_FIELDS
    for place in _places(values):
        for name in names:
            found = place.get(name)
            if isinstance(found, str) and found.lstrip()[:1] == "[":  # APPS has a JSON list of programs
                found = _json(found) or found
            if isinstance(found, list) and found:
                found = found[0]
            if isinstance(found, str) and found.strip():
                return found
    raise RowError(
        f"no solution: expected text in one of the fields {', '.join(names)}, or name it by --field"
    )


def _places(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    extra = values.get("extra_info")
    extra = extra if isinstance(extra, dict) else {}
    meta = _json(extra["meta"]) if isinstance(extra.get("meta"), str) else extra.get("meta")
    for place in (values, extra, meta):
        if isinstance(place, dict):
            yield place


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _as_response(solution: str, values: Mapping[str, Any]) -> str:
    """Return the program as a response would give it; HumanEval's solutions are the end of their prompt."""
    if extract_program(solution) is not None:
        return solution
    record = values
    model = values.get("reward_model")
    if isinstance(model, dict):
        record = _json(str(model["ground_truth"])) or {}
    entry, prompt = record.get("entry_point"), record.get("prompt")
    if isinstance(entry, str) and isinstance(prompt, str) and not _defines(solution, entry):
        solution = f"{prompt.rstrip()}\n{solution}"
    longest = max((len(line) - len(line.lstrip("`")) for line in solution.split("\n")), default=0)
    fence = _FENCE + "`" * longest
    return f"{fence}python\n{solution}\n{fence}"


def _defines(program: str, name: str) -> bool:
    try:
        body = ast.parse(program).body
    except (SyntaxError, ValueError):
        return False
    return any(getattr(each, "name", None) == name for each in body)


def check_gold(
    rows: list[GoldRow], workers: int, test_timeout_s: float, progress: Callable[[int], object]
) -> list[GoldVerdict]:
    """Judge the rows' solutions in parallel, in order; `progress` is told how many are done."""
    verdicts: list[GoldVerdict] = []
    config = RewardConfig(num_workers=workers, code=CodeConfig(test_timeout_s=test_timeout_s))
    with RewardScorer(config) as scorer:
        for start in range(0, len(rows), workers * _AT_ONCE):
            some = rows[start : start + workers * _AT_ONCE]
            verdicts += _judge(scorer, some)
            progress(len(verdicts))
    return verdicts


def _judge(scorer: RewardScorer, rows: list[GoldRow]) -> Iterator[GoldVerdict]:
    checked: dict[int, str] = {}
    for row in rows:
        try:
            if row.request is not None:
                scorer.check(row.request.data_source, row.request.ground_truth)
        except ArcherError as error:
            checked[row.index] = str(error)
    usable = [row for row in rows if row.request is not None and row.index not in checked]
    results = iter(scorer.score([row.request for row in usable if row.request is not None]))
    for row in rows:
        reason = row.problem or checked.get(row.index)
        if reason:
            yield GoldVerdict(row.index, row.where, "cannot be judged", reason)
            continue
        result = next(results)
        if result.failure is not None:
            yield GoldVerdict(row.index, row.where, "cannot be judged", result.failure)
        elif result.correct:
            yield GoldVerdict(row.index, row.where, "passed")
        else:
            yield GoldVerdict(row.index, row.where, "failed", result.detail or "not the row's answer")


def report_lines(verdicts: list[GoldVerdict]) -> Iterator[str]:
    """Yield a line for every row that did not pass, and the summary."""
    for each in verdicts:
        if not each.passed:
            yield f"row {each.index} ({each.where}): {each.verdict}: {' '.join(each.reason.split())[:300]}"
    counts = {kind: sum(each.verdict == kind for each in verdicts) for kind in ("passed", "failed")}
    rest = len(verdicts) - sum(counts.values())
    share = counts["passed"] / len(verdicts)
    yield (
        f"{counts['passed']:,} of {len(verdicts):,} solutions passed ({share:.1%}), "
        f"{counts['failed']:,} failed, {rest:,} cannot be judged"
    )


def write_verdicts(output: Path, file: Path, verdicts: list[GoldVerdict]) -> None:
    """Write all verdicts as JSON."""
    found: dict[str, Any] = {
        "file": file.name,
        "rows": len(verdicts),
        "passed": sum(each.passed for each in verdicts),
    }
    text = json.dumps(
        {**found, "verdicts": [asdict(each) for each in verdicts]}, indent=1, ensure_ascii=False
    )
    write_atomically(output.expanduser(), f"{text}\n")
