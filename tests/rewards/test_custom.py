import math
import os

import pytest

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.custom import to_result


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
        kwargs={"weight": 0.25},
    )
    right, wrong = scorer.score(
        [RewardRequest("my/data", "yes", truth, {"index": 3}) for truth in ("yes", "no")]
    )
    assert (right.score, right.correct, right.failure) == (0.25, True, None)
    assert (wrong.score, wrong.correct, wrong.failure) == (-0.25, False, None)
    assert right.extra == {"length": 3.0, "index": 3.0}


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
    ],
)
def test_correctness_is_acc_where_given_else_a_positive_score(returned, score, correct):
    result = to_result(returned)
    assert (result.score, result.correct) == (score, correct)


@pytest.mark.parametrize(
    "returned", [None, "1", [1.0], {}, {"acc": 1}, math.nan, math.inf, {"score": 1, "length": math.nan}]
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
        ("def other(): pass", r"name=compute_score.*It has: other"),
        ("compute_score = 3", "is a int, not a function"),
        ("def compute_score(a, b): pass", "signature.*data_source, solution_str, ground_truth, extra_info"),
        ("def compute_score(**kwargs): pass", None),
        ("async def compute_score(**kwargs): pass", "asynchronous"),
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
        custom(source, kwargs={"weight": 1})
    with pytest.raises(ArcherError, match="may not contain ground_truth"):
        custom(source, kwargs={"ground_truth": 1})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArcherError, match=r"nowhere\.py: there is no such file"):
        RewardScorer(RewardConfig(custom_path=str(tmp_path / "nowhere.py")))
    text = tmp_path / "reward.txt"
    text.write_text("")
    with pytest.raises(ArcherError, match=r"must end in \.py"):
        RewardScorer(RewardConfig(custom_path=str(text)))


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
