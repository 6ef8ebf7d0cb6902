"""Scoring a batch of responses: what is certain at once here, everything else in worker processes."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from archer.errors import ArcherError
from archer.rewards.boxed import extract_answer
from archer.rewards.code.config import CodeConfig
from archer.rewards.code.judge import CodeJudge
from archer.rewards.code.task import CodeTask
from archer.rewards.custom import FileFunction, FunctionSource, FunctionTask, check_function
from archer.rewards.math import MathTask, fast_verdict, reference_answers
from archer.rewards.math.symbolic import load_math_verify
from archer.rewards.pool import WorkerPool
from archer.rewards.registry import BuiltinRule, Rule, find_rule, registered_functions
from archer.rewards.types import RewardRequest, RewardResult, Task
from archer.rewards.worker import WorkerSetup

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardConfig:
    """How responses are judged."""

    workers: int = 4
    """The most worker processes at a time."""
    timeout_s: float = 5.0
    """The most seconds that one response may take; then it scores 0."""
    memory_limit_gb: float | None = 4.0
    """The most memory a worker may allocate; None for no limit."""
    last_number_fallback: bool = False
    r"""Take the last number of a response without \boxed{} as its answer."""
    custom_path: str | None = None
    """A Python file with a reward function, which then judges every data source."""
    custom_name: str = "compute_score"
    """The name of that function."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments for that function."""
    code: CodeConfig = field(default_factory=CodeConfig)
    """How programs are judged."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ArcherError(f"Rewards need at least one worker process, not {self.workers}.")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ArcherError(
                f"The reward timeout must be a positive number of seconds, not {self.timeout_s}."
            )
        if self.memory_limit_gb is not None and not self.memory_limit_gb > 0:
            raise ArcherError(
                f"The reward memory limit must be positive or none, not {self.memory_limit_gb} GB."
            )


@dataclass(frozen=True)
class RewardCounters:
    """How many responses were judged so far, and for how many of them judging failed."""

    total: int = 0
    timeouts: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class _Preparation:
    """Loads in a worker what its tasks will use, before any task's time runs."""

    functions: tuple[FunctionSource, ...]
    algebra: bool

    def __call__(self) -> None:
        if self.algebra:
            load_math_verify()
        for function in self.functions:
            function.load()


class RewardScorer:
    """Judges responses by their data source, or all by one custom function.

    Everything the user may have got wrong about the function is found on construction; no process is
    started before a response needs one.

        with RewardScorer(RewardConfig(workers=8)) as scorer:
            results = scorer.score(requests)
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._custom: FileFunction | None = None
        self._counters = RewardCounters()
        self._pool: WorkerPool | None = None
        self._code = CodeJudge(config.code, config.workers)
        if config.custom_path is not None:
            self._custom = FileFunction(
                str(Path(config.custom_path).expanduser().resolve()), config.custom_name
            )
            check_function(self._custom.load(), str(self._custom), config.kwargs)

    @property
    def counters(self) -> RewardCounters:
        """The counts since construction."""
        return self._counters

    def check(self, data_source: str, ground_truth: Any) -> None:
        """Raise the ArcherError that scoring such a row would raise: for data sets, before training."""
        rule = self._rule(data_source)
        if rule is BuiltinRule.CODE:
            self._code.check(ground_truth)
        elif isinstance(rule, BuiltinRule):
            reference_answers(ground_truth)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """Judge every response, in order. Only bad data or settings raise; a poisonous response scores 0."""
        outcomes = [self._judge(request) for request in requests]
        # Responses of a group often agree: the same algebra is done and the same program run once. A user's
        # function is called for each.
        keys = [
            outcome if isinstance(outcome, MathTask | CodeTask) else index
            for index, outcome in enumerate(outcomes)
        ]
        tasks: dict[MathTask | CodeTask | int, Task] = {
            key: outcome
            for key, outcome in zip(keys, outcomes, strict=True)
            if not isinstance(outcome, RewardResult)
        }
        done = dict(zip(tasks, self._run(list(tasks.values())), strict=True))
        results = [
            outcome if isinstance(outcome, RewardResult) else done[key]
            for key, outcome in zip(keys, outcomes, strict=True)
        ]
        self._count(results)
        return results

    def has_answers(self, data_source: str) -> bool:
        """Tell whether responses of a data source are judged by a final answer, which can be compared."""
        return self._rule(data_source) in (BuiltinRule.MATH, BuiltinRule.NUMERIC)

    def answer(self, data_source: str, response: str) -> str | None:
        """Return a response's final answer; None if it gives none, or where something else is judged."""
        if not self.has_answers(data_source):
            return None
        return extract_answer(response, self._config.last_number_fallback)

    def same_answers(self, data_source: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Tell for each pair of final answers whether the data source's rule takes them for the same.

        A comparison that fails or takes too long says no. Nothing of this is counted: no response is judged.
        """
        algebra = self._rule(data_source) is BuiltinRule.MATH
        verdicts = [fast_verdict(answer, (other,)) for answer, other in pairs]
        tasks = {
            index: MathTask(pairs[index][0], (pairs[index][1],))
            for index, verdict in enumerate(verdicts)
            if verdict is None and algebra
        }
        done = dict(zip(tasks, self._run(list(tasks.values())) if tasks else [], strict=True))
        return [
            done[index].correct if index in done else bool(verdict) for index, verdict in enumerate(verdicts)
        ]

    def close(self) -> None:
        """Kill the worker processes. A later `score` starts new ones."""
        self._code.close()
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> "RewardScorer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _rule(self, data_source: str) -> Rule:
        return find_rule(data_source) if self._custom is None else self._custom

    def _judge(self, request: RewardRequest) -> RewardResult | MathTask | CodeTask | FunctionTask:
        """Return the result if it is certain at once, else the task that will give it."""
        rule = self._rule(request.data_source)
        if not isinstance(rule, BuiltinRule):
            return FunctionTask(rule, request, self._config.kwargs if rule is self._custom else {})
        if rule is BuiltinRule.CODE:
            return self._code.judge(request.response, request.ground_truth)
        references = reference_answers(request.ground_truth)
        answer = extract_answer(request.response, self._config.last_number_fallback)
        verdict = fast_verdict(answer, references)
        if verdict is None and rule is BuiltinRule.MATH and answer is not None:
            return MathTask(answer, references)
        return RewardResult.of_verdict(bool(verdict))

    def _run(self, tasks: list[Task]) -> list[RewardResult]:
        programs = {index: task for index, task in enumerate(tasks) if isinstance(task, CodeTask)}
        others = {index: task for index, task in enumerate(tasks) if index not in programs}
        done = dict(zip(programs, self._code.run(list(programs.values())), strict=True))
        done |= dict(zip(others, self._run_pool(list(others.values())), strict=True))
        return [done[index] for index in range(len(tasks))]

    def _run_pool(self, tasks: list[Task]) -> list[RewardResult]:
        if self._pool is None:
            limit = self._config.memory_limit_gb
            functions = registered_functions() if self._custom is None else (self._custom,)
            setup = WorkerSetup(
                memory_limit_bytes=None if limit is None else int(limit * 2**30),
                prepare=_Preparation(functions, algebra=self._custom is None),
            )
            self._pool = WorkerPool(self._config.workers, self._config.timeout_s, setup)
        return self._pool.run(tasks)

    def _count(self, results: list[RewardResult]) -> None:
        failures = [result.failure for result in results if result.failure is not None]
        timeouts = failures.count("timeout")
        self._counters = RewardCounters(
            total=self._counters.total + len(results),
            timeouts=self._counters.timeouts + timeouts,
            crashes=self._counters.crashes + len(failures) - timeouts,
        )
        if failures:
            _logger.warning(
                "Judging failed for %d of %d responses, which score 0; the first: %s",
                len(failures),
                len(results),
                failures[0],
            )
