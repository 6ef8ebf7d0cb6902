"""Values out of the environment are used, and stored nowhere: not in files, not in what trackers are sent."""

import stat
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from archer.cli import main
from archer.config import compose
from archer.config.compose import stored_tree, to_yaml
from archer.data.builtin import tiny_reasoner_path
from archer.rewards import RewardRequest, RewardScorer
from archer.runs.folder import RunFolder
from archer.training.progress import run_trackers
from archer.training.traces import Traces

SECRET = "sk-very-secret-4711"
KEYS = {
    "plain": "+reward.custom_kwargs.key=${oc.env:MY_KEY}",
    "inside a text": "+reward.custom_kwargs.key='Bearer ${oc.env:MY_KEY}'",
    "in a list": "+reward.custom_kwargs.keys=['${oc.env:MY_KEY}',b]",
    "by verl's name": "+reward.custom_reward_function.reward_kwargs.key=${oc.env:MY_KEY}",
    "by an old name": "+custom_reward_function.reward_kwargs.key=${oc.env:MY_KEY}",
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


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("data.train_files", f"/data/{SECRET}/train.jsonl"),
        ("reward.custom_reward_function.data_source", SECRET),
        ("trainer.influence_trace.module_name_filter", f"{SECRET}, q_proj"),
        ("actor_rollout_ref.actor.optim.lr", "0.00000471100"),
        ("reward.timeout_s", "4711"),
        ("data.seed", "+0004711"),
    ],
)
def test_a_text_that_becomes_a_list_or_a_number_is_obeyed_and_not_shown(key, text, monkeypatch):
    monkeypatch.setenv("MY_TEXT", text)
    config = config_of(f"{key}=${{oc.env:MY_TEXT}}")
    node = stored_tree(config)
    for name in key.split("."):
        node = node[name]
    assert node == "${oc.env:MY_TEXT}"


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


def test_a_trace_does_not_repeat_it_either(tmp_path):
    config = config_of(
        "trainer.project_name=${oc.env:MY_KEY}",
        f"trainer.default_local_dir={tmp_path}",
        "trainer.entropy_trace.enable=True",
        "trainer.influence_trace.enable=True",
    )
    Traces(config, AutoTokenizer.from_pretrained(tiny_reasoner_path()), 0).close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 4
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("setting", ["trainer.total_epochs", "actor_rollout_ref.rollout.temperature"])
def test_an_error_about_a_value_shows_how_it_was_written(setting, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["archer", "train", f"{setting}=${{oc.env:MY_KEY}}"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert SECRET not in told
    assert "${oc.env:MY_KEY}" in told


def test_what_a_reward_function_raises_does_not_repeat_the_key_it_was_given(tmp_path):
    (tmp_path / "r.py").write_text(
        "def compute_score(key, **row):\n    raise PermissionError('bad key ' + key)\n"
    )
    path = f"reward.custom_reward_function.path={tmp_path / 'r.py'}"
    config = config_of(KEYS["plain"], path)
    with RewardScorer(config.reward) as scorer:
        (result,) = scorer.score([RewardRequest("any", "response", "1")])
    assert "PermissionError: bad key ${oc.env:MY_KEY}" in result.failure
