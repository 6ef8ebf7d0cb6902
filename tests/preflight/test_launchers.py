"""Launchers: the promised names, what they run, and a dry run of each that names exactly what is missing."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from archer.config import compose
from archer.engines.verl.versions import installed
from archer.errors import ArcherError
from archer.influence import InfluenceConfig
from archer.preflight.check import full_check
from archer.preflight.report import problems

FOLDER = Path(__file__).parents[2] / "scripts" / "train"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.sh"))
TRAINING = [name for name in SCRIPTS if name.startswith(("run_archer", "run_single"))]
PROMISED = {
    "run_archer2.0_qwen2.5_1.5b_math.sh",
    "run_archer2.0_qwen2.5_1.5b_code.sh",
    "run_archer2.0_qwen2.5_1.5b_math_entropy_trace.sh",
    "run_archer2.0_qwen2.5_1.5b_math_entropy_trace_1gpu.sh",
    "run_archer2.0_qwen2.5_1.5b_math_influence_trace.sh",
    "run_single_influence_case_0220.sh",
    "run_single_baseline_case_0220.sh",
    "run_influence_ablation_0220.sh",
    "run_influence_ablation_0220_extra_nohessian.sh",
    "prepare_dapo_math17k_openr1.sh",
}


def environment(**variables: str) -> dict[str, str]:
    """This environment without what launchers read, and with these variables."""
    read = (
        "ENGINE",
        "N_GPUS",
        "NNODES",
        "MODEL_PATH",
        "TRAIN_FILES",
        "VAL_FILES",
        "EXP_NAME",
        "TOTAL_STEPS",
        "WANDB_API_KEY",
    )
    kept = {k: v for k, v in os.environ.items() if k not in read and not k.startswith("INFLUENCE_")}
    return kept | variables


@pytest.fixture
def launch(tmp_path):
    """Run a launcher with a command in archer's place that only keeps its arguments; return them."""
    seen = tmp_path / "seen"
    stub = tmp_path / "archer"
    stub.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\n')
    stub.chmod(0o755)

    def start(script: str, *arguments: str, **variables: str) -> list[str]:
        done = subprocess.run(
            ["bash", str(FOLDER / script), *arguments],
            env=environment(ARCHER=str(stub), **variables),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"+ {stub} ")
        return seen.read_text().splitlines() if seen.exists() else []

    return start


def test_the_promised_names_are_there():
    assert set(SCRIPTS) >= PROMISED
    assert (FOLDER / "visualize_rollout_entropy.py").is_file()
    assert (FOLDER / "collect_influence_ablation_results_0220.py").is_file()


@pytest.mark.parametrize("script", [*SCRIPTS, "launch.bash"])
def test_bash_understands_it(script):
    done = subprocess.run(["bash", "-n", str(FOLDER / script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", TRAINING)
def test_a_launcher_trains_its_recipe_and_overrides_come_last(launch, script):
    arguments = launch(script, "data.seed=7", "trainer.experiment_name=two words")
    assert arguments[0] == "train"
    assert arguments[-2:] == ["data.seed=7", "trainer.experiment_name=two words"]
    recipe = next(a for a in arguments if a.startswith("recipe=")).removeprefix("recipe=")
    if script.startswith("run_archer2.0_"):
        assert script == f"run_archer2.0_{recipe}.sh"


def expected_problems(config) -> set[str]:
    """What an empty machine lacks for a run."""
    found = {"model", "data.train_files"}
    if config.data.val_files:
        found.add("data.val_files")
    if config.engine.name == "verl" and torch.cuda.device_count() < config.trainer.n_gpus_per_node:
        found.add("device")
    if config.engine.name == "verl" and installed("vllm") is None:
        found.add("versions")
    return found


@pytest.mark.parametrize("script", TRAINING)
def test_a_dry_run_names_what_is_missing_here_and_nothing_else(launch, elsewhere, script):
    config = compose([a for a in launch(script, "--dry-run")[1:] if a != "--dry-run"])
    found = {finding.subject: finding.sentence for finding in problems(full_check(config))}
    assert set(found) == expected_problems(config)
    model = config.actor_rollout_ref.model.path
    assert f"Model {model} is no folder here" in found["model"] and "hf download" in found["model"]
    assert f"{config.data.train_files[0]} does not exist" in found["data.train_files"]
    assert "archer data prepare" in found["data.train_files"]
    assert not [path for path in elsewhere.rglob("*") if path.name not in ("archer", "seen")]


def test_variables_become_overrides(launch):
    arguments = launch(
        "run_archer2.0_qwen2.5_1.5b_math_influence_trace.sh",
        ENGINE="local",
        MODEL_PATH="models/mine",
        TRAIN_FILES="[a.parquet,b.parquet]",
        EXP_NAME="trial",
        INFLUENCE_HESSIAN_MODE="identity",
        INFLUENCE_MAX_PROMPTS_PER_STEP="2",
    )
    config = compose(arguments[1:])
    assert config.engine.name == "local"
    assert config.actor_rollout_ref.model.path == "models/mine"
    assert config.data.train_files == ("a.parquet", "b.parquet")
    assert config.trainer.experiment_name == "trial"
    assert config.trainer.influence_trace.hessian_mode == "identity"
    assert config.trainer.influence_trace.max_prompts_per_step == 2


@pytest.mark.parametrize("script", TRAINING)
def test_every_launcher_honours_the_number_of_steps_and_logs_to_wandb_where_there_is_a_key(launch, script):
    config = compose(launch(script, ENGINE="local", TOTAL_STEPS="3", WANDB_API_KEY="key")[1:])
    assert config.trainer.total_training_steps == 3
    assert config.trainer.logger == ("console", "wandb")
    assert "wandb" not in compose(launch(script, ENGINE="local", WANDB_API_KEY="")[1:]).trainer.logger
    old = compose(launch(script, ENGINE="local", INFLUENCE_TOTAL_STEPS="4")[1:])
    assert old.trainer.total_training_steps == 4


def test_every_knob_of_influence_has_a_variable_and_so_has_every_promised_name(launch):
    promised = {
        *("hessian_mode", "output_function", "accepted_rejected_scope", "contrastive_agg", "hessian_source"),
        *("module_name_filter", "max_modules", "projection_dim_factor", "max_proj_vector_sum"),
        *("max_hessian_dim", "max_tokens_per_response", "grad_offload_to_cpu", "force_gpu_compute"),
        *("profile_timing", "max_prompts_per_step"),
    }
    knobs = {field.name for field in fields(InfluenceConfig)}
    assert knobs >= promised
    script = "run_archer2.0_qwen2.5_1.5b_math_influence_trace.sh"
    arguments = launch(script, **{f"INFLUENCE_{knob.upper()}": f"{knob} value" for knob in knobs})
    assert {f"trainer.influence_trace.{knob}={knob} value" for knob in knobs} <= set(arguments)
    chosen = {"INFLUENCE_REG_LAMBDA": "0.5", "INFLUENCE_WRITE_EVERY": "3", "INFLUENCE_SOLVER": ""}
    traced = compose(launch(script, **chosen)[1:]).trainer.influence_trace
    assert (traced.reg_lambda, traced.write_every) == (0.5, 3)


def test_a_misspelt_variable_of_influence_is_refused(launch):
    script = "run_archer2.0_qwen2.5_1.5b_math_influence_trace.sh"
    arguments = launch(script, ENGINE="local", INFLUENCE_HESIAN_MODE="identity")
    with pytest.raises(ArcherError, match="hesian_mode"):
        compose(arguments[1:])


def test_the_ablation_lists_its_cases_in_a_dry_run(launch):
    arguments = launch("run_influence_ablation_0220.sh", "--dry-run", "data.seed=7")
    assert arguments[:3] == ["ablate", "run", "influence_0220"]
    assert arguments[-2:] == ["--list", "data.seed=7"]
    extra = launch("run_influence_ablation_0220_extra_nohessian.sh")
    assert extra[-2:] == ["--only", "nohessian-*"]


def test_the_data_script_prepares_dapo_and_its_dry_run_only_shows_the_command(launch):
    wanted = ["data", "prepare", "dapo-math-17k", "--config", "all", "--overwrite", "--limit", "5"]
    assert launch("prepare_dapo_math17k_openr1.sh", "--dry-run", "--limit", "5") == []
    assert launch("prepare_dapo_math17k_openr1.sh", "--limit", "5") == wanted


def test_the_code_data_is_prepared_split_by_split(launch):
    script = "prepare_livecodebench_deepcoder.sh"
    assert launch(script, "--dry-run") == []
    last = launch(script, "--limit", "5")
    assert last[:3] == ["data", "prepare", "livecodebench"] and last[-2:] == ["--limit", "5"]
    assert (
        "data/livecodebench-deepcoder-test.parquet"
        in compose(["recipe=task/code", "actor_rollout_ref.model.path=a/b"]).data.val_files
        and "data/livecodebench-deepcoder-test.parquet" in last
    )


def test_the_real_command_ends_with_exit_code_2_and_the_reasons(tmp_path):
    done = subprocess.run(
        [
            *("bash", str(FOLDER / "run_archer2.0_smollm2_135m_gsm8k.sh"), "--dry-run", "engine.device=cpu"),
            f"trainer.default_local_dir={tmp_path}/run",
        ],
        env=environment(HF_HUB_CACHE=str(tmp_path), ARCHER=str(Path(sys.executable).parent / "archer")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "recipe=smollm2_135m_gsm8k" in done.stdout.splitlines()[0]
    assert "This run cannot start here: 3 problems." in done.stdout
    assert not (tmp_path / "run").exists()
