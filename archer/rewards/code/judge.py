"""Judging responses that are programs: finding them, reading their tests, and the workers that run them."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from archer.rewards.code.config import CodeConfig
from archer.rewards.code.extract import extract_program
from archer.rewards.code.grade import no_program
from archer.rewards.code.problem import Tests
from archer.rewards.code.record import read_tests
from archer.rewards.code.sampling import sample_tests
from archer.rewards.code.task import CodeTask, StartSandbox, check_sandbox
from archer.rewards.pool import WorkerPool
from archer.rewards.types import RewardResult
from archer.rewards.worker import WorkerSetup

_KEPT_PROBLEMS = 256  # those of a step's prompts: tests can be large, and are read once for a group
_GRACE_S = 60.0  # beyond the time of the tests, which the sandbox enforces: for a worker that hangs itself


class CodeJudge:
    """Turns responses into programs with their tests, and has worker processes judge these."""

    def __init__(self, config: CodeConfig, workers: int) -> None:
        self._config = config
        self._problems: OrderedDict[str, Tests] = OrderedDict()
        self._sandbox_checked = False
        setup = WorkerSetup(memory_limit_bytes=None, prepare=StartSandbox(config))
        self._pool = WorkerPool(workers, config.total_timeout_s + _GRACE_S, setup)

    def check(self, ground_truth: Any) -> None:
        """Raise the ArcherError that judging such a row would raise, also for want of a sandbox."""
        read_tests(ground_truth)
        self._check_sandbox()

    def judge(self, response: str, ground_truth: Any) -> RewardResult | CodeTask:
        """Return the result of a response without a program, else the task that will give the result."""
        tests = self._tests(ground_truth)
        program = extract_program(response)
        if program is None:
            return no_program(tests).to_result(self._config.partial_credit)
        return CodeTask(program, tests, self._config)

    def run(self, tasks: Sequence[CodeTask]) -> list[RewardResult]:
        """Judge programs in parallel."""
        if tasks:
            self._check_sandbox()
        return self._pool.run(tasks)

    def close(self) -> None:
        """Kill the worker processes and what runs in their sandboxes."""
        self._pool.close()

    def _check_sandbox(self) -> None:
        if not self._sandbox_checked:
            check_sandbox(self._config)
            self._sandbox_checked = True

    def _tests(self, ground_truth: Any) -> Tests:
        key = ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth, default=repr)
        if key not in self._problems:
            self._problems[key] = sample_tests(read_tests(ground_truth), self._config.max_tests)
            if len(self._problems) > _KEPT_PROBLEMS:
                self._problems.popitem(last=False)
        self._problems.move_to_end(key)
        return self._problems[key]
