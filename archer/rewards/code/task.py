"""The judgement of one program as a task for a worker process."""

import logging
from dataclasses import dataclass
from functools import cache

from archer.errors import ArcherError
from archer.rewards.code.config import CodeConfig
from archer.rewards.code.grade import grade
from archer.rewards.code.inside.layers import ProgramLimits
from archer.rewards.code.problem import Tests
from archer.rewards.code.sandbox import Sandbox, SandboxError
from archer.rewards.types import RewardResult

_logger = logging.getLogger(__name__)


@cache
def _own_sandbox(limits: ProgramLimits) -> Sandbox:
    """Return this process's sandbox: a worker keeps it for all its tasks."""
    return Sandbox(limits)


@dataclass(frozen=True)
class StartSandbox:
    """Starts a worker's sandbox before its first task."""

    config: CodeConfig

    def __call__(self) -> None:
        """Start it, in the worker."""
        _own_sandbox(self.config.limits)


@dataclass(frozen=True)
class CodeTask:
    """A program and the tests to judge it by, for a worker process."""

    program: str
    tests: Tests
    config: CodeConfig

    def run(self) -> RewardResult:
        """Judge the program. A sandbox that fails is replaced for the next task."""
        sandbox = _own_sandbox(self.config.limits)
        try:
            verdict = grade(self.program, self.tests, self.config, sandbox)
        except SandboxError:
            _own_sandbox.cache_clear()
            sandbox.close()
            raise
        return verdict.to_result(self.config.partial_credit)


def check_sandbox(config: CodeConfig) -> None:
    """Start a sandbox once, say which layers it has, and refuse to go on with too few of them."""
    try:
        with Sandbox(config.limits) as sandbox:
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
