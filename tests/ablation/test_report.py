"""A real grid, end to end: trained, collected, reported; and a report of what went wrong."""

import csv
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from archer.ablation.html import page
from archer.ablation.report import Report, build_report
from archer.cli import app
from archer.errors import ArcherError
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
def report(grid: Path) -> Report:
    return build_report(grid)


def test_every_case_has_a_run_folder_a_log_and_no_checkpoint(grid: Path, report: Report) -> None:
    assert [case.name for case in report.cases] == ["baseline", "inverse", "identity"]
    for case in report.cases:
        run = grid / "cases" / case.name / "run"
        assert case.state.status == "done" and (run / "result.json").is_file()
        assert not (run / "checkpoints").exists()
        assert "step 2/2" in (grid / "cases" / case.name / "train.log").read_text()


def test_scores_and_correlation_are_those_of_the_traces(grid: Path, report: Report) -> None:
    steps: dict[str, list[np.ndarray]] = {}
    for name in ("inverse", "identity"):
        reader = TraceReader(grid / "cases" / name / "run" / "influence_trace")
        loaded = [reader.read(entry.step).arrays for entry in reader.entries]
        steps[name] = [arrays.influence[arrays.response_mask] for arrays in loaded]
    cases = {case.name: case for case in report.cases}
    assert cases["baseline"].scores is None
    for name, values in steps.items():
        scores, every = cases[name].scores, np.concatenate(values).astype(np.float64)
        assert scores is not None and scores.tokens == len(every)
        assert scores.mean == pytest.approx(every.mean(), rel=1e-9)
        assert cases[name].cost is not None and cases[name].cost.rows_emitted > 0
    (agreement,) = report.agreements
    places = [[np.argsort(np.argsort(v)) for v in values] for values in steps.values()]
    expected = [np.corrcoef(*pair)[0, 1] for pair in zip(*places, strict=True) if len(pair[0]) > 1]
    assert agreement.tokens == sum(map(len, steps["inverse"])) and agreement.different_steps == 0
    assert agreement.per_step == pytest.approx(np.mean(expected), abs=1e-3)  # ties are rare, not absent


def test_tracing_leaves_the_training_of_the_baseline_as_it_is(report: Report) -> None:
    assert all(case.differs_at is None for case in report.cases)
    baseline = report.cases[0]
    assert baseline.ratio is not None and baseline.ratio.step == baseline.ratio.memory == 1.0


def test_the_csv_holds_the_figures_of_the_report(grid: Path, report: Report) -> None:
    with (grid / "report" / "cases.csv").open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    for case in report.cases:
        assert case.cost is not None and case.ratio is not None
        assert float(rows[case.name]["update_s_median"]) == case.cost.update_s
        assert float(rows[case.name]["peak_memory_ratio"]) == case.ratio.memory
    assert rows["baseline"]["score_mean"] == "" and float(rows["inverse"]["score_std"]) > 0


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(grid: Path) -> None:
    text = (grid / "report" / "report.html").read_text()
    assert_well_formed(text)
    assert "http" not in text and "<script" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text and text.count("<svg") == 4


def test_clock_times_are_drawn_only_where_nothing_else_used_the_machine(report: Report) -> None:
    assert report.conditions is not None
    quiet = replace(report.conditions, jobs=1, load=(0.5, 1.0), cores=2)
    drawn = page(replace(report, conditions=quiet))
    assert "time per step, fastest" in drawn and "The machine was shared" not in drawn
    for busy in (replace(quiet, jobs=2), replace(quiet, load=(1.0, 7.0))):
        drawn = page(replace(report, conditions=busy))
        assert "time per step, fastest" not in drawn and "The machine was shared" in drawn


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


def test_a_failure_is_reported_with_its_log_and_its_text_is_never_markup(grids) -> None:
    grids.script.write_text("raise ValueError('<script>alert(1)</script> | & all')")
    grids.run("{baseline: [], cases: {one: []}}")
    collected = CliRunner().invoke(app, ["ablate", "collect", str(grids.out)])
    assert collected.exit_code == 0, collected.output
    text = (grids.out / "report" / "report.html").read_text()
    assert_well_formed(text)
    assert "&lt;script&gt;alert(1)" in text and "<script" not in text
    assert "ValueError: <script>" in (grids.out / "report" / "report.md").read_text()


def test_a_folder_without_a_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcherError, match="no ablation"):
        build_report(tmp_path)


def assert_well_formed(text: str) -> None:
    """Every element is closed in the order in which it was opened."""
    void = {"meta", "rect", "line", "circle"}

    class Check(HTMLParser):
        opened: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in void:
                self.opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in void:
                assert self.opened.pop() == tag

    check = Check()
    check.opened = []
    check.feed(text)
    assert check.opened == []
