"""`archer verify --credit`: one step under each mode, from one state and one batch."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from archer.algorithms.token_credit.base import CREDIT_MODES
from archer.algorithms.token_credit.config import token_credit_config
from archer.errors import ArcherError
from archer.verify import credit_checks
from archer.verify.command import verify
from archer.verify.credit_checks import check_exact, check_modes, check_replay
from archer.verify.one_step import MODES, OneStep

app = typer.Typer()
app.command()(verify)


@pytest.fixture(scope="module")
def steps():
    with OneStep(prompts=4, responses=4, seed=0, warmup=1) as made:
        yield made


def test_exact_accuracy_is_that_of_a_plain_forward(steps):
    assert check_exact(steps).passed


def test_exact_accuracy_that_is_wrong_is_found(steps, monkeypatch):
    real = steps.exact.probabilities()
    monkeypatch.setattr(steps.exact, "probabilities", lambda: real * 1.001)
    assert not check_exact(steps).passed


def test_steps_start_from_the_same_state(steps):
    assert check_replay(steps).passed


def test_a_state_that_is_not_restored_is_found(steps, monkeypatch):
    monkeypatch.setattr(OneStep, "_restore", lambda self, batch: None)
    assert not check_replay(steps).passed


def test_a_batch_is_the_same_whatever_ran_before_it(steps):
    second, _ = steps.weights_after(1, MODES["none"])
    steps.weights_after(0, MODES["spare_confident"])
    again, _ = steps.weights_after(1, MODES["none"])
    assert torch.equal(second, again)
    assert not torch.equal(second, steps.weights_after(0, MODES["none"])[0])


FEW = {name: MODES[name] for name in ("none", "spare_confident", "nthr, permuted")}


def test_the_plain_row_is_the_change_of_a_plain_step_and_the_others_are_less_it(steps, monkeypatch):
    monkeypatch.setattr(credit_checks, "MODES", FEW)
    plain = [steps.stepped(batch, MODES["none"]).change for batch in range(2)]
    spared = [steps.stepped(batch, MODES["spare_confident"]) for batch in range(2)]
    figures = {figure.what: figure.values for figure in check_modes(steps, 2).figures}
    assert figures.keys() == FEW.keys()
    assert figures["none"] == (pytest.approx(100 * sum(plain) / 2), 0.0, 0.0, 0.0, 1.0)
    differences = [100 * (one.change - other) for one, other in zip(spared, plain, strict=True)]
    change, minus, error, higher, weight = figures["spare_confident"]
    assert change == pytest.approx(50 * sum(one.change for one in spared))
    assert minus == pytest.approx(sum(differences) / 2)
    assert error == pytest.approx(abs(differences[0] - differences[1]) / 2)
    assert higher == sum(value > 0 for value in differences) / 2
    assert weight == pytest.approx(sum(one.weight for one in spared) / 2)
    assert 0 < weight < 0.5  # most tokens of a rejected response are confident, and those are spared


def test_a_mode_and_its_permuted_control_weigh_as_much(steps):
    for mode in ("spare_confident", "nthr"):
        weights = [steps.stepped(0, MODES[name]).weight for name in (mode, f"{mode}, permuted")]
        assert weights[0] == pytest.approx(weights[1])
        vectors = [steps.weights_after(0, MODES[name])[0] for name in (mode, f"{mode}, permuted")]
        assert not torch.equal(*vectors)


def test_every_built_in_mode_has_its_row():
    assert {credit.mode for credit in MODES.values()} == set(CREDIT_MODES.names())


def test_a_mode_of_no_strength_steps_as_none(steps):
    weak = token_credit_config(mode="spare_confident", strength=0.0)
    plain, _ = steps.weights_after(0, MODES["none"])
    assert torch.equal(steps.weights_after(0, weak)[0], plain)


def test_the_command_prints_the_table_and_writes_the_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(credit_checks, "MODES", FEW)
    options = ["--credit", "--quick", "--prompts", "2", "--responses", "4", "--warmup", "0"]
    outcome = CliRunner().invoke(app, [*options, "--json", str(tmp_path / "credit.json")])
    assert outcome.exit_code == 0, outcome.output
    assert "All 2 exact checks hold" in outcome.output.strip().splitlines()[-1]
    document = json.loads((tmp_path / "credit.json").read_text())
    assert (document["batches"], document["warmup"], document["prompts"]) == (2, 0, 2)
    (table,) = (check for check in document["checks"] if check["passed"] is None)
    assert [figure["what"] for figure in table["figures"]] == list(FEW)
    assert all(mode in outcome.output for mode in FEW)


@pytest.mark.parametrize("option", ["--batches", "--warmup"])
def test_options_of_the_credit_test_are_refused_without_it(option):
    outcome = CliRunner().invoke(app, [option, "3"])
    assert isinstance(outcome.exception, ArcherError) and "--credit" in str(outcome.exception)
