"""Grids with seeds: curves, paired differences and their report."""

import csv
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from archer.ablation.folder import AblationFolder, Attempt, CaseState
from archer.ablation.grid import parse_grid, plan_cases
from archer.ablation.paired import (
    EXACTLY_UP_TO,
    Learning,
    compare_seeds,
    learning_of,
    measure_of,
    paired,
    sign_flip_p,
)
from archer.cli import app
from archer.evaluation.exact import METRIC

GRID = """
baseline: none
cases: {none: [algorithm.token_credit.mode=none], spare: [algorithm.token_credit.mode=spare_confident],
  control: [algorithm.token_credit.mode=spare_confident, algorithm.token_credit.permute=True]}
controls: {spare: control}
seeds: [1, 2, 3]
"""
GAINS = {"none": (0.0, 0.0, 0.0), "spare": (0.04, 0.05, 0.03), "control": (0.01, 0.02, 0.0)}


def line(step: int, accuracy: float | None = None, **more: float) -> dict[str, float]:
    exact = {} if accuracy is None else {METRIC: accuracy}
    trained = {"actor/entropy": step / 100, "timing_s/step": float(step)} if step else {}
    return {"step": step, **trained, **exact, **more}


def learnt(accuracy: dict[int, float], steps: int) -> Learning:
    return Learning(accuracy, steps, entropy=0.1, step_s=1.0)


def test_the_curve_is_the_mean_over_steps_linear_between_measurements() -> None:
    run = learnt({0: 0.2, 2: 0.6, 4: 0.8}, 4)
    assert run.curve == pytest.approx((0.4 + 0.6 + 0.7 + 0.8) / 4)
    assert run.final == 0.8


def test_steps_to_eighty_percent_are_linear_between_measurements() -> None:
    assert learnt({0: 0.2, 4: 0.6, 8: 1.0}, 8).steps_to_level == pytest.approx(6.0)
    assert learnt({0: 0.3, 3: 0.9}, 3).steps_to_level == pytest.approx(2.5)
    assert learnt({0: 0.9, 3: 0.95}, 3).steps_to_level == 0.0


def test_a_run_that_does_not_get_there_counts_one_step_more_than_it_had() -> None:
    run = learnt({0: 0.2, 5: 0.7}, 5)
    assert run.steps_to_level == 6 and not run.reached


def test_a_runs_figures_come_from_the_lines_of_its_metrics() -> None:
    run = learning_of([line(0, 0.1), line(1), line(2, 0.3), line(3), line(4, 0.5)], METRIC)
    assert run is not None
    assert (run.accuracy, run.steps) == ({0: 0.1, 2: 0.3, 4: 0.5}, 4)
    assert run.entropy == pytest.approx((1 + 2 + 3 + 4) / 400)
    assert run.step_s == 3.0  # the median without the first step
    assert learning_of([line(0), line(1)], METRIC) is None


def test_without_exact_accuracy_in_every_run_sampled_accuracy_is_compared() -> None:
    sampled = line(1, None, **{"val-core/math/acc/mean@4": 0.5, "val-core/aime/acc/mean@4": 0.3})
    assert measure_of({"a": [line(1, 0.5)], "b": [line(1, 0.6)]}) == METRIC
    measure = measure_of({"a": [line(1, 0.5)], "b": [sampled]})
    assert measure != METRIC
    run = learning_of([sampled], measure)
    assert run is not None and run.final == pytest.approx(0.4)


@pytest.mark.parametrize("values", [[0.3, -0.1, 0.2], [1.0, 1.0, 1.0, 1.0], [0.5], [0.0, 0.0]])
def test_p_is_the_share_of_signs_whose_mean_is_as_far_from_zero(values: list[float]) -> None:
    found = abs(sum(values))
    signs = list(itertools.product((1, -1), repeat=len(values)))
    sums = [abs(sum(s * v for s, v in zip(some, values, strict=True))) for some in signs]
    expected = sum(total >= found - 1e-12 for total in sums) / len(signs)
    assert sign_flip_p(np.array(values)) == pytest.approx(expected)


def test_beyond_what_can_be_tried_signs_are_drawn() -> None:
    values = np.random.default_rng(3).normal(0.4, 1.0, EXACTLY_UP_TO + 4)
    t = values.mean() / (values.std(ddof=1) / math.sqrt(len(values)))
    normal = math.erfc(abs(t) / math.sqrt(2))
    assert sign_flip_p(values) == pytest.approx(normal, abs=0.03)


def test_a_paired_difference_has_mean_standard_error_and_seeds() -> None:
    found = paired([0.1, 0.3, -0.1, 0.3])
    assert found.mean == pytest.approx(0.15)
    assert found.stderr == pytest.approx(np.std([0.1, 0.3, -0.1, 0.3], ddof=1) / 2)
    assert (found.higher, found.n) == (3, 4)
    assert math.isnan(paired([0.1]).stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid that is done but for one case: each seed has a level of its own, which pairing takes out."""
    grid = parse_grid("test", GRID)
    planned = plan_cases(grid, [], None)
    found = AblationFolder(tmp_path_factory.mktemp("paired") / "grid")
    with found.held(grid, planned):
        for case in planned:
            if case.name == "control-seed3":
                continue
            assert case.seed is not None
            level = 0.4 + 0.1 * case.seed
            gain = GAINS[case.variant][case.seed - 1]
            run = found.run(case.name, False)
            run.mkdir(parents=True)
            lines = [line(0, level - 0.2), line(1), line(2, level + gain)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
            (run / "config.yaml").write_text(
                "{data: {train_batch_size: 8}, actor_rollout_ref: {model: {path: tiny}, rollout: {n: 4}}}"
            )
            found.write(case.name, CaseState("done", (Attempt(seconds=1.0, starts=1, returncode=0),)))
    return found.path


def test_differences_are_taken_seed_by_seed(folder: Path) -> None:
    comparison = compare_seeds(folder)
    final = comparison.difference("spare", "none", "final")
    assert final is not None and (final.n, final.higher) == (3, 3)
    assert final.mean == pytest.approx(0.04) and final.stderr == pytest.approx(0.01 / math.sqrt(3))
    curve = comparison.difference("spare", "none", "curve")
    assert curve is not None and curve.mean == pytest.approx(0.75 * 0.04)  # half of the gain at step 1
    control = comparison.difference("spare", "control", "final")
    assert control is not None and control.n == 2 and control.mean == pytest.approx(0.03)
    assert comparison.pairs == [("spare", "none"), ("control", "none"), ("spare", "control")]


def test_the_report_tells_the_differences_and_its_command(folder: Path) -> None:
    collected = CliRunner().invoke(app, ["ablate", "collect", str(folder)])
    assert collected.exit_code == 0, collected.output
    text = (folder / "report" / "report.md").read_text()
    assert "`archer ablate run test --seeds 1-3`: 8 of 9 cases done, 0 failed." in text
    assert "| `spare` | `none` | 3 | +3.0 ± 0.4 | 3 of 3 | 0.250 | +4.0 ± 0.6 |" in text
    assert "| `spare` | `control` | 2 | +2.2 ± 0.0 | 2 of 2 | 0.500 | +3.0 ± 0.0 |" in text
    assert "| `none` | 3 | 55.0 | 60.0 |" in text
    assert "seed=1" not in text.split("## Overrides")[1]  # a variant is told without its seeds
    assert (folder / "report" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_csv_files_hold_every_run_and_every_difference(folder: Path) -> None:
    CliRunner().invoke(app, ["ablate", "collect", str(folder)])
    with (folder / "report" / "cases.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 9 and [row["status"] for row in runs].count("done") == 8
    chosen = next(row for row in runs if (row["case"], row["seed"]) == ("spare", "2"))
    assert float(chosen["final"]) == pytest.approx(0.65)
    with (folder / "report" / "paired.csv").open() as file:
        pairs = {(row["case"], row["minus"], row["quantity"]): row for row in csv.DictReader(file)}
    assert float(pairs["spare", "none", "final"]["mean"]) == pytest.approx(0.04)
    assert pairs["control", "none", "curve"]["seeds"] == "2"


def test_a_grid_of_which_nothing_is_done_has_a_report_without_figures(tmp_path: Path) -> None:
    grid = parse_grid("test", "{cases: {none: []}, seeds: [1, 2]}")
    with AblationFolder(tmp_path / "grid").held(grid, plan_cases(grid, [], None)):
        pass
    collected = CliRunner().invoke(app, ["ablate", "collect", str(tmp_path / "grid")])
    assert collected.exit_code == 0, collected.output
    text = (tmp_path / "grid" / "report" / "report.md").read_text()
    assert "0 of 2 cases done" in text and "## Accuracy" not in text
