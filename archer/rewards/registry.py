"""Which rule judges the responses of which data source."""

from collections.abc import Callable
from enum import Enum
from fnmatch import fnmatchcase
from typing import TypeVar

from archer.errors import ArcherError
from archer.rewards.custom import FunctionSource, ModuleFunction, RewardFunction, check_function


class BuiltinRule(Enum):
    """The rules that come with the package. They score 1 for a right response and 0 otherwise."""

    MATH = "math"
    """Equal as strings, as numbers, or by algebra."""
    NUMERIC = "numeric"
    """Equal as strings or as numbers; no algebra, hence no worker process."""
    CODE = "code"
    """A program that passes its tests, run in a sandbox."""


Rule = BuiltinRule | FunctionSource

_rules: dict[str, Rule] = {
    "arithmetic": BuiltinRule.NUMERIC,
    "openai/gsm8k": BuiltinRule.MATH,
    "gsm8k": BuiltinRule.MATH,
    "math": BuiltinRule.MATH,
    "math500": BuiltinRule.MATH,
    "math_dapo*": BuiltinRule.MATH,
    "DAPO*": BuiltinRule.MATH,
    "open-r1/DAPO*": BuiltinRule.MATH,
    "BytedTsinghua-SIA/DAPO*": BuiltinRule.MATH,
    "lighteval/MATH*": BuiltinRule.MATH,
    "DigitalLearningGmbH/MATH*": BuiltinRule.MATH,
    "HuggingFaceH4/MATH*": BuiltinRule.MATH,
    "HuggingFaceH4/aime*": BuiltinRule.MATH,
    "aime*": BuiltinRule.MATH,
    "amc*": BuiltinRule.MATH,
    "minerva*": BuiltinRule.MATH,
    "olympiad*": BuiltinRule.MATH,
    "numina*": BuiltinRule.MATH,
    "mawps*": BuiltinRule.MATH,
    "deepscaler*": BuiltinRule.MATH,
    "code": BuiltinRule.CODE,
    "humaneval*": BuiltinRule.CODE,
    "openai_humaneval*": BuiltinRule.CODE,
    "openai/openai_humaneval": BuiltinRule.CODE,
    "mbpp*": BuiltinRule.CODE,
    "google-research-datasets/mbpp*": BuiltinRule.CODE,
    "livecodebench*": BuiltinRule.CODE,
    "lcb*": BuiltinRule.CODE,
    "leetcode*": BuiltinRule.CODE,
    "apps": BuiltinRule.CODE,
    "taco*": BuiltinRule.CODE,
    "codecontests": BuiltinRule.CODE,
    "code_contests": BuiltinRule.CODE,
    "codeforces*": BuiltinRule.CODE,
    "primeintellect*": BuiltinRule.CODE,
}

_Function = TypeVar("_Function", bound=RewardFunction)


def known_sources() -> list[str]:
    """Return the registered names and patterns, sorted."""
    return sorted(_rules)


def registered_functions() -> tuple[FunctionSource, ...]:
    """Return the users' functions in the registry."""
    return tuple(rule for rule in _rules.values() if not isinstance(rule, BuiltinRule))


def find_rule(data_source: str) -> Rule:
    """Return the rule for a data source: by its exact name, else by the longest pattern that fits."""
    if data_source in _rules:
        return _rules[data_source]
    fitting = [name for name in _rules if name.endswith("*") and fnmatchcase(data_source, name)]
    if fitting:
        return _rules[max(fitting, key=len)]
    raise ArcherError(
        f"No reward is known for data_source {data_source!r}. Known: {', '.join(known_sources())}. "
        "Use one of these in the data, or give your own function: reward.custom_reward_function.path=FILE.py "
        "reward.custom_reward_function.name=FUNCTION (from Python: archer.rewards.register_reward)."
    )


def register_reward(name: str) -> Callable[[_Function], _Function]:
    """Register a function, called as a custom reward function is, for a data source.

    A name that ends in `*` stands for all data sources that begin so. The function must be at the top level
    of an importable module, because worker processes import it from there.
    """

    def register(function: _Function) -> _Function:
        source = ModuleFunction(function.__module__, function.__qualname__)
        if source.module == "__main__" or not source.name.isidentifier():
            raise ArcherError(
                f"The reward function {source} for {name!r} cannot be imported by worker processes. "
                "Define it with def at the top level of a module of its own, or give its file as "
                "reward.custom_reward_function.path."
            )
        if "*" in name[:-1] or not name:
            raise ArcherError(f"{name!r} is no data source: give a full name, or a prefix with * at its end.")
        if _rules.get(name, source) != source:
            raise ArcherError(
                f"{name!r} already has a reward ({_rules[name]}); register yours under another name."
            )
        check_function(function, str(source), {})
        _rules[name] = source
        return function

    return register
