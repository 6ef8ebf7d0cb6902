"""What a user may get wrong about an evaluation, and what the message says."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from archer.cli import app
from archer.config import compose
from archer.config.compose import to_yaml
from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.evaluation.choice import choose_model
from archer.evaluation.plan import EvalOptions, make_plan
from archer.evaluation.run import evaluate
from archer.evaluation.store import EvalFolder

TINY = choose_model("builtin:tiny_reasoner")


def attempt(tmp_path: Path, **options) -> None:
    evaluate(make_plan(TINY, EvalOptions(**options)), Console(quiet=True), tmp_path / "out")


def command(*arguments: str) -> None:
    app(["eval", *arguments], standalone_mode=False)


def test_a_model_that_does_not_exist(tmp_path):
    with pytest.raises(ArcherError, match=r"does not exist\. Give a checkpoint"):
        choose_model(str(tmp_path / "nothing" / "here"))


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(ArcherError, match=r"no config\.json"):
        choose_model(str(tmp_path))


def test_a_run_without_a_checkpoint(tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(ArcherError, match="no checkpoint yet"):
        choose_model(str(tmp_path))


def test_no_data():
    with pytest.raises(ArcherError, match="give --data FILE"):
        make_plan(TINY, EvalOptions())


def test_data_that_is_empty(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ArcherError, match="dataset is empty"):
        attempt(tmp_path, data=(str(tmp_path / "empty.jsonl"),))


def test_data_in_another_schema(tmp_path):
    (tmp_path / "raw.jsonl").write_text(json.dumps({"question": "1+1", "answer": "2"}))
    with pytest.raises(ArcherError, match=r"field prompt is missing.*The row has: question, answer"):
        attempt(tmp_path, data=(str(tmp_path / "raw.jsonl"),))


def test_responses_longer_than_the_model_allows(tmp_path):
    with pytest.raises(ArcherError, match="positions of builtin:tiny_reasoner"):
        attempt(tmp_path, data=("builtin:arithmetic/val?size=2",), max_tokens=10_000)


RUNS = {
    "a batch smaller than the default mini-batch": {"data": {"train_batch_size": 2}},
    "an overlong buffer longer than what is asked for": {
        "reward": {"reward_kwargs": {"overlong_buffer_cfg": {"enable": True, "len": 500}}}
    },
    "another engine, its devices and its estimator": {
        "engine": {"name": "verl", "verl": {"critic": {}}},
        "trainer": {"n_gpus_per_node": 8},
        "algorithm": {"adv_estimator": "gae"},
    },
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS.keys())
def test_what_only_training_uses_does_not_keep_a_checkpoint_from_being_evaluated(tmp_path, changes):
    stored = OmegaConf.merge(OmegaConf.create(to_yaml(compose(["recipe=arithmetic"]))), changes)
    OmegaConf.save(stored, tmp_path / "config.yaml")
    checkpoint = tmp_path / "checkpoints" / "global_step_1"
    shutil.copytree(tiny_reasoner_path(), checkpoint)
    plan = make_plan(choose_model(str(checkpoint)), EvalOptions(max_tokens=20))
    assert plan.config.data.max_response_length == 20
    assert plan.config.data.val_files == ("builtin:arithmetic/val",)
    assert plan.config.engine.name == "local"


def test_a_damaged_run_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text("data: [")
    shutil.copytree(tiny_reasoner_path(), tmp_path / "checkpoints" / "global_step_1")
    with pytest.raises(ArcherError, match="cannot be read as the configuration of a run"):
        make_plan(choose_model(str(tmp_path)), EvalOptions())


def test_several_greedy_responses():
    with pytest.raises(ArcherError, match="same response 4 times"):
        make_plan(TINY, EvalOptions(data=("builtin:arithmetic/val",), n=4, temperature=0.0))


def test_an_unknown_setting_and_a_value_out_of_range():
    with pytest.raises(ArcherError, match=r"reward\.timeout"):
        make_plan(TINY, EvalOptions(data=("builtin:arithmetic/val",), overrides=("reward.timeout=3",)))
    with pytest.raises(ArcherError, match="top_p=2"):
        make_plan(TINY, EvalOptions(data=("builtin:arithmetic/val",), top_p=2.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either --model .* or --watch"),
        (("--model", "x", "--watch", "y"), "either --model .* or --watch"),
        (("--model", "builtin:tiny_reasoner", "--until-step", "3"), "--until-step says when --watch ends"),
    ],
)
def test_options_that_do_not_go_together(arguments, message):
    with pytest.raises(ArcherError, match=message):
        command(*arguments)


def test_the_command_prints_a_table_and_where_the_samples_are(tmp_path, capsys):
    command(
        "--model", "builtin:tiny_reasoner", "--data", "builtin:arithmetic/val?size=3", "--n", "2",
        "--max-tokens", "48", "--out", str(tmp_path / "out"), "engine.threads=1",
    )  # fmt: skip
    printed = " ".join(capsys.readouterr().out.split())
    assert "avg@2" in printed and "pass@2" in printed and "maj@2" in printed
    assert str(tmp_path / "out" / "samples.jsonl") in printed.replace(" ", "")


def test_ctrl_c_says_that_the_same_command_resumes(tmp_path, monkeypatch, capsys):
    def interrupted(self, samples):
        raise KeyboardInterrupt

    monkeypatch.setattr(EvalFolder, "append", interrupted)
    arguments = [
        "--model",
        "builtin:tiny_reasoner",
        "--data",
        "builtin:arithmetic/val?size=1",
        "--max-tokens",
        "8",
    ]
    with pytest.raises(SystemExit) as exit_:
        app(["eval", *arguments, "--out", str(tmp_path / "out"), "engine.threads=1"])
    assert exit_.value.code == 130
    assert "The same command resumes" in capsys.readouterr().out
