"""`reward.*`: how responses are judged. Nothing but declarations is imported here."""

from dataclasses import dataclass
from typing import Any, ClassVar

from archer.settings import Section, knob, section


@dataclass(frozen=True)
class CustomRewardConfig(Section):
    """A custom reward function."""

    path: str | None = knob(None, "Python file that holds the function, which then judges every response")
    name: str = knob("compute_score", "its name; called as in verl", needs="path")


@dataclass(frozen=True)
class OverlongBufferConfig(Section):
    """DAPO's soft penalty for responses close to the length limit."""

    switch: ClassVar[str] = "enable"

    enable: bool = knob(
        False, "subtract a penalty that grows over the last `len` tokens before the limit", needs="len"
    )
    len: int = knob(0, "length of that buffer, in tokens", at_least=0, unit="tokens")
    penalty_factor: float = knob(1.0, "penalty at the limit", at_least=0, needs="len")


@dataclass(frozen=True)
class RewardKwargs(Section):
    """Shaping of the reward."""

    overlong_buffer_cfg: OverlongBufferConfig = section(OverlongBufferConfig)


@dataclass(frozen=True)
class CodeConfig(Section):
    """Programs and their tests."""

    test_timeout_s: float = knob(6.0, "seconds for one test: a run on an input, or a call", above=0, unit="s")
    total_timeout_s: float = knob(60.0, "seconds for all tests of one response", above=0, unit="s")
    memory_mb: int = knob(
        1024,
        "memory a program may use, in MiB of address space; Python itself needs 64",
        at_least=64,
        unit="MiB",
    )
    max_tests: int | None = knob(
        None, "use at most so many tests of a problem, always the same ones", at_least=1
    )
    partial_credit: bool = knob(False, "score the share of tests passed; right is still: all passed")
    allow_weak_sandbox: bool = knob(
        False, "run programs also where nothing keeps them from files and the network"
    )


@dataclass(frozen=True)
class RewardConfig(Section):
    """Verification of responses."""

    num_workers: int = knob(2, "worker processes that verify answers", at_least=1)
    timeout_s: float = knob(
        10.0, "seconds one verification may take; then the response is unjudged", above=0, unit="s"
    )
    max_failed_share: float = knob(
        0.2,
        "share of a step's or a validation's responses that may stay unjudged; the run stops beyond it",
        at_least=0,
        at_most=1,
    )
    memory_limit_gb: float | None = knob(
        4.0, "memory that a worker process may allocate, in GiB; null for no limit", above=0, unit="GiB"
    )
    last_number_fallback: bool = knob(
        False,
        "take the last number when there is no \\boxed{} answer",
        needs="reward.custom_reward_function.path=None",
    )
    custom_reward_function: CustomRewardConfig = section(CustomRewardConfig)
    custom_kwargs: dict[str, Any] = knob(
        {}, "extra arguments of the custom function", needs="reward.custom_reward_function.path"
    )
    code: CodeConfig = section(CodeConfig, needs="reward.custom_reward_function.path=None")
    reward_kwargs: RewardKwargs = section(RewardKwargs)
