"""`archer train`: what a run leaves behind, and how its commands answer."""

import io
import json
import subprocess
import sys

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from archer.config import compose
from archer.trace.manifest import ManifestLine, StepStatistics, append_line
from archer.train import next_steps, run_engine


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


def closing(runs, name: str, *overrides: str) -> str:
    """Return all that `archer train` prints, on one line a sentence."""
    out = io.StringIO()
    arguments = runs.arguments(name, *overrides)
    run_engine(compose(arguments), Console(file=out, width=200), arguments)
    return out.getvalue()


def test_a_finished_run_started_again_says_so_in_one_line(runs):
    runs.here("run", "trainer.influence_trace.enable=True")
    for asked in (3, 2):
        steps = f"trainer.total_training_steps={asked}"
        shown = closing(runs, "run", "trainer.influence_trace.enable=True", steps).splitlines()
        assert len(shown) == 1
        assert f"steps done already 3, asked for {asked}. Nothing is left to do" in shown[0]
    assert json.loads((runs.folder / "run/result.json").read_text())["steps"] == 3


def test_a_run_ends_with_what_it_achieved_and_what_to_type_next(runs):
    shown = closing(runs, "run", "trainer.influence_trace.enable=True")
    folder = runs.folder / "run"
    assert shown.count("(2 samples a prompt, temperature 1)") == 3  # at first, before and after
    assert f"archer view {folder}\n" in shown
    assert f"archer trace show {folder}/influence_trace --step 3\n" in shown
    assert "(all starts)" not in shown
    more = closing(runs, "run", "trainer.total_training_steps=4", "trainer.influence_trace.enable=True")
    assert " s (all starts)" in more


def test_the_newest_step_with_rows_is_suggested_and_none_without_rows(runs):
    config = compose(runs.arguments("run", "trainer.influence_trace.enable=True"))
    folder = config.run_dir / "influence_trace"
    folder.mkdir(parents=True)
    append_line(folder, ManifestLine(1, StepStatistics(rows=0)), fsync=False)
    assert not any("trace show" in command for command, _ in next_steps(config, [], 1))
    append_line(folder, ManifestLine(2, StepStatistics(rows=4)), fsync=False)
    append_line(folder, ManifestLine(3, StepStatistics(rows=0)), fsync=False)
    assert any(command.endswith("--step 2") for command, _ in next_steps(config, [], 3))


def test_without_traces_there_is_nothing_to_view(runs):
    off = ("trainer.influence_trace.enable=False", "trainer.entropy_trace.enable=False")
    assert not any(
        " view " in command for command, _ in next_steps(compose(runs.arguments("r", *off)), [], 3)
    )


def test_traces_kept_elsewhere_are_viewed_there(runs):
    own = ("trainer.entropy_trace.enable=True", f"trainer.entropy_trace.output_dir={runs.folder}/mine")
    config = compose(runs.arguments("r", "trainer.influence_trace.enable=False", *own))
    assert f"archer view {runs.folder}/mine" in [command for command, _ in next_steps(config, [], 3)]


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
