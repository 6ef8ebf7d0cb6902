"""Two gloo processes give the scores of one, wherever the responses of a group lie."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_update import Problem, assert_same_scores, tiny_model, traced_config, traced_scores
from two_ranks import CASES, FSDP_CASES

from archer.influence import Group

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    commands = [
        [
            sys.executable,
            str(HERE / "two_ranks.py"),
            str(rank),
            str(folder / "store"),
            str(folder / f"{rank}.pt"),
        ]
        for rank in range(2)
    ]
    processes = [
        subprocess.Popen(c, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for c in commands
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


RUNS = [("replicated", case, share) for case in CASES for share in ("crossing", "nothing")]


@pytest.mark.parametrize(
    ("engine", "case", "share"), [*RUNS, *[("fsdp2", case, "crossing") for case in FSDP_CASES]]
)
def test_two_ranks_give_the_scores_of_one(ranks, engine, case, share):
    alone = traced_scores(Problem(tiny_model()), traced_config(**CASES[case]), kind="clipped")
    (first, metrics, _), (second, others, _) = (rank["scores"][engine, case, share] for rank in ranks)
    assert first.keys().isdisjoint(second)
    assert_same_scores(first | second, alone)
    crossing = "influence_trace/debug_cross_rank_groups"
    assert (metrics[crossing], others[crossing]) == {"crossing": (1, 0), "nothing": (0, 0)}[share]


def test_a_group_that_is_not_finite_on_one_rank_is_nan_on_both_and_counted_once(ranks):
    (first, metrics), (second, others) = (rank["not finite"] for rank in ranks)
    scores = first | second
    assert all(scores[row].isnan().all() for row in (0, 1, 2, 3))
    assert all(scores[row].isfinite().all() for row in (4, 5, 6))
    name = "influence_trace/debug_nonfinite_groups"
    assert (metrics[name], others[name]) == (1, 0)


def test_a_second_backward_leaves_sharded_gradients_alone(ranks):
    for rank in ranks:
        *_, plain = rank["scores"]["fsdp2", "response", "crossing"]
        _, metrics, traced = rank["scores"]["fsdp2", "second backward", "crossing"]
        assert metrics["influence_trace/debug_second_backwards"] > 0
        assert len(plain) == len(traced) > 0
        assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))


def test_each_rank_emits_the_rows_it_captured(ranks):
    first, second = (rank["scores"]["replicated", "response", "crossing"][0] for rank in ranks)
    assert sorted(first) == [0, 2]
    assert sorted(second) == [1, 3, 4, 5, 6]


def test_groups_of_all_ranks_are_joined_by_uid_in_one_order(ranks):
    expected = [Group("a", (1,), (True,)), Group("b", (4, 5, 6), (False, True, False))]
    assert [rank["joined"] for rank in ranks] == [expected, expected]


def test_ranks_with_different_groups_fail_together_instead_of_waiting(ranks):
    assert all("ranks were given different groups" in rank["differing"] for rank in ranks)


def test_a_problem_on_one_rank_stops_all_of_them(ranks):
    assert "influence tracing failed on rank 1" in ranks[0]["failing"]
    assert "2 different sets of weights" in ranks[1]["failing"]
