"""Starting again: after a mistake, from another run, with other settings, with damage."""

import json
import shutil

import pytest

from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.trace.reader import TraceReader


def test_a_command_that_failed_leaves_no_mark_on_the_folder(runs):
    with pytest.raises(ArcherError, match=r"nofile\.jsonl"):
        runs.here("run", "data.train_files=nofile.jsonl")
    assert runs.here("run", "trainer.total_training_steps=1").steps == 1


def test_validation_alone_measures_the_newest_checkpoint_and_keeps_the_result(runs):
    runs.here("run", "trainer.total_training_steps=1")
    before = (runs.folder / "run/result.json").read_text()
    outcome = runs.here("run", "trainer.val_only=True", "data.val_max_samples=3")
    assert outcome.progress.measured_at == 1
    assert (runs.folder / "run/result.json").read_text() == before


def test_the_accuracy_after_is_never_the_one_before(runs):
    outcome = runs.here("run", "trainer.total_training_steps=1", "data.val_files=[]")
    assert outcome.progress.accuracy_after is None
    outcome = runs.here("other", "trainer.val_only=True")
    assert outcome.progress.accuracy_after is None


def test_a_run_begun_from_another_goes_on_with_the_same_command(runs):
    runs.here("first", "trainer.total_training_steps=1")
    start = runs.folder / "first/checkpoints/global_step_1"
    options = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={start}")
    runs.here("second", *options, "trainer.total_training_steps=2")
    assert runs.here("second", *options).steps == 3


def test_a_setting_that_did_not_exist_yet_does_not_lock_a_run_out(runs):
    runs.here("run", "trainer.total_training_steps=1")
    file = runs.folder / "run/config.yaml"
    file.write_text(file.read_text().replace("  reward_fn_key: data_source\n", ""))
    assert runs.here("run", "trainer.total_training_steps=2").steps == 2


def test_a_configuration_that_cannot_be_read_is_named(runs):
    runs.here("run", "trainer.total_training_steps=1")
    (runs.folder / "run/config.yaml").write_text("{[")
    with pytest.raises(ArcherError, match="cannot be read as a configuration"):
        runs.here("run")


def test_a_fresh_start_refuses_a_folder_that_has_only_metrics(runs):
    runs.here("run", "trainer.val_only=True")
    with pytest.raises(ArcherError, match="would be lost"):
        runs.here("run", "trainer.resume_mode=disable")


def test_a_damaged_checkpoint_is_named_with_the_way_out(runs):
    runs.here("run", "trainer.total_training_steps=1")
    (runs.folder / "run/checkpoints/global_step_1/training_state.pt").write_bytes(b"damaged")
    with pytest.raises(
        ArcherError, match=r"training_state.pt has 7 bytes.*global_step_1 away to resume from"
    ):
        runs.here("run", "trainer.total_training_steps=2")


def test_a_generation_configuration_that_cannot_be_saved_costs_no_run(runs, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_reasoner_path(), model)
    file = model / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sample": False, "temperature": 0.6}))
    options = ("recipe=arithmetic", f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=1")
    assert runs.here("run", *options).steps == 1
    assert (runs.folder / "run/checkpoints/global_step_1/model.safetensors").is_file()


def test_failures_are_counted_also_when_dynamic_sampling_keeps_nothing(runs, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def compute_score(**row):\n"
        "    if int(row['ground_truth']) % 2:\n        raise ValueError('broken')\n"
        "    return 0.0\n"
    )
    runs.here(
        "run",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.max_num_gen_batches=2",
        f"reward.custom_reward_function.path={tmp_path}/reward.py",
        "trainer.total_training_steps=1",
        "data.val_files=[]",
        "reward.max_failed_share=0.9",
    )
    line = runs.metrics("run")[-1]
    assert line["reward/crashes"] in range(4, 32, 4)  # of 8 groups of 4, those of an odd sum
    assert line["groups/all_wrong"] == 8 - line["reward/crashes"] / 4


def test_what_a_reward_function_returns_besides_the_score_is_logged_and_traced(runs, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def compute_score(**row):\n"
        "    text = row['solution_str']\n"
        "    return {'score': 1.0, 'digits': float(len(text)), 'why': 'begins with ' + text[0]}\n"
    )
    runs.here(
        "run",
        f"reward.custom_reward_function.path={tmp_path}/reward.py",
        "trainer.total_training_steps=1",
        "data.val_files=[]",
    )
    assert runs.metrics("run")[-1]["reward/digits"] > 20
    reader = TraceReader(runs.folder / "run/entropy_trace")
    arrays = reader.read(1).arrays
    for row in range(arrays.rows):
        text = reader.vocab.decode(arrays.responses[row][arrays.response_mask[row]]).text
        assert arrays.said(row)["why"] == f"begins with {text[0]}"


def test_each_accuracy_keeps_how_it_was_sampled_when_a_resumed_run_samples_otherwise(runs):
    sampled = "actor_rollout_ref.rollout.val_kwargs.do_sample=True"
    runs.here("run", "trainer.total_training_steps=1", sampled)
    greedy = "actor_rollout_ref.rollout.val_kwargs.do_sample=False"
    progress = runs.here("run", "trainer.total_training_steps=2", greedy).progress
    assert progress.sampled_before == "2 samples a prompt, temperature 1"
    assert progress.sampled_after == "greedy"


def test_a_reward_function_that_always_raises_stops_the_run_at_its_first_step(runs, tmp_path):
    (tmp_path / "reward.py").write_text("def compute_score(**row):\n    raise ValueError('broken')\n")
    own = f"reward.custom_reward_function.path={tmp_path}/reward.py"
    with pytest.raises(ArcherError, match=r"16 of 16 responses .* ValueError: broken.* correct the rew"):
        runs.here("run", own, "data.val_files=[]")
    assert not (runs.folder / "run/result.json").exists()
    (tmp_path / "reward.py").write_text("def compute_score(**row):\n    return 1.0\n")
    assert runs.here("run", own, "data.val_files=[]").steps == 3
