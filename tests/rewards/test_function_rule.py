import math
import os
from functools import partial
from pathlib import Path

import psutil
import pytest

from archer.errors import ArcherError
from archer.evaluation.majority import Ballot, majority
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.config import CustomRewardConfig
from archer.rewards.rules.call import to_result


def test_the_function_is_called_as_verl_calls_it(custom):
    scorer = custom(
        """
        def compute_score(data_source, solution_str, ground_truth, extra_info, weight):
            right = solution_str == ground_truth
            return {
                "score": weight if right else -weight,
                "acc": right,
                "length": len(solution_str),
                "index": extra_info["index"],
                "pred": solution_str,
                "source": data_source,
            }
        """,
        custom_kwargs={"weight": 0.25},
    )
    right, wrong = scorer.score(
        [RewardRequest("my/data", "yes", truth, {"index": 3}) for truth in ("yes", "no")]
    )
    assert (right.score, right.correct, right.failure) == (0.25, True, None)
    assert (wrong.score, wrong.correct, wrong.failure) == (-0.25, False, None)
    assert right.extra == {"length": 3.0, "index": 3.0, "pred": "yes", "source": "my/data"}


@pytest.mark.parametrize(
    ("returned", "score", "correct"),
    [
        (1, 1.0, True),
        (0, 0.0, False),
        (-1.0, -1.0, False),
        (True, 1.0, True),
        ({"score": 0.5}, 0.5, True),
        ({"score": -0.5, "acc": 1}, -0.5, True),
        ({"score": 0.5, "acc": False}, 0.5, False),
        ({"score": 0.5, "acc": None}, 0.5, True),
    ],
)
def test_correctness_is_acc_where_given_else_a_positive_score(returned, score, correct):
    result = to_result(returned)
    assert (result.score, result.correct) == (score, correct)


@pytest.mark.parametrize(
    "returned", ["1", [1.0], {}, {"acc": 1}, math.nan, math.inf, {"score": 1, "length": math.nan}]
)
def test_what_is_no_score_is_a_crash_that_says_so(custom, returned):
    value = repr(returned).replace("nan", "float('nan')").replace("inf", "float('inf')")
    scorer = custom(f"""
        def compute_score(data_source, solution_str, ground_truth, extra_info):
            return {value}
    """)
    (result,) = scorer.score([RewardRequest("x", "", "")])
    assert result.score == 0.0
    assert result.failure is not None
    assert "the reward function returned" in result.failure


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def other(): pass", r"path: .*defines no 'compute_score'\. It has: other"),
        ("compute_score = 3", "is a int, not a function"),
        ("def compute_score(a, b): pass", "signature.*data_source, solution_str, ground_truth, extra_info"),
        ("def compute_score(**kwargs): pass", None),
        ("async def compute_score(**kwargs): pass", None),
        ("async def compute_score(solution_str): pass", "signature.*data_source"),
        ("def compute_score(prompts, completions, **columns): pass", r"takes lists: set batched=true"),
        ("def compute_score(:", "cannot be imported: SyntaxError"),
        ("import no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(1)", "cannot be imported: SystemExit"),
    ],
)
def test_a_function_that_cannot_work_is_refused_at_the_start(custom, source, message):
    if message is None:
        custom(source)
        return
    with pytest.raises(ArcherError, match=message):
        custom(source)


def test_reward_kwargs_must_fit_the_function(custom):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info): return 1"
    with pytest.raises(ArcherError, match="weight"):
        custom(source, custom_kwargs={"weight": 1})
    with pytest.raises(ArcherError, match="may not contain ground_truth"):
        custom(source, custom_kwargs={"ground_truth": 1})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArcherError, match=r"nowhere\.py: there is no such file"):
        RewardScorer(RewardConfig(custom_reward_function=CustomRewardConfig(str(tmp_path / "nowhere.py"))))
    text = tmp_path / "reward.txt"
    text.write_text("")
    with pytest.raises(ArcherError, match=r"must end in \.py"):
        RewardScorer(RewardConfig(custom_reward_function=CustomRewardConfig(str(text))))


def test_a_file_that_loads_here_but_not_in_a_worker_is_an_error_and_not_a_score(custom):
    scorer = custom(f"""
        import os

        if os.getpid() != {os.getpid()}:
            raise RuntimeError("not in a worker")

        def compute_score(**kwargs):
            return 1
    """)
    with pytest.raises(ArcherError, match="not in a worker"):
        scorer.score([RewardRequest("x", "", "")])


def test_workers_that_die_before_their_first_task_are_an_error_and_not_a_score(custom):
    scorer = custom(f"""
        import os

        if os.getpid() != {os.getpid()}:
            os._exit(3)

        def compute_score(**kwargs):
            return 1
    """)
    with pytest.raises(ArcherError, match=r"do not start.*exited with code 3"):
        scorer.score([RewardRequest("x", "", "")])


EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_reward.py"


@pytest.fixture
def colours():
    """The documented example, as a run uses it."""
    config = RewardConfig(
        num_workers=1,
        custom_reward_function=CustomRewardConfig(str(EXAMPLE)),
        custom_kwargs={"bonus": 0.25},
    )
    with RewardScorer(config) as scorer:
        yield scorer


def test_the_example_judges_checks_and_votes(colours):
    responses = ["<colour>Grey</colour>", "<colour>red</colour>", "who knows"]
    results = colours.score([RewardRequest("any", response, "gray") for response in responses])
    assert [(result.score, result.correct) for result in results] == [
        (1.25, True),
        (0.25, False),
        (0.0, False),
    ]
    assert [result.extra["answered"] for result in results] == [1.0, 1.0, 0.0]
    colours.check("any", "blue")
    with pytest.raises(ArcherError, match=r"'mauve' is refused by check_ground_truth.*expected one of blue"):
        colours.check("any", "mauve")
    assert colours.has_answers("any")
    assert [colours.answer("any", response) for response in responses] == ["grey", "red", None]
    pairs = [("grey", "gray"), ("red", "gray"), ("red", "red")]
    assert colours.same_answers("any", pairs) == [True, False, True]
    assert colours.counters.total == 3  # comparisons are no judgements


def test_a_majority_counts_a_users_answers_by_the_users_sameness(colours):
    votes = ("grey", "gray", "red", "red", "red", None)
    ballot = Ballot(votes, tuple(vote == "red" for vote in votes))
    tied = Ballot(("grey", "gray", "red", "red"), (False, False, True, True))
    assert majority([ballot, tied], partial(colours.same_answers, "any")) == [1.0, 0.5]


def test_answers_without_a_sameness_of_their_own_are_compared_as_text_and_without_a_worker(custom):
    scorer = custom("""
        def compute_score(**kwargs): return 1
        def extract_answer(response): return len(response) or None
    """)
    children = set(psutil.Process().children())
    assert [scorer.answer("x", response) for response in ("abc", "")] == ["3", None]
    assert scorer.same_answers("x", [("3", "3"), ("3", "3.0")]) == [True, False]
    assert set(psutil.Process().children()) == children


def test_companions_may_be_attributes_of_the_function(custom):
    scorer = custom("""
        def compute_score(**kwargs): return 1
        def is_number(truth): float(truth)
        def first_word(response): return response.split()[0]
        compute_score.check_ground_truth = is_number
        compute_score.extract_answer = first_word
        compute_score.same_answer = lambda answer, other: answer.lower() == other.lower()
    """)
    scorer.check("x", "5")
    with pytest.raises(
        ArcherError, match=r"refused by check_ground_truth.*could not convert string to float"
    ):
        scorer.check("x", "five")
    assert scorer.answer("x", "Yes it is") == "Yes"
    assert scorer.same_answers("x", [("Yes", "yes"), ("Yes", "no")]) == [True, False]


def test_an_attribute_that_cannot_be_called_is_refused(custom):
    with pytest.raises(ArcherError, match=r"cannot be called as extract_answer\(response\)"):
        custom("""
            def compute_score(**kwargs): return 1
            compute_score.extract_answer = lambda: None
        """)


def test_a_helper_that_happens_to_have_the_name_is_left_alone(custom, caplog):
    scorer = custom("""
        def compute_score(**kwargs): return 1
        def extract_answer(text, pattern): return pattern
        check_ground_truth = {"not": "a function"}
    """)
    assert not scorer.has_answers("x")
    assert scorer.answer("x", "5") is None
    scorer.check("x", object())
    assert "it is not used" in caplog.text


def test_a_comparison_or_extraction_that_fails_costs_nothing_but_itself(custom, caplog):
    scorer = custom(
        """
        def compute_score(**kwargs): return 1
        def extract_answer(response): return response.split()[1]
        def same_answer(answer, other):
            while answer == "loop": pass
            return 1 / (answer != "crash")
        """,
        timeout_s=0.5,
    )
    assert [scorer.answer("x", response) for response in ("", "a b")] == [None, "b"]
    assert "extract_answer" in caplog.text
    assert scorer.same_answers("x", [("loop", "a"), ("crash", "a"), ("b", "a")]) == [False, False, True]


def test_a_function_without_companions_has_no_answers_and_takes_any_ground_truth(custom):
    scorer = custom("def compute_score(**kwargs): return 1")
    scorer.check("x", None)
    assert not scorer.has_answers("x")
    assert scorer.answer("x", r"\boxed{5}") is None
