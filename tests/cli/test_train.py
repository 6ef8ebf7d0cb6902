"""`archer train`: what a run leaves behind, and how its commands answer."""

import json
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def archer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "archer.cli", *arguments], capture_output=True, text=True, timeout=120
    )


def test_help_lists_recipes_and_the_most_used_keys():
    shown = archer("train", "--help").stdout
    for expected in ("recipe=NAME", "arithmetic_dapo", "data.train_batch_size", "--print-config"):
        assert expected in shown


def test_print_config_prints_the_resolved_configuration_and_trains_nothing(tmp_path):
    done = archer("train", "--print-config", "data.seed=7", f"trainer.default_local_dir={tmp_path}/run")
    assert "seed: 7" in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_problem_is_one_message_on_stderr_and_exit_code_2():
    done = archer("train", "data.trian_files=x")
    assert done.returncode == 2
    assert "error: The configuration has a problem:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_leaves_configuration_metrics_checkpoints_and_result(runs):
    outcome = runs.here("run")
    folder = runs.folder / "run"
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == outcome.steps == 3
    assert 0 <= result["accuracy_before"] <= 1 and 0 <= result["accuracy_after"] <= 1
    assert result["seconds"] > 0
    assert "train_batch_size: 4" in (folder / "config.yaml").read_text()
    assert [line["step"] for line in runs.metrics("run")] == [0, 1, 2, 3]
    assert "val-core/arithmetic/acc/mean@2" in runs.metrics("run")[3]


def test_a_checkpoint_loads_with_transformers_alone(runs):
    runs.here("run", "trainer.total_training_steps=1")
    checkpoint = runs.folder / "run/checkpoints/global_step_1"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "123+456="}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    assert torch.isfinite(model(ids).logits).all()


def test_only_the_newest_checkpoints_are_kept(runs):
    runs.here("run", "trainer.max_actor_ckpt_to_keep=2")
    names = sorted(path.name for path in (runs.folder / "run/checkpoints").glob("global_step_*"))
    assert names == ["global_step_2", "global_step_3"]


def test_a_finished_run_started_again_trains_no_further_step(runs):
    first = runs.here("run")
    again = runs.here("run")
    assert again.steps == first.steps
    assert again.progress.accuracy_before == first.progress.accuracy_before
    assert [line["step"] for line in runs.metrics("run")] == [0, 1, 2, 3]


def test_skip_optimizer_step_leaves_the_weights_alone(runs):
    runs.here("run", "trainer.skip_optimizer_step=True", "trainer.total_training_steps=2")
    start = AutoModelForCausalLM.from_pretrained("archer/assets/tiny_reasoner").state_dict()
    for name, weight in runs.weights("run").items():
        assert torch.equal(weight, start[name])


def test_validation_alone_trains_nothing(runs):
    outcome = runs.here("run", "trainer.val_only=True")
    assert outcome.steps == 0
    assert outcome.progress.accuracy_before is not None
    assert not (runs.folder / "run/checkpoints").exists()


def test_training_on_prompts_and_a_reward_of_ones_own(runs, tmp_path):
    rows = [
        {"prompt": f"{a}+{a}=", "data_source": "mine", "reward_model": {"ground_truth": ""}}
        for a in range(100, 108)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': solution_str.count('1') / 10, 'acc': '1' in solution_str}\n"
    )
    runs.here(
        "run",
        f"data.train_files={tmp_path}/prompts.jsonl",
        "data.val_files=[]",
        f"reward.custom_reward_function.path={tmp_path}/reward.py",
        "trainer.total_training_steps=1",
    )
    line = runs.metrics("run")[-1]
    assert 0 < line["critic/score/mean"] < 1.5
    assert line["reward/crashes"] == 0
