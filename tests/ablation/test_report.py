"""A real grid, end to end: trained, collected, reported; and a report of what went wrong."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from archer.ablation.comparison import RATIOS, Comparison, compare_cases
from archer.ablation.plots import cost_figure
from archer.ablation.report import PLOTS, markdown
from archer.cli import app
from archer.errors import ArcherError, install_hint
from archer.trace.reader import TraceReader

GRID = """
shared:
  - data.train_batch_size=4
  - data.val_files=[]
  - actor_rollout_ref.actor.ppo_mini_batch_size=4
  - actor_rollout_ref.rollout.n=4
  - trainer.total_training_steps=2
  - trainer.val_before_train=False
  - trainer.entropy_trace.enable=False
  - engine.threads=1
  - engine.device=cpu
baseline: [trainer.influence_trace.enable=False]
axes:
  trainer.influence_trace.hessian_mode: [inverse, identity]
keep_checkpoints: false
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three real runs of two steps, and their report."""
    folder = tmp_path_factory.mktemp("ablation")
    (folder / "tiny.yaml").write_text(GRID)
    out = folder / "out with space"
    ran = CliRunner().invoke(
        app, ["ablate", "run", str(folder / "tiny.yaml"), "--out", str(out), "--jobs", "2"]
    )
    assert ran.exit_code == 0, ran.output
    collected = CliRunner().invoke(app, ["ablate", "collect", str(out)])
    assert collected.exit_code == 0, collected.output
    return out


@pytest.fixture(scope="module")
def comparison(grid: Path) -> Comparison:
    return compare_cases(grid)


def test_every_case_has_a_run_folder_a_log_and_no_checkpoint(grid: Path, comparison: Comparison) -> None:
    assert [case.name for case in comparison.cases] == ["baseline", "inverse", "identity"]
    for case in comparison.cases:
        run = grid / "cases" / case.name / "run"
        assert case.state.status == "done" and (run / "result.json").is_file()
        assert not (run / "checkpoints").exists()
        assert "step 2/2" in (grid / "cases" / case.name / "train.log").read_text()


def test_scores_and_correlation_are_those_of_the_traces(grid: Path, comparison: Comparison) -> None:
    steps: dict[str, list[np.ndarray]] = {}
    for name in ("inverse", "identity"):
        reader = TraceReader(grid / "cases" / name / "run" / "influence_trace")
        loaded = [reader.read(entry.step).arrays for entry in reader.entries]
        steps[name] = [arrays.influence[arrays.response_mask] for arrays in loaded]
    cases = {case.name: case for case in comparison.cases}
    assert cases["baseline"].scores == {}
    for name, values in steps.items():
        scores, every = cases[name].scores, np.concatenate(values).astype(np.float64)
        assert scores["tokens_scored"] == len(every)
        assert scores["score_mean"] == pytest.approx(every.mean(), rel=1e-9)
        assert cases[name].cost["rows_emitted"] > 0
    (agreement,) = comparison.agreements
    places = [[np.argsort(np.argsort(v)) for v in values] for values in steps.values()]
    expected = [np.corrcoef(*pair)[0, 1] for pair in zip(*places, strict=True) if len(pair[0]) > 1]
    assert (
        agreement.tokens == sum(map(len, steps["inverse"])) and agreement.steps_with_different_rollouts == 0
    )
    assert agreement.spearman_per_step == pytest.approx(
        np.mean(expected), abs=1e-3
    )  # ties are rare, not absent


def test_tracing_leaves_the_training_of_the_baseline_as_it_is(comparison: Comparison) -> None:
    assert all(case.differs_at is None for case in comparison.cases)
    baseline = comparison.cases[0].cost
    assert baseline["step_ratio_median"] == baseline["peak_memory_ratio"] == 1.0


def test_the_csv_holds_the_figures_of_the_report(grid: Path, comparison: Comparison) -> None:
    with (grid / "report" / "cases.csv").open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    for case in comparison.cases:
        for column, figure in (case.cost | case.scores).items():
            assert float(rows[case.name][column]) == figure
    assert rows["baseline"]["score_mean"] == "" and float(rows["inverse"]["score_std"]) > 0


def test_the_report_names_its_command_and_shows_the_plots(grid: Path) -> None:
    text = (grid / "report" / "report.md").read_text()
    assert "`archer ablate run tiny.yaml`: 3 of 3 cases done" in text
    for name in PLOTS:
        assert f"]({name})" in text
        assert (grid / "report" / name).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_report_is_written_and_says_what_is_missing(
    grid, tmp_path, monkeypatch
) -> None:
    (tmp_path / "cost.png").touch()  # of an earlier report
    monkeypatch.delitem(sys.modules, "archer.ablation.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for module in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, module)
    collected = CliRunner().invoke(app, ["ablate", "collect", str(grid), "--out", str(tmp_path)])
    assert collected.exit_code == 0 and install_hint("ablation") in collected.output
    text = (tmp_path / "report.md").read_text()
    assert install_hint("ablation") in text and ".png" not in text and "## Cost" in text
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "cases.csv", "correlations.csv"}


def test_clock_times_are_drawn_only_where_nothing_else_used_the_machine(comparison: Comparison) -> None:
    def measured(jobs: int, load: float) -> Comparison:
        cases = []
        for case in comparison.cases:
            attempt = replace(case.state.attempts[-1], jobs=jobs, load=load)
            cases.append(replace(case, state=replace(case.state, attempts=(attempt,))))
        return replace(comparison, cases=tuple(cases), cores=2)

    def titles(found: Comparison) -> set[str]:
        return {axes.get_title() for axes in cost_figure(found).axes}

    quiet = measured(jobs=1, load=1.0)
    assert {"fastest step", "fastest update", "CPU time"} <= titles(quiet)
    assert "It was shared" not in markdown(quiet)
    for busy in (measured(jobs=2, load=1.0), measured(jobs=1, load=7.0)):
        assert titles(busy) == {"CPU time", "peak memory", "influence in the update"}
        assert "It was shared" in markdown(busy)


def test_without_a_baseline_costs_are_drawn_in_their_units(comparison: Comparison) -> None:
    plain = [
        replace(case, cost={name: value for name, value in case.cost.items() if name not in RATIOS})
        for case in comparison.cases
    ]
    figure = cost_figure(replace(comparison, cases=tuple(plain)))
    assert [axes.get_xlabel() for axes in figure.axes] == ["s", "GiB", "% of its time"]
    assert "differ from the baseline" not in markdown(replace(comparison, cases=tuple(plain)))


def test_markdown_tables_have_one_width(grid: Path) -> None:
    text = (grid / "report" / "report.md").read_text()
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        assert len({row.count("|") for row in table}) == 1


def test_listing_shows_states_and_runs_nothing(grid: Path) -> None:
    file, out = str(grid.parent / "tiny.yaml"), str(grid.parent / "nowhere")
    listed = CliRunner().invoke(app, ["ablate", "run", file, "--out", out, "--list", "--only", "i*"])
    assert listed.exit_code == 0 and "inverse" in listed.output and "pending" in listed.output
    assert "baseline" not in listed.output and not Path(out).exists()


def test_listing_folds_long_values_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["ablate", "run", "influence_0220", "--list"]
    listed = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert listed.exit_code == 0 and "…" not in listed.output
    assert "score_normalization=token_norm" in "".join(listed.output.split())


def test_a_failure_is_reported_with_its_log_as_it_was_printed(grids) -> None:
    grids.script.write_text("raise ValueError('<script>alert(1)</script> | & all')")
    grids.run("{baseline: [], cases: {one: []}}")
    collected = CliRunner().invoke(app, ["ablate", "collect", str(grids.out)])
    assert collected.exit_code == 0, collected.output
    text = (grids.out / "report" / "report.md").read_text()
    assert "\n    ValueError: <script>alert(1)</script> | & all\n" in text  # indented: code, never markup
    assert "to the last digit" not in text  # nothing was compared with a baseline that failed


def test_a_folder_without_a_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcherError, match="no ablation"):
        compare_cases(tmp_path)
