"""A TRL that the adapter does not fit is refused in one line."""

import pytest

from archer.errors import ArcherError
from archer.integrations import trl_versions


def trainer(**methods):
    """A class as TRL's, with some methods changed; None leaves one out."""

    def fitting(arguments: tuple[str, ...]):
        scope: dict = {}
        exec(f"def method(self, {', '.join(arguments)}): ...", scope)
        return scope["method"]

    found = {name: fitting(arguments) for name, arguments in trl_versions.EXPECTED.items()} | methods
    body = {name: method for name, method in found.items() if method is not None}
    base = type("GRPOTrainer", (), {**body, "__module__": "trl.trainer.grpo_trainer"})
    return type("Mine", (base,), {})


@pytest.fixture
def installed(monkeypatch):
    def say(number: str) -> None:
        monkeypatch.setattr(trl_versions, "version", lambda _: number)

    return say


@pytest.mark.parametrize("number", [trl_versions.FIRST, trl_versions.LAST])
def test_the_tested_range_is_taken(installed, number):
    installed(number)
    trl_versions.check_trl(trainer())


def test_an_old_one_is_refused(installed):
    installed("0.29.1")
    with pytest.raises(ArcherError, match=r"needs trl>=1.0.0,<=1.16.0; trl 0.29.1 is older"):
        trl_versions.check_trl(trainer())


def test_a_method_that_is_gone_or_takes_other_arguments_is_named(installed):
    installed("1.99.0")
    with pytest.raises(ArcherError, match=r"trl 1.99.0 has no GRPOTrainer._compute_loss"):
        trl_versions.check_trl(trainer(_compute_loss=None))
    with pytest.raises(ArcherError, match=r"a GRPOTrainer._compute_loss without inputs"):
        trl_versions.check_trl(trainer(_compute_loss=lambda self, model: None))


def test_one_that_was_never_tried_is_told(installed, caplog):
    installed("1.99.0")
    trl_versions.check_trl(trainer())
    assert "newer than the last that Archer was tested with" in caplog.text
