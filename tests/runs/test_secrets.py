"""Values out of the environment are used, and stored nowhere: not in files, not in what trackers are sent."""

import stat
from dataclasses import replace

import pytest

from archer.config import compose
from archer.config.compose import stored_tree, to_yaml
from archer.runs.folder import RunFolder
from archer.training.progress import run_trackers

SECRET = "sk-very-secret-4711"
KEYS = {
    "plain": "+reward.custom_kwargs.key=${oc.env:MY_KEY}",
    "inside a text": "+reward.custom_kwargs.key='Bearer ${oc.env:MY_KEY}'",
    "in a list": "+reward.custom_kwargs.keys=['${oc.env:MY_KEY}',b]",
    "with a default": "+reward.custom_kwargs.key=${oc.env:MY_KEY,none}",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", SECRET)


def config_of(*overrides: str):
    return compose(list(overrides))


@pytest.mark.parametrize("how", KEYS)
def test_a_value_out_of_the_environment_is_used_but_never_shown(how):
    config = config_of(KEYS[how])
    assert SECRET in str(config.reward)
    for shown in (to_yaml(config), str(stored_tree(config)), to_yaml(replace(config))):
        assert SECRET not in shown
        assert "oc.env:MY_KEY" in shown


def test_a_value_that_refers_to_one_is_not_shown_either():
    config = config_of(
        "trainer.project_name=${oc.env:MY_KEY}", "trainer.experiment_name=run-${trainer.project_name}"
    )
    assert config.trainer.experiment_name == f"run-{SECRET}"
    assert SECRET not in to_yaml(config)


def test_the_run_folder_keeps_it_to_itself_and_a_resume_knows_its_own_folder(tmp_path):
    options = (KEYS["plain"], f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.logger=[tensorboard]")
    config = config_of(*options)
    folder = RunFolder(config)
    folder.claim()
    folder.settle()
    trackers = run_trackers(config, folder, None)
    for tracker in trackers:
        tracker.log(1, {"x": 1.0})
        tracker.close()
    folder.release()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert stat.S_IMODE((tmp_path / "run/config.yaml").stat().st_mode) == 0o600
    assert RunFolder(config_of(*options)).inspect() is None
