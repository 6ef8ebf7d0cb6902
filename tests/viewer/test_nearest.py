"""The pair a group opens with, against a plain table of edit distances."""

import time
from pathlib import Path

import numpy as np
import pytest
from small_traces import make_step, write_trace

from archer.errors import ArcherError
from archer.viewer.nearest import edit_distance, nearest_pair
from archer.viewer.runs import TracedRun
from archer.viewer.steps import StepData, load_step


def by_table(a: list[int], b: list[int]) -> int:
    """Levenshtein distance as the textbook fills its table."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@pytest.mark.parametrize("seed", range(40))
def test_the_distance_is_that_of_the_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 2 + seed % 5, rng.integers(0, 90)).tolist() for _ in range(2))
    assert edit_distance(a, b) == by_table(a, b) == edit_distance(b, a)


def loaded(tmp_path: Path, ids: np.ndarray, accepted: list[bool]) -> StepData:
    rows = len(ids)
    step = make_step(
        rows=rows,
        responses=ids,
        response_mask=ids >= 0,
        accepted=accepted,
        group_id=[0] * rows,
        **{name: np.zeros(ids.shape) for name in ("entropies", "influence", "log_probs", "advantage")},
    )
    write_trace(tmp_path / "run" / "influence_trace", {1: step})
    return load_step(TracedRun(tmp_path / "run"), 1)


def test_a_group_opens_with_the_rejected_response_nearest_to_an_accepted_one(tmp_path: Path) -> None:
    ids = np.array([[0] * 6, [1, 1, 0, 0, 2, 0], [2, 2, 2, 2, 2, 2], [0, 0, 0, 1, 0, 0]])
    data = loaded(tmp_path, ids, [True, False, True, False])
    pair = nearest_pair(data, 0)
    assert (pair.row, pair.beside, pair.distance) == (3, 0, 1)
    assert nearest_pair(data, 0, 2).beside == 1
    with pytest.raises(ArcherError, match="has no response 9"):
        nearest_pair(data, 0, 9)


@pytest.mark.parametrize("verdict", [True, False])
def test_a_group_that_is_not_mixed_opens_with_its_first_two(tmp_path: Path, verdict: bool) -> None:
    data = loaded(tmp_path, np.zeros((4, 3), int), [verdict] * 4)
    assert (nearest_pair(data, 0).row, nearest_pair(data, 0).beside) == (0, 1)


def test_sixteen_long_responses_take_a_moment_only(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 12, (16, 8192))
    data = loaded(tmp_path, ids, [row % 2 == 0 for row in range(16)])
    began = time.perf_counter()
    nearest_pair(data, 0)
    assert time.perf_counter() - began < 3
