import importlib
import os
import textwrap

import pytest

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer, register_reward, registry
from archer.rewards.registry import BuiltinRule, find_rule


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))


@pytest.mark.parametrize(
    "source",
    ["openai/gsm8k", "math_dapo", "lighteval/MATH", "aime2024", "aime_2025", "HuggingFaceH4/MATH-500"],
)
def test_common_math_sources_are_known_by_name_or_prefix(source):
    assert find_rule(source) is BuiltinRule.MATH


def test_an_unknown_source_is_named_with_the_known_ones_and_the_way_out():
    with pytest.raises(ArcherError) as caught:
        find_rule("my/poems")
    for part in ("'my/poems'", "openai/gsm8k", "reward.custom_reward_function.path=", ".name="):
        assert part in str(caught.value)


def test_a_registered_function_judges_its_source_in_a_worker(tmp_path, monkeypatch):
    (tmp_path / "poem_rewards.py").write_text(
        textwrap.dedent("""
            import os
            from archer.rewards import register_reward

            @register_reward("poems*")
            def by_length(data_source, solution_str, ground_truth, extra_info):
                return {"score": len(solution_str), "pid": os.getpid()}
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("poem_rewards")
    with RewardScorer(RewardConfig(workers=1)) as scorer:
        poem, sum_ = scorer.score(
            [RewardRequest("poems/haiku", "frog", None), RewardRequest("math", "", "1")]
        )
    assert (poem.score, poem.failure) == (4.0, None)
    assert poem.extra["pid"] != os.getpid()
    assert not sum_.correct


def test_registration_refuses_what_workers_could_not_use():
    def local(data_source, solution_str, ground_truth, extra_info):
        return 1

    with pytest.raises(ArcherError, match="top level"):
        register_reward("mine")(local)
    with pytest.raises(ArcherError, match="top level"):
        register_reward("mine")(lambda **kwargs: 1)
    with pytest.raises(ArcherError, match="already has a reward"):
        register_reward("math")(top_level)
    with pytest.raises(ArcherError, match="prefix"):
        register_reward("a*b")(top_level)


def top_level(**kwargs):
    return 1
