"""`reward.*`: how responses are judged. Nothing but declarations is imported here."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar

from archer.errors import ArcherError
from archer.settings import Section, SettingError, knob, section

_WITHOUT_CUSTOM = "reward.custom_reward_function.path=None or reward.custom_reward_function.data_source"


@dataclass(frozen=True)
class CustomRewardConfig(Section):
    """A custom reward function."""

    path: str | None = knob(None, "Python file that holds the function; it judges what data_source names")
    name: str = knob("compute_score", "its name; called as in verl, or as in TRL", needs="path")
    data_source: tuple[str, ...] = knob(
        (),
        "data sources that it judges, or prefixes that end in `*`; the others keep their built-in rule; "
        "empty: it judges every response",
        needs="path",
    )
    weight: float = knob(1.0, "its part in the score: the sum of weight times score", needs="path")
    batched: bool = knob(
        False, "call it once with lists of all responses, as TRL does, not once for each", needs="path"
    )
    max_concurrency: int = knob(
        64, "calls of an `async def` that may wait at the same time", at_least=1, needs="path; batched=False"
    )
    reward_kwargs: dict[str, Any] = knob({}, "extra arguments of this function", needs="path")

    def __post_init__(self) -> None:
        """Take a single data source for a list of one."""
        if isinstance(self.data_source, str):
            object.__setattr__(self, "data_source", (self.data_source,))
        super().__post_init__()
        bad = [name for name in self.data_source if not name or "*" in name[:-1]]
        if bad:
            raise SettingError([("data_source", bad[0], "a full name, or a prefix with * at its end")])


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
        needs=_WITHOUT_CUSTOM,
    )
    custom_reward_function: CustomRewardConfig = section(CustomRewardConfig)
    custom_kwargs: dict[str, Any] = knob(
        {}, "extra arguments of the custom function", needs="reward.custom_reward_function.path"
    )
    custom_reward_functions: tuple[dict[str, Any], ...] = knob(
        (), "several functions: a list of {path, name, weight, ...}, as under reward.custom_reward_function"
    )
    code: CodeConfig = section(CodeConfig, needs=_WITHOUT_CUSTOM)
    reward_kwargs: RewardKwargs = section(RewardKwargs)

    def __post_init__(self) -> None:
        """Refuse entries of the list that are no functions."""
        super().__post_init__()
        self.functions()

    def functions(self) -> tuple[CustomRewardConfig, ...]:
        """All custom functions: that of verl's single form, then those of the list."""
        single = self.custom_reward_function
        listed = [_function(number, entry) for number, entry in enumerate(self.custom_reward_functions)]
        return (*([single] if single.path is not None else []), *listed)


def _function(number: int, entry: Any) -> CustomRewardConfig:
    """Read one entry of `reward.custom_reward_functions`."""
    key = f"reward.custom_reward_functions[{number}]"
    if not isinstance(entry, Mapping) or not entry.get("path"):
        raise ArcherError(f"{key}={entry!r}: expected {{path: FILE.py, name: FUNCTION, weight: 1.0, ...}}.")
    known = {setting.name: setting for setting in fields(CustomRewardConfig)}
    for name in entry:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ArcherError(f"{key}.{name}: no such setting; it may have {', '.join(known)}.{hint}")
    values = dict(entry)
    if isinstance(values.get("data_source"), list):
        values["data_source"] = tuple(values["data_source"])
    for name, value in values.items():
        default = known[name].default if known[name].default is not MISSING else {}
        expected = (str,) if name in ("path", "name") else (type(default),)
        allowed = {float: (int, float), tuple: (tuple, str)}.get(expected[0], expected)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            kind = {float: "a number", int: "a whole number", bool: "True or False", dict: "key: value pairs"}
            raise ArcherError(f"{key}.{name}={value!r}: expected {kind.get(expected[0], 'text')}.")
    try:
        return CustomRewardConfig(**values)
    except SettingError as error:
        problems = [f"{key}.{name}={value}: must be {text}" for name, value, text in error.problems]
        raise ArcherError("\n".join(problems)) from error
