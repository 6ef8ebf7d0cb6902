"""`archer verify` exits with 0 only when every exact check holds."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from archer.errors import ArcherError
from archer.influence import solve
from archer.verify import suite
from archer.verify.command import verify
from archer.verify.report import CheckResult, Figure, at_most, exact, reported

app = typer.Typer()
app.command()(verify)

GOOD = exact("good", "It holds.", [at_most("error", 0.0, 1e-9)])
BAD = exact("bad", "It does not.", [at_most("error", 1.0, 1e-9)])
POOR = reported("poor", "Not good, only told.", "", ("r",), [Figure("score", (float("nan"),))])


def run(*options: str):
    return CliRunner().invoke(app, ["--quick", "--prompts", "1", "--responses", "4", *options])


def with_checks(monkeypatch, *results: CheckResult | ArcherError) -> None:
    def outcome(result):
        if isinstance(result, ArcherError):
            raise result
        return result

    monkeypatch.setattr(
        suite,
        "checks",
        lambda *args: [suite.Check(f"check {i}", lambda r=r: outcome(r)) for i, r in enumerate(results)],
    )


@pytest.mark.parametrize(
    ("results", "code", "last_line"),
    [
        ((GOOD, POOR), 0, "All 1 exact checks hold"),
        ((GOOD, BAD, POOR), 1, "1 of 2 exact checks fail: bad."),
        ((GOOD, ArcherError("no gradient reached the model")), 1, "1 of 2 exact checks fail: check 1."),
        ((POOR,), 1, "No exact check ran."),
    ],
)
def test_exit_code_and_verdict_follow_the_exact_checks(monkeypatch, results, code, last_line):
    with_checks(monkeypatch, *results)
    outcome = run()
    assert outcome.exit_code == code, outcome.output
    assert outcome.output.strip().splitlines()[-1].startswith(last_line)


def test_json_holds_settings_and_every_figure(monkeypatch, tmp_path):
    with_checks(monkeypatch, GOOD, BAD, POOR)
    run("--seed", "3", "--json", str(tmp_path / "verify.json"))
    document = json.loads((tmp_path / "verify.json").read_text())
    assert (document["passed"], document["seed"], document["prompts"]) == (False, 3, 1)
    assert [check["passed"] for check in document["checks"]] == [True, False, None]
    assert document["checks"][1]["figures"] == [
        {"what": "error", "holds": False, "measured": 1.0, "allowed": 1e-9}
    ]
    assert document["checks"][2]["figures"][0]["r"] is None


def test_json_in_a_folder_that_is_not_there_is_refused_before_any_work(tmp_path):
    outcome = run("--json", str(tmp_path / "nowhere" / "verify.json"))
    assert isinstance(outcome.exception, ArcherError)
    assert "nowhere" in str(outcome.exception) and outcome.output == ""


def test_everything_holds_in_a_quick_run_of_the_product(tmp_path):
    outcome = run("--json", str(tmp_path / "verify.json"))
    assert outcome.exit_code == 0, outcome.output
    names = [check["name"] for check in json.loads((tmp_path / "verify.json").read_text())["checks"]]
    assert len(names) == len(set(names)) == 9
    assert all(name in outcome.output for name in names)


def test_a_fault_in_the_product_makes_the_command_fail(monkeypatch):
    real, every = solve.damping, suite.checks
    monkeypatch.setattr(solve, "damping", lambda *args: real(*args) * 1.01)
    monkeypatch.setattr(
        suite, "checks", lambda *args: [check for check in every(*args) if check.name == "brute force"]
    )
    outcome = run()
    assert outcome.exit_code == 1
    assert "tracer against brute force" in outcome.output.strip().splitlines()[-1]


def test_help_does_not_load_torch():
    code = "import sys, archer.verify.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
