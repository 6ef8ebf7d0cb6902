"""Cost of a case from its metrics."""

import pytest

from archer.ablation.comparison import cost_of, first_difference, ratios


def line(step: int, step_s: float, update_s: float, **more: float) -> dict[str, float]:
    times = {"timing_s/step": step_s, "timing_s/update_actor": update_s}
    return {"step": step, **times, "perf/max_memory_allocated_gb": 1.0 + step / 10, **more}


LINES = [
    line(1, 9.0, 8.0, **{"influence_trace/rows_emitted": 4.0, "timing_s/influence_solve": 7.0}),
    line(2, 3.0, 2.0, **{"influence_trace/rows_emitted": 8.0, "timing_s/influence_solve": 0.5}),
    line(3, 5.0, 4.0, **{"influence_trace/rows_emitted": 6.0, "timing_s/influence_capture": 0.5}),
    line(4, 4.0, 3.0),
]


def test_times_leave_the_first_step_out_and_sums_do_not() -> None:
    cost = cost_of(LINES, 30.0)
    assert (cost["steps"], cost["measured_steps"], cost["rows_emitted"]) == (4, 3, 18)
    assert (cost["step_s_median"], cost["step_s_fastest"]) == (4.0, 3.0)
    assert (cost["update_s_median"], cost["update_s_fastest"]) == (3.0, 2.0)
    assert cost["influence_share_of_update"] == pytest.approx(1.0 / 9.0)
    assert (cost["peak_memory_gib"], cost["cpu_s"]) == (pytest.approx(1.4), 30.0)


def test_a_single_step_is_better_than_none() -> None:
    cost = cost_of(LINES[:1], 1.0)
    assert (cost["measured_steps"], cost["step_s_median"]) == (1, 9.0)
    assert cost_of([], 1.0) == {}


def test_ratios_are_over_the_baseline() -> None:
    case = cost_of(LINES, 30.0)
    baseline = cost_of([line(1, 9, 9), line(2, 2.0, 1.0), line(3, 4.0, 3.0)], 20.0)
    found = ratios(case, baseline)
    assert (found["step_ratio_median"], found["step_ratio_fastest"]) == (4 / 3, 1.5)
    assert (found["update_ratio_median"], found["update_ratio_fastest"]) == (1.5, 2.0)
    assert found["peak_memory_ratio"] == pytest.approx(1.4 / 1.3)
    assert found["cpu_ratio"] == 1.5


def test_another_training_is_told_by_its_first_differing_metric() -> None:
    one = [line(1, 1, 1, **{"actor/pg_loss": 0.5}), line(2, 1, 1, **{"actor/pg_loss": 0.25})]
    slower = [line(1, 7, 7, **{"actor/pg_loss": 0.5}), line(2, 7, 7, **{"actor/pg_loss": 0.25})]
    other = [line(1, 1, 1, **{"actor/pg_loss": 0.5}), line(2, 1, 1, **{"actor/pg_loss": 0.2500001})]
    assert first_difference(slower, one) is None
    assert first_difference(other, one) == "step 2: actor/pg_loss"
