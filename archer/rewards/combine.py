"""Several reward functions for one response: which of them judge it, and one result of theirs.

The score is the sum of weight times score over the functions that have an opinion, as in TRL. A response is
right when all functions that say so by `acc` agree, else when its score is over 0. A function that fails
leaves the response unjudged: without its part the score would be on another scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from archer.files import real_path
from archer.rewards.config import CustomRewardConfig, RewardConfig
from archer.rewards.rules import NO_OPINION, RewardResult, Rule
from archer.rewards.rules.call import PATH_SETTING, FunctionSource
from archer.rewards.rules.function import FunctionRule

_LIST_SETTING = "reward.custom_reward_functions"


@dataclass(frozen=True)
class WeightedRule:
    """A rule that has a part in the score of some data sources."""

    rule: Rule
    weight: float = 1.0
    label: str = ""  # of its score among the extras, where a response is judged by several
    data_sources: tuple[str, ...] = ()  # empty: all

    def judges(self, data_source: str) -> bool:
        """Tell whether it has a part in the score of a data source."""
        return not self.data_sources or any(
            data_source == name or (name.endswith("*") and fnmatchcase(data_source, name))
            for name in self.data_sources
        )


def custom_parts(config: RewardConfig) -> tuple[WeightedRule, ...]:
    """Make the rules of all custom functions; what is wrong with one is found here."""
    functions = config.functions()
    return tuple(
        WeightedRule(_rule(config, function), function.weight, label, function.data_source)
        for function, label in zip(functions, _labels(functions), strict=True)
    )


def _rule(config: RewardConfig, function: CustomRewardConfig) -> FunctionRule:
    is_single = function is config.custom_reward_function
    path = str(real_path(Path(str(function.path)).expanduser()))
    source = FunctionSource(path, function.name, True, PATH_SETTING if is_single else _LIST_SETTING)
    kwargs = {**(config.custom_kwargs if is_single else {}), **function.reward_kwargs}
    return FunctionRule(config, source, kwargs, function.batched, function.max_concurrency)


def _labels(functions: Sequence[CustomRewardConfig]) -> list[str]:
    """A name for each: the function's, with that of its file and a number where these are not enough."""
    labels: list[str] = []
    names = [function.name for function in functions]
    for function in functions:
        unique = names.count(function.name) == 1
        label = function.name if unique else f"{Path(str(function.path)).stem}_{function.name}"
        labels.append(label if label not in labels else f"{label}_{len(labels) + 1}")
    return labels


def combine(parts: Sequence[WeightedRule], results: Sequence[RewardResult]) -> RewardResult:
    """Return one result of those of a response's parts; a rule that judges alone has said it all."""
    if len(parts) == 1 and parts[0].weight == 1:
        return results[0]
    extra = _extras(parts, results)
    failed = next((result for result in results if result.failure not in (None, NO_OPINION)), None)
    if failed is not None:
        return replace(failed, extra=extra)
    judged = [(part, result) for part, result in zip(parts, results, strict=True) if result.failure is None]
    if not judged:
        return replace(RewardResult.of_failure(NO_OPINION), extra=extra)
    score = sum(part.weight * result.score for part, result in judged)
    verdicts = [result.correct for _, result in judged if result.states_verdict]
    return RewardResult(
        score=score,
        correct=all(verdicts) if verdicts else score > 0,
        extra=extra,
        detail=next((result.detail for _, result in judged if result.detail), None),
        states_verdict=bool(verdicts),
        extracted=next((result.extracted for _, result in judged if result.extracted is not None), None),
        reason="; ".join(
            f"{part.label}: {result.reason}" if part.label else result.reason
            for part, result in judged
            if result.reason
        )
        or None,
    )


def _extras(parts: Sequence[WeightedRule], results: Sequence[RewardResult]) -> Mapping[str, float | str]:
    """Of one function its own; of several each one's score too, all under the functions' names."""
    if len(parts) == 1:
        return results[0].extra
    extra: dict[str, float | str] = {}
    for part, result in zip(parts, results, strict=True):
        if result.failure is None:
            extra[part.label] = result.score
        extra |= {f"{part.label}/{name}": value for name, value in result.extra.items()}
    return extra
