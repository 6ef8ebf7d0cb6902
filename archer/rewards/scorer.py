"""Scoring a batch of responses: what is certain at once here, everything else in worker processes."""

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archer.errors import ArcherError, masked
from archer.rewards.combine import WeightedRule, combine, custom_parts
from archer.rewards.config import RewardConfig
from archer.rewards.pool import WorkerPool
from archer.rewards.rules import (
    NO_OPINION,
    RULES,
    RewardRequest,
    RewardResult,
    Rule,
    Task,
    Workers,
    find_rule,
)
from archer.rewards.rules.call import BatchTask, FunctionTask
from archer.rewards.rules.function import FunctionRule
from archer.rewards.worker import WorkerSetup

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardCounters:
    """How many responses were judged so far, and for how many of them judging failed."""

    total: int = 0
    timeouts: int = 0
    crashes: int = 0
    no_opinion: int = 0


class RewardScorer:
    """Judges responses by the custom functions that fit their data source, or else by its built-in rule.

    Everything the user may have got wrong about a function is found on construction; no process is
    started before a response needs one.

        with RewardScorer(RewardConfig(num_workers=8)) as scorer:
            results = scorer.score(requests)
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._counters = RewardCounters()
        self._rules: dict[Hashable, Rule] = {}  # by what made them
        self._pools: dict[Workers, WorkerPool] = {}
        self._custom = custom_parts(config)

    @property
    def counters(self) -> RewardCounters:
        """The counts since construction."""
        return self._counters

    def check(self, data_source: str, ground_truth: Any) -> None:
        """Raise the ArcherError that scoring such a row would raise: for data sets, before training."""
        for part in self._parts(data_source):
            part.rule.check(ground_truth)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """Judge every response, in order. Only bad data or settings raise; a poisonous response scores 0."""
        by_source = {source: self._parts(source) for source in {each.data_source for each in requests}}
        parts = [by_source[request.data_source] for request in requests]
        rules = [part.rule for of_request in parts for part in of_request]
        outcomes = [
            part.rule.judge(request)
            for request, of_request in zip(requests, parts, strict=True)
            for part in of_request
        ]
        settled = iter(self._settle(rules, outcomes))
        results = [
            self._with_answer(
                request, _without_secrets(combine(of_request, [next(settled) for _ in of_request]))
            )
            for request, of_request in zip(requests, parts, strict=True)
        ]
        self._count(results)
        return results

    def has_answers(self, data_source: str) -> bool:
        """Tell whether responses of a data source are judged by a final answer, which can be compared."""
        return self._rule(data_source).has_answers

    def answer(self, data_source: str, response: str) -> str | None:
        """Return a response's final answer; None if it gives none, or where something else is judged."""
        return self._rule(data_source).answer(response)

    def same_answers(self, data_source: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Tell for each pair of final answers whether the data source's rule takes them for the same.

        A comparison that fails or takes too long says no. Nothing of this is counted: no response is judged.
        """
        rule = self._rule(data_source)
        outcomes = [rule.same(answer, other) for answer, other in pairs]
        return [result.correct for result in self._settle([rule] * len(pairs), outcomes)]

    def close(self) -> None:
        """Kill the worker processes. A later `score` starts new ones."""
        for pool in self._pools.values():
            pool.close()

    def __enter__(self) -> "RewardScorer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _parts(self, data_source: str) -> tuple[WeightedRule, ...]:
        fitting = tuple(part for part in self._custom if part.judges(data_source))
        return fitting or (WeightedRule(self._made(find_rule(data_source))),)

    def _rule(self, data_source: str) -> Rule:
        """What compares final answers: of several the first that can."""
        rules = [part.rule for part in self._parts(data_source)]
        return next((rule for rule in rules if rule.has_answers), rules[0])

    def _made(self, maker: Any) -> Rule:
        if maker not in self._rules:
            self._rules[maker] = maker(self._config)
        return self._rules[maker]

    def _settle(self, rules: Sequence[Rule], outcomes: Sequence[RewardResult | Task]) -> list[RewardResult]:
        """Return the result of each outcome. Responses of a group often agree: equal tasks are run once."""
        done: dict[Hashable, RewardResult] = {}
        waiting: dict[Workers, dict[tuple[Hashable, ...], Task]] = {}  # by what their results are for
        together: dict[FunctionRule, list[int]] = {}
        keys: list[Any] = list(range(len(outcomes)))
        for index, (rule, outcome) in enumerate(zip(rules, outcomes, strict=True)):
            if isinstance(outcome, RewardResult):
                done[index] = outcome
                continue
            if isinstance(rule, FunctionRule) and rule.batched and isinstance(outcome, FunctionTask):
                together.setdefault(rule, []).append(index)
                continue
            if outcome.repeatable:
                keys[index] = outcome
            waiting.setdefault(rule.workers, {})[(keys[index],)] = outcome
        for rule, members in together.items():
            requests = tuple(outcomes[index].request for index in members)  # type: ignore[union-attr]
            task = BatchTask(rule.source, requests, rule.kwargs)
            waiting.setdefault(rule.workers, {})[tuple(members)] = task
        for workers, tasks in waiting.items():
            answers = self._pool(workers).run(list(tasks.values()))
            for members_of_task, results in zip(tasks, answers, strict=True):
                done |= zip(members_of_task, results, strict=True)
        return [done[key] for key in keys]

    def _pool(self, workers: Workers) -> WorkerPool:
        if workers not in self._pools:
            used = [part.rule for part in self._custom]
            if all(part.data_sources for part in self._custom):  # built-in rules judge the others
                used += [self._made(plugin.function) for plugin in RULES]
            steps = [step for rule in used if rule.workers == workers for step in rule.preparation]
            setup = WorkerSetup(
                workers.memory_limit_bytes, tuple(steps), workers.timeout_s if workers.concurrency else None
            )
            self._pools[workers] = WorkerPool(
                self._config.num_workers, workers.timeout_s, setup, workers.concurrency
            )
        return self._pools[workers]

    def _with_answer(self, request: RewardRequest, result: RewardResult) -> RewardResult:
        """Add the answer of a response whose judging failed: what it was may be why."""
        rule = self._rule(request.data_source)
        if result.failure is None or isinstance(rule, FunctionRule):
            return result
        return replace(result, extracted=rule.answer(request.response))

    def _count(self, results: list[RewardResult]) -> None:
        failures = [result.failure for result in results if result.failure is not None]
        timeouts, no_opinion = failures.count("timeout"), failures.count(NO_OPINION)
        self._counters = RewardCounters(
            total=self._counters.total + len(results),
            timeouts=self._counters.timeouts + timeouts,
            crashes=self._counters.crashes + len(failures) - timeouts - no_opinion,
            no_opinion=self._counters.no_opinion + no_opinion,
        )
        failures = [failure for failure in failures if failure != NO_OPINION]
        if failures:
            _logger.warning(
                "Judging failed for %d of %d responses; the first: %s",
                len(failures),
                len(results),
                failures[0],
            )


def _without_secrets(result: RewardResult) -> RewardResult:
    """What a function raises may repeat the key it was given."""
    return result if result.failure is None else replace(result, failure=masked(result.failure))


def overlong_penalty(length: int, max_response_length: int, buffer_len: int, penalty_factor: float) -> float:
    """Return what to add to a response's reward for its length, in [-penalty_factor, 0].

    Soft overlong shaping of DAPO: a response that comes close to the length limit loses reward gradually.
    With L the length, M the maximum, B the buffer and f the factor:

        0                     L ≤ M − B
        f · (M − B − L) / B   M − B < L ≤ M
        −f                    L > M

    B = 0 is the hard limit: nothing is taken from any response that fits.
    """
    if not 0 <= buffer_len <= max_response_length:
        raise ArcherError(
            f"The overlong buffer is {buffer_len} tokens, but must lie between 0 and the longest response "
            f"({max_response_length} tokens): set its len within that range."
        )
    if not penalty_factor >= 0:
        raise ArcherError(
            f"The overlong penalty_factor is {penalty_factor}, but must not be negative: "
            "it is the most that an overlong response loses."
        )
    excess = length - (max_response_length - buffer_len)
    if excess <= 0:
        return 0.0
    if excess >= buffer_len:
        return -penalty_factor
    return -penalty_factor * excess / buffer_len
