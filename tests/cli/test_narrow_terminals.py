"""What `archer` prints can be read on a terminal of 80 columns: nothing is cut off, names stay whole."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from archer.ablation.folder import AblationFolder
from archer.ablation.grid import PlannedCase
from archer.ablation.progress import GridProgress
from archer.cli import app
from archer.config import compose, recipes
from archer.data.prepare.catalogue import DATA_SETS
from archer.train import COMMON_KEYS
from archer.verify.report import CheckResult, Figure, print_report

WIDTH = 80
PAGES = (
    (),
    *(("train",), ("view",), ("export",), ("verify",), ("eval",)),
    *(("trace", "check"), ("trace", "show"), ("data", "prepare"), ("data", "show")),
    *(("ablate", "run"), ("ablate", "collect")),
)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", WIDTH)


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= WIDTH
    return result.output


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_no_word_of_a_help_page_is_cut_off(page):
    assert "…" not in printed(*page, "--help")


def test_paragraphs_of_a_help_page_fill_the_line():
    lines = printed("eval", "--help").splitlines()
    first = next(number for number, line in enumerate(lines) if "A checkpoint of a run is evaluated" in line)
    last = next(number for number, line in enumerate(lines) if "the same command resumes" in line)
    for line, after in zip(lines[first:last], lines[first + 1 : last + 1], strict=True):
        assert len(line.rstrip()) + 1 + len(after.split()[0]) >= WIDTH - 1, line


def test_recipes_and_keys_of_the_training_help_are_whole():
    words = printed("train", "--help").split()
    assert {*recipes(), *COMMON_KEYS} <= set(words)


def test_names_on_the_hub_are_whole():
    words = set(printed("data", "prepare", "list").split())
    assert {one.hub.repo for one in DATA_SETS.values() if one.hub is not None} <= words


def test_overrides_of_a_grid_are_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = set(printed("ablate", "run", "influence_0220", "--list").split())
    assert {"output_function=log_prob_advantage", "accepted_rejected_scope=all_selected"} <= words
    assert "log_prob_advantage-all_selected-identity" in words


@pytest.mark.parametrize("width", [WIDTH, 120])
def test_cases_of_a_running_grid_are_told_by_their_whole_names(tmp_path, width):
    names = [f"log_prob_advantage-all_selected-{mode}" for mode in ("inverse", "identity")]
    cases = [PlannedCase(name, (), name, None, (), compose()) for name in names]
    console = Console(file=io.StringIO(), width=width)
    console.print(GridProgress(console, AblationFolder(tmp_path), cases).table({names[0]: 3765.0}))
    assert set(names) <= set(console.file.getvalue().split())


def test_figures_of_verify_leave_room_for_what_they_belong_to():
    columns = ("all tokens", "null", "written sums", "null (sums)", "label leak")
    what = "  ... with contrastive_agg=mean"
    result = CheckResult("first", "meaning", columns, (Figure(what, (0.5,) * len(columns)),), None)
    console = Console(file=io.StringIO(), width=WIDTH)
    print_report(console, [result])
    assert f"{what} │" in console.file.getvalue()
