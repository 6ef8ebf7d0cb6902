"""`archer train --dry-run`: what can be checked is checked, nothing is written; refusals come early."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from archer.cli import app
from archer.config import compose
from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.preflight import machine
from archer.preflight.check import full_check, refuse_early
from archer.preflight.memory import GIB, Demand, Part
from archer.preflight.prompts import how_to_make
from archer.preflight.report import Finding, problems
from archer.runs.folder import RunFolder
from archer.runs.integrity import write_manifest

CPU = "engine.device=cpu"


def check(*overrides: str) -> dict[str, Finding]:
    return {finding.subject: finding for finding in full_check(compose([CPU, *overrides]))}


def only_problem(*overrides: str) -> Finding:
    found = problems(full_check(compose([CPU, *overrides])))
    assert len(found) == 1, found
    return found[0]


def prompts(folder: Path, *rows: dict[str, object]) -> str:
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return "data.train_files=prompts.jsonl"


def row(**fields: object) -> dict[str, object]:
    plain = {"prompt": "1+1=", "data_source": "arithmetic", "reward_model": {"ground_truth": "2"}}
    return plain | fields


def test_the_embedded_default_could_start_and_nothing_is_written(elsewhere):
    result = CliRunner().invoke(app, ["train", "--dry-run", CPU])
    assert result.exit_code == 0, result.output
    assert "This run could start here" in result.output and "problem" not in result.output
    assert list(elsewhere.iterdir()) == []


def test_it_tells_what_was_looked_at(elsewhere):
    found = check()
    assert set(found) == {
        *("versions", "device", "model", "weights", "tokenizer", "run folder", "memory", "disk"),
        *("data.train_files", "data.val_files", "prompts of data.train_files", "prompts of data.val_files"),
        *("influence", "influence sign"),
    }
    assert "coverage: 96% of 0.8 M" in found["influence"].text
    assert "not traced: output head lm_head" in found["influence"].text
    assert "also raises that of the accepted responses" in found["influence sign"].text
    assert "arithmetic 4,096" in found["data.train_files"].text
    assert "11 to 11 tokens" in found["prompts of data.train_files"].text
    assert "0.8 M parameters" in found["weights"].text


def test_it_warns_of_little_coverage_and_of_trivial_scores(elsewhere):
    influence = "trainer.influence_trace"
    text = check(f"{influence}.module_name_filter=[q_proj]")["influence"]
    assert text.level == "note" and "most of them linear modules" in text.text
    text = check(f"{influence}.output_function=log_prob_reward")["influence"]
    assert text.level == "note" and "every rejected token scores exactly 0" in text.text
    assert check(f"{influence}.module_name_filter=[nothing]")["influence"].level == "problem"


def test_one_thing_is_told_as_one(elsewhere):
    assert check("trainer.save_freq=-1")["disk"].text.startswith("1 checkpoint of ")
    assert check("trainer.save_freq=10")["disk"].text.startswith("3 checkpoints of ")
    for number, told in ((1, "1 process on"), (2, "2 processes on")):
        config = compose(["engine=verl", "engine.device=cpu", f"trainer.n_gpus_per_node={number}"])
        assert machine.check_device(config).text.startswith(told)


def test_a_bad_configuration_is_a_problem_of_the_table():
    result = CliRunner().invoke(app, ["train", "--dry-run", "data.trian_batch_size=3"])
    assert result.exit_code == 2
    assert "configuration" in result.output and "1 problem." in result.output


def test_a_model_folder_without_weights(elsewhere):
    shutil.copytree(tiny_reasoner_path(), elsewhere / "model")
    (elsewhere / "model" / "model.safetensors").unlink()
    found = only_problem("recipe=arithmetic", "actor_rollout_ref.model.path=./model")
    assert (found.subject, found.text) == ("weights", "./model has a config.json but no weights.")


def test_a_model_that_is_not_there(elsewhere):
    found = only_problem("recipe=arithmetic", "actor_rollout_ref.model.path=./nowhere")
    assert found.subject == "model" and "./nowhere: there is no such folder" in found.text


def test_a_row_without_a_ground_truth_is_named_though_the_model_is_missing(elsewhere):
    data = prompts(elsewhere, row(), row(reward_model={}))
    found = check("recipe=arithmetic", "actor_rollout_ref.model.path=./nowhere", data)
    assert "prompts.jsonl, line 2" in found["data.train_files"].text


def test_a_line_that_is_no_json_is_one_problem(elsewhere):
    data = prompts(elsewhere, *[row()] * 16)
    with (elsewhere / "prompts.jsonl").open("a") as file:
        file.write("\n{broken")
    assert "line 17" in only_problem(data).text


def test_rows_that_the_run_will_not_use_are_told_apart(elsewhere):
    found = check("data.val_max_samples=6")
    assert "the run uses 6 of them (data.val_max_samples)" in found["data.val_files"].text
    assert "of them" not in found["data.train_files"].text


def test_a_data_source_that_no_reward_knows(elsewhere):
    found = only_problem(prompts(elsewhere, *[row(data_source="riddles")] * 16))
    assert found.subject == "data.train_files" and "riddles" in found.text


def test_prompts_that_are_too_long(elsewhere):
    found = only_problem(prompts(elsewhere, *[row()] * 15, row(prompt="1+" * 40)))
    assert found.subject == "prompts of data.train_files" and "data.max_prompt_length" in found.text


def test_too_few_prompts_for_a_batch(elsewhere):
    assert "A batch of 16 prompts" in only_problem(prompts(elsewhere, row())).text


def test_lengths_beyond_the_models_positions(elsewhere):
    found = problems(full_check(compose([CPU, "data.max_response_length=100000"])))
    assert "positions of builtin:tiny_reasoner" in found[0].text


def test_a_run_folder_of_another_configuration_and_one_to_go_on_with(elsewhere):
    config = compose([CPU])
    folder = RunFolder(config)
    folder.claim()
    folder.settle()
    assert "Another process is training" in only_problem().text
    folder.release()
    assert "lr: 0.0002 there" in only_problem("actor_rollout_ref.actor.optim.lr=1e-3").text
    checkpoint = config.run_dir / "checkpoints" / "global_step_30"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    write_manifest(checkpoint, 30, None)
    assert check()["run folder"].text.endswith("resumes from step 30")
    assert check("trainer.total_training_steps=20")["run folder"].level == "note"


def test_a_tracker_that_is_not_installed(elsewhere, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert only_problem("trainer.logger=[console,wandb]").remedy == "pip install wandb"


WANDB = "trainer.logger=[console,wandb]"


@pytest.fixture
def no_wandb_key(elsewhere, monkeypatch):
    """Somebody who has never used W&B."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(elsewhere / "config"))
    monkeypatch.setenv("NETRC", str(elsewhere / "netrc"))
    return elsewhere


def test_wandb_without_a_key_is_a_problem(no_wandb_key):
    found = only_problem(WANDB)
    assert found.subject == "trainer.logger" and "WANDB_MODE=offline" in found.remedy


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_API_KEY", "x" * 40), ("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled")]
)
def test_wandb_with_a_key_or_offline_could_start(no_wandb_key, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not problems(machine.check_trackers(compose([WANDB])))


def test_wandb_with_a_key_in_netrc_could_start_on_that_server_only(no_wandb_key, monkeypatch):
    (no_wandb_key / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert not problems(machine.check_trackers(compose([WANDB])))
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert problems(machine.check_trackers(compose([WANDB])))


def test_wandb_switched_offline_for_the_folder_could_start(no_wandb_key):
    (no_wandb_key / "wandb").mkdir()
    (no_wandb_key / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert not problems(machine.check_trackers(compose([WANDB])))


def test_without_a_gpu_both_engines_say_so_before_anything_starts(elsewhere, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ArcherError, match="torch sees no CUDA device"):
        refuse_early(compose(["engine.device=cuda"]))
    with pytest.raises(ArcherError, match="needs 8 GPUs, but torch sees no CUDA device"):
        refuse_early(compose(["engine=verl", "trainer.n_gpus_per_node=8"]))


def test_a_cluster_to_join_counts_its_own_gpus(elsewhere, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    found = machine.check_device(compose(["engine=verl", "trainer.n_gpus_per_node=8"]))
    assert found.level == "note" and "10.0.0.1:6379" in found.text


def test_several_machines_without_a_cluster(elsewhere):
    found = machine.check_device(compose(["engine=verl", "trainer.nnodes=2"]))
    assert found.level == "problem" and "no Ray cluster" in found.text


def test_train_refuses_in_the_same_words_as_the_dry_run(elsewhere):
    overrides = ["recipe=smollm2_135m_gsm8k", CPU]
    with pytest.raises(ArcherError) as refusal:
        refuse_early(compose(overrides))
    for finding in problems(full_check(compose(overrides))):
        assert finding.sentence in str(refusal.value)
    result = CliRunner().invoke(app, ["train", *overrides])
    assert isinstance(result.exception, ArcherError) and str(result.exception) == str(refusal.value)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("needed", "level"), [(2.0, "ok"), (9.5, "note"), (10.5, "problem")], ids=["fits", "tight", "too much"]
)
def test_memory_is_compared_with_what_is_free(needed, level):
    demand = Demand((Part("weights", int(needed * GIB), True, True),))
    assert machine.compare(demand, 10 * GIB, "this device").level == level


def test_too_little_memory_comes_with_settings_that_would_fit(elsewhere, monkeypatch):
    monkeypatch.setattr(machine, "room", lambda on_gpu: 3 * GIB // 2)
    found = only_problem("actor_rollout_ref.rollout.max_num_seqs=4096", "data.max_response_length=100")
    assert found.subject == "memory" and "KV cache" in found.text
    assert "With actor_rollout_ref.rollout.max_num_seqs=" in found.remedy
    monkeypatch.setattr(machine, "room", lambda on_gpu: GIB // 2)
    assert "larger device" in only_problem().remedy


def test_too_little_memory_is_a_warning_when_a_run_starts(elsewhere, monkeypatch):
    monkeypatch.setattr(machine, "room", lambda on_gpu: GIB // 2)
    doubt = refuse_early(compose([CPU]))
    assert doubt is not None and "does not fit" in doubt.sentence


def test_a_demand_is_the_larger_of_its_two_phases():
    parts = (Part("weights", 4, True, True), Part("cache", 5, True, False), Part("gradients", 3, False, True))
    assert Demand(parts).peak == 9


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("data/dapo-math-17k-train.parquet", "archer data prepare dapo-math-17k"),
        ("data/gsm8k-test.parquet", "archer data prepare gsm8k --split test"),
        ("data/aime24-test.parquet", "archer data prepare aime24"),
        ("elsewhere/gsm8k-train.parquet", "archer data prepare gsm8k --out elsewhere/gsm8k-train.parquet"),
    ],
)
def test_a_missing_file_comes_with_the_command_that_makes_it(file, command):
    assert how_to_make(file) == f"Make it: {command}"


def test_a_missing_file_that_no_command_makes_says_where_to_look():
    assert "docs/recipes.md" in how_to_make("data/leetcode-train.parquet")
    assert "docs/recipes.md" in how_to_make("mine.jsonl")


def test_a_hub_that_cannot_be_reached_is_named(elsewhere, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(ArcherError, match=r"the hub at http://127\.0\.0\.1:9 cannot be reached"):
        refuse_early(
            compose(["recipe=base", "actor_rollout_ref.model.path=a/b", "data.train_files=[x]", CPU])
        )


def test_a_run_that_samples_with_vllm_is_told_when_it_is_missing(monkeypatch):
    config = compose(["actor_rollout_ref.rollout.name=vllm"])
    monkeypatch.setattr(machine, "installed", lambda name: None if name == "vllm" else "9.9.9")
    finding = machine.check_installed(config)
    assert finding.level == "problem"
    assert "vllm >= 0.11 is missing" in finding.text and "constraints-gpu.txt" in finding.text
    assert machine.check_installed(compose([])).level == "ok"
