"""The rule for programs: found in a response, run in a sandbox on the tests of its problem."""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

from archer.errors import ArcherError
from archer.rewards.code import Tests, sample_tests
from archer.rewards.code.grade import grade, no_program
from archer.rewards.code.record import read_tests
from archer.rewards.config import CodeConfig, RewardConfig
from archer.rewards.extract import extract_program
from archer.rewards.rules import RULES, RewardRequest, RewardResult, Rule, Task, Workers
from archer.rewards.sandbox import Sandbox, SandboxError
from archer.rewards.sandbox.confinement import ProgramLimits

_SOURCES = (
    "code humaneval* openai_humaneval* openai/openai_humaneval mbpp* google-research-datasets/mbpp* lcb* "
    "livecodebench* leetcode* apps taco* codecontests code_contests codeforces* primeintellect*"
)
_OUTPUT_BYTES = 16 * 2**20
_KEPT_PROBLEMS = 256  # those of a step's prompts: tests can be large, and are read once for a group
_GRACE_S = 60.0  # beyond the time of the tests, which the sandbox enforces: for a worker that hangs itself

_logger = logging.getLogger(__name__)


@RULES.register("code", sources=_SOURCES.split())
class CodeRule(Rule):
    """A program that passes its tests, run in a sandbox."""

    def __init__(self, config: RewardConfig) -> None:
        super().__init__(config)
        self.preparation: tuple[Callable[[], object], ...] = (
            partial(_own_sandbox, program_limits(config.code)),
        )
        self._problems: OrderedDict[str, Tests] = OrderedDict()
        self._sandbox_checked = False

    @property
    def workers(self) -> Workers:
        """Processes with a sandbox each, which bounds memory and time itself."""
        return Workers("sandbox", self.config.code.total_timeout_s + _GRACE_S, memory_limit_bytes=None)

    def check(self, ground_truth: Any) -> None:
        """Refuse a ground truth without tests, and a machine without a sandbox."""
        read_tests(ground_truth)
        self._check_sandbox()

    def judge(self, request: RewardRequest) -> RewardResult | Task:
        """Return the result of a response without a program, else the task that will give the result."""
        tests = self._tests(request.ground_truth)
        program = extract_program(request.response)
        if program is None:
            return no_program(tests).to_result(self.config.code.partial_credit)
        self._check_sandbox()
        return CodeTask(program, tests, self.config.code)

    def _tests(self, ground_truth: Any) -> Tests:
        key = ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth, default=repr)
        if key not in self._problems:
            self._problems[key] = sample_tests(read_tests(ground_truth), self.config.code.max_tests)
            if len(self._problems) > _KEPT_PROBLEMS:
                self._problems.popitem(last=False)
        self._problems.move_to_end(key)
        return self._problems[key]

    def _check_sandbox(self) -> None:
        if not self._sandbox_checked:
            check_sandbox(self.config.code)
            self._sandbox_checked = True


@dataclass(frozen=True)
class CodeTask:
    """A program and the tests to judge it by, for a worker process."""

    program: str
    tests: Tests
    config: CodeConfig
    repeatable: ClassVar[bool] = True

    def run(self) -> RewardResult:
        """Judge the program. A sandbox that fails is replaced for the next task."""
        sandbox = _own_sandbox(program_limits(self.config))
        try:
            verdict = grade(self.program, self.tests, self.config, sandbox)
        except SandboxError:
            _own_sandbox.cache_clear()
            sandbox.close()
            raise
        return verdict.to_result(self.config.partial_credit)


def program_limits(config: CodeConfig) -> ProgramLimits:
    """Return what the sandbox enforces."""
    return ProgramLimits(memory_bytes=config.memory_mb * 2**20, output_bytes=_OUTPUT_BYTES)


@cache
def _own_sandbox(limits: ProgramLimits) -> Sandbox:
    """Return this process's sandbox: a worker keeps it for all its tasks."""
    return Sandbox(limits)


def check_sandbox(config: CodeConfig) -> None:
    """Start a sandbox once, log which layers it has, and refuse to continue with too few of them."""
    try:
        with Sandbox(program_limits(config)) as sandbox:
            layers = sandbox.layers
    except SandboxError as error:
        raise ArcherError(
            f"No sandbox for model-written code can be started: {error}. A small reward.code.memory_mb is "
            "one cause."
        ) from error
    _logger.info("Sandbox for model-written code: %s.", layers.describe())
    if layers.isolated:
        return
    problem = f"The sandbox for model-written code is weak here: {layers.describe()}."
    if not config.allow_weak_sandbox:
        raise ArcherError(
            f"{problem} Programs could reach this user's files or the network. Allow user namespaces (in a "
            "container: --cap-add=SYS_ADMIN or a seccomp profile that permits unshare), use Linux 5.13 or "
            "newer, or accept it with reward.code.allow_weak_sandbox=true."
        )
    _logger.warning("%s It was allowed by reward.code.allow_weak_sandbox.", problem)
