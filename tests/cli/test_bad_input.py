"""Bad input: a message that names the thing and the way out, and nothing lost that was there."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from archer.cli import main
from archer.config import compose
from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.train import make_run


@pytest.fixture
def refusal(runs):
    """Train and return the message of the refusal."""

    def attempt(*overrides: str) -> str:
        with pytest.raises(ArcherError) as error:
            runs.here("run", *overrides)
        return str(error.value)

    return attempt


def prompts(folder: Path, *rows: object) -> str:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return f"data.train_files={file}"


def row(content: str = "1+1=", **fields: object) -> dict[str, object]:
    return {
        "prompt": [{"role": "user", "content": content}],
        "data_source": "arithmetic",
        "reward_model": {"ground_truth": "2"},
        **fields,
    }


def test_a_missing_model_folder(refusal):
    text = refusal("recipe=arithmetic", "actor_rollout_ref.model.path=/no/such/model")
    assert "/no/such/model: there is no such folder" in text


def test_a_folder_that_is_no_model(refusal, tmp_path):
    text = refusal("recipe=arithmetic", f"actor_rollout_ref.model.path={tmp_path}")
    assert "has no config.json" in text


def test_a_hub_id_that_cannot_be_had(refusal):
    text = refusal("recipe=arithmetic", "actor_rollout_ref.model.path=nobody/nothing")
    assert "nobody/nothing could not be loaded" in text


def test_a_model_without_a_chat_template(refusal, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_reasoner_path(), model)
    (model / "chat_template.jinja").unlink()
    text = refusal("recipe=arithmetic", f"actor_rollout_ref.model.path={model}")
    assert "no chat template" in text
    assert "actor_rollout_ref.model.custom_chat_template" in text


def test_an_empty_data_set(refusal, tmp_path):
    assert "prompts.jsonl" in refusal(prompts(tmp_path))


def test_prompts_that_are_all_too_long(refusal, tmp_path):
    data = prompts(tmp_path, *[row("1+" * 40) for _ in range(4)])
    assert "max_prompt_length" in refusal(data, "data.filter_overlong_prompts=True")


def test_one_prompt_that_is_too_long_is_named(refusal, tmp_path):
    text = refusal(prompts(tmp_path, row(), row("1+" * 40)))
    assert "prompts.jsonl" in text and "data.filter_overlong_prompts" in text


def test_a_bad_row_is_named_with_file_row_and_field(refusal, tmp_path):
    text = refusal(prompts(tmp_path, row(), {"prompt": 3, "data_source": "arithmetic"}))
    assert "prompts.jsonl" in text and "line 2, field prompt" in text


def test_a_data_source_without_a_reward(refusal, tmp_path):
    text = refusal(prompts(tmp_path, *[row(data_source="riddles") for _ in range(4)]))
    assert "riddles" in text and "reward.custom_reward_function.path" in text


def test_a_batch_larger_than_the_data_set(refusal, tmp_path):
    assert "data.train_batch_size" in refusal(prompts(tmp_path, row()))


def test_lengths_beyond_the_models_positions(refusal):
    assert "positions" in refusal("data.max_response_length=100000")


def test_a_tokenizer_that_is_not_the_models(refusal, tmp_path):
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(tiny_reasoner_path(), tokenizer)
    table = json.loads((tokenizer / "tokenizer.json").read_text())
    table["added_tokens"].append({**table["added_tokens"][0], "id": 5000, "content": "<|far|>"})
    (tokenizer / "tokenizer.json").write_text(json.dumps(table))
    template = (tokenizer / "chat_template.jinja").read_text()
    (tokenizer / "chat_template.jinja").write_text(template.replace("<|user|>", "<|far|>"))
    text = refusal(f"actor_rollout_ref.model.tokenizer_path={tokenizer}")
    assert "the tokenizer is not the model's" in text


def test_a_reward_function_that_is_not_there(refusal, tmp_path):
    assert "nowhere.py" in refusal(f"reward.custom_reward_function.path={tmp_path}/nowhere.py")


def test_a_folder_that_belongs_to_another_configuration(runs, refusal):
    runs.here("run", "trainer.total_training_steps=1")
    before = sorted(runs.folder.rglob("*"))
    text = refusal("actor_rollout_ref.actor.optim.lr=1e-3")
    assert "actor_rollout_ref.actor.optim.lr: 0.0002 there, 0.001 now" in text
    assert "trainer.experiment_name=NAME" in text
    assert sorted(runs.folder.rglob("*")) == before


def test_a_folder_that_is_not_a_run(runs, refusal):
    (runs.folder / "run").mkdir()
    (runs.folder / "run/thesis.tex").write_text("years of work")
    assert "not the folder of an Archer run" in refusal()
    assert [path.name for path in (runs.folder / "run").iterdir()] == ["thesis.tex"]


def test_a_fresh_start_never_overwrites_a_run(runs, refusal):
    runs.here("run", "trainer.total_training_steps=1")
    assert "would be lost" in refusal("trainer.resume_mode=disable")


def test_resuming_from_an_old_checkpoint_never_overwrites_newer_ones(runs, refusal):
    runs.here("run", "trainer.max_actor_ckpt_to_keep=3")
    old = runs.folder / "run/checkpoints/global_step_1"
    text = refusal("trainer.resume_mode=resume_path", f"trainer.resume_from_path={old}")
    assert "holds later checkpoints" in text


def test_resuming_from_what_is_no_checkpoint(refusal, tmp_path):
    text = refusal("trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/nothing")
    assert "global_step_N" in text


def test_two_processes_never_train_in_one_folder(runs):
    config = compose(runs.arguments("run"))
    first = make_run(config, Console(file=io.StringIO()))
    first.folder.claim()
    with pytest.raises(ArcherError, match="Another process is training"):
        runs.here("run")
    first.folder.release()


def test_a_full_disk_ends_with_a_message_and_keeps_what_was_saved(runs, tmp_path):
    """On a real file system with room for one checkpoint (10 MB) but not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = runs.arguments("unused", f"trainer.default_local_dir={disk}/run")
    train = " ".join(f"'{part}'" for part in [sys.executable, "-m", "archer.cli", "train", *arguments])
    script = (
        f"mount -t tmpfs -o size=16m none {disk} && {train}; code=$?; "
        f"ls -A {disk}/run/checkpoints; exit $code"
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "could not be written" in done.stderr
    assert "global_step_1 is untouched" in " ".join(done.stderr.split())
    assert "global_step_1" in done.stdout and ".saving" not in done.stdout


LONG = "x" * 300  # longer than any file system's names


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", LONG],
        ["trace", "check", LONG],
        ["trace", "convert", LONG, "out"],
        ["trace", "import", LONG, "out"],
        ["data", "show", LONG],
        ["data", "check-gold", LONG],
        ["export-model", LONG, "out"],
        ["ablate", "run", LONG],
        ["train", "--print-config", "--config-dir", LONG],
        ["train", "--dry-run", f"reward.custom_reward_function.path={LONG}.py"],
        ["train", "--dry-run", f"trainer.default_local_dir={LONG}"],
        ["train", "--dry-run", "reward.custom_reward_function.path=loop"],
        ["trace", "check", "loop"],
        ["trace", "convert", "empty", "loop"],
        ["train", "--dry-run", "recipe=arithmetic", "actor_rollout_ref.model.path=--"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_a_name_that_no_file_can_have_or_a_loop_of_links_is_one_message(
    arguments, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("empty").mkdir()
    monkeypatch.setattr(sys, "argv", ["archer", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code not in (0, None)
    said = capsys.readouterr()
    assert "error:" in said.err or "no" in said.out + said.err
    assert "Traceback" not in said.err


def test_a_file_whose_name_is_no_text_can_be_told_of(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.jsonl"
    command = [sys.executable, "-m", "archer", "data", "show", name]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONUTF8": "1"})
    assert done.returncode == 2 and "does not exist" in " ".join(done.stderr.split()), done.stderr
