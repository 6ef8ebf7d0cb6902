"""`reward.*`: how responses are judged."""

from dataclasses import dataclass, field
from typing import Any

from archer.config.knob import knob, section


@dataclass(frozen=True)
class CustomRewardConfig:
    """A reward function of one's own."""

    path: str | None = knob(None, "Python file that holds the function")
    name: str = knob("compute_score", "its name; called as in verl")


@dataclass(frozen=True)
class OverlongBufferConfig:
    """DAPO's soft penalty for responses close to the length limit."""

    enable: bool = knob(False, "subtract a penalty that grows over the last `len` tokens before the limit")
    len: int = knob(0, "length of that buffer, in tokens")
    penalty_factor: float = knob(1.0, "penalty at the limit")


@dataclass(frozen=True)
class RewardKwargs:
    """Shaping of the reward."""

    overlong_buffer_cfg: OverlongBufferConfig = section(OverlongBufferConfig)


@dataclass(frozen=True)
class CodeRewardConfig:
    """Programs and their tests."""

    test_timeout_s: float = knob(6.0, "seconds for one test: a run on an input, or a call")
    total_timeout_s: float = knob(60.0, "seconds for all tests of one response")
    memory_mb: int = knob(1024, "memory a program may use, in MiB of address space")
    max_tests: int | None = knob(None, "use at most so many tests of a problem, always the same ones")
    partial_credit: bool = knob(False, "score the share of tests passed; right is still: all passed")
    allow_weak_sandbox: bool = knob(
        False, "run programs also where nothing keeps them from files and the network"
    )


@dataclass(frozen=True)
class RewardSection:
    """Verification of responses."""

    num_workers: int = knob(2, "worker processes that verify answers")
    timeout_s: float = knob(10.0, "seconds one verification may take; then it scores 0 and is counted")
    last_number_fallback: bool = knob(False, "take the last number when there is no \\boxed{} answer")
    custom_reward_function: CustomRewardConfig = section(CustomRewardConfig)
    custom_kwargs: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "extra arguments of the custom function"}
    )
    code: CodeRewardConfig = section(CodeRewardConfig)
    reward_kwargs: RewardKwargs = section(RewardKwargs)
