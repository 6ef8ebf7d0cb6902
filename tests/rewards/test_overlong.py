import math

import pytest

from archer.errors import ArcherError
from archer.rewards import overlong_penalty


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (80, 0.0), (85, -0.5), (90, -1.0), (100, -2.0), (101, -2.0), (5000, -2.0)],
)
def test_penalty_grows_linearly_within_the_buffer(length, expected):
    assert overlong_penalty(length, 100, 20, 2.0) == pytest.approx(expected)


def test_penalty_never_leaves_its_range_and_never_grows_smaller_with_length():
    for buffer_len in (0, 1, 7, 50):
        penalties = [overlong_penalty(length, 50, buffer_len, 1.5) for length in range(60)]
        assert all(-1.5 <= penalty <= 0 for penalty in penalties)
        assert penalties == sorted(penalties, reverse=True)


def test_a_buffer_of_no_length_is_the_hard_limit_and_no_nan():
    penalties = [overlong_penalty(length, 50, 0, 1.0) for length in range(51)]
    assert penalties == [0.0] * 51
    assert not math.isnan(overlong_penalty(51, 50, 0, 1.0))


@pytest.mark.parametrize(("buffer_len", "factor"), [(-1, 1.0), (101, 1.0), (10, -1.0), (10, math.nan)])
def test_impossible_settings_are_refused(buffer_len, factor):
    with pytest.raises(ArcherError, match="overlong"):
        overlong_penalty(5, 100, buffer_len, factor)
