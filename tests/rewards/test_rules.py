import importlib
import os
import textwrap

import pytest

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer, register_reward
from archer.rewards.rules import RULES, RewardResult, Rule, find_rule, known_sources
from archer.rewards.rules.math import MathRule


@pytest.fixture(autouse=True)
def own_table(monkeypatch):
    known_sources()  # the package's rules
    monkeypatch.setattr(RULES, "_plugins", dict(RULES._plugins))


@pytest.mark.parametrize(
    "source",
    ["openai/gsm8k", "math_dapo", "lighteval/MATH", "aime2024", "aime_2025", "HuggingFaceH4/MATH-500"],
)
def test_common_math_sources_are_known_by_name_or_prefix(source):
    assert find_rule(source) is MathRule


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
    with RewardScorer(RewardConfig(num_workers=1)) as scorer:
        poem, sum_ = scorer.score(
            [RewardRequest("poems/haiku", "frog", None), RewardRequest("math", "", "1")]
        )
    assert (poem.score, poem.failure) == (4.0, None)
    assert poem.extra["pid"] != os.getpid()
    assert not sum_.correct


def test_what_stands_beside_a_registered_function_belongs_to_it(tmp_path, monkeypatch):
    (tmp_path / "verse_rewards.py").write_text(
        textwrap.dedent("""
            from archer.rewards import register_reward

            @register_reward("verses")
            def by_length(data_source, solution_str, ground_truth, extra_info):
                return len(solution_str)

            def check_ground_truth(ground_truth):
                return None if ground_truth is None else "verses have no truth"

            def extract_answer(response):
                return response.split()[-1]
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("verse_rewards")
    scorer = RewardScorer(RewardConfig())
    scorer.check("verses", None)
    with pytest.raises(ArcherError, match="verses have no truth"):
        scorer.check("verses", "5")
    assert scorer.has_answers("verses")
    assert scorer.answer("verses", "the frog") == "frog"


def test_a_rule_is_one_class_that_registers_itself():
    @RULES.register("palindrome", sources=("palindromes*",))
    class PalindromeRule(Rule):
        def check(self, ground_truth):
            if ground_truth is not None:
                raise ArcherError("Palindromes have no ground truth.")

        def judge(self, request):
            return RewardResult.of_verdict(request.response == request.response[::-1])

    assert find_rule("palindromes/short") is PalindromeRule
    scorer = RewardScorer(RewardConfig())
    requests = [RewardRequest("palindromes", text, None) for text in ("anna", "otto", "karl")]
    assert [result.correct for result in scorer.score(requests)] == [True, True, False]
    assert not scorer.has_answers("palindromes")
    with pytest.raises(ArcherError, match="no ground truth"):
        scorer.check("palindromes", "x")


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
