"""What is said of settings without effect is true: runs with and without them are equal to the last bit."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from archer.cli import app
from archer.config import TrainConfig, compose
from archer.config.notes import conditions, idle_notes, plugin_settings
from archer.config.parse import leaves, parse, value_of
from archer.settings import declaration
from archer.trace.arrays import SPECS
from archer.trace.reader import TraceReader

ACTOR = "actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"
VAL = "actor_rollout_ref.rollout.val_kwargs"
CODE = "reward.code"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
ENTROPY = "trainer.entropy_trace"
INFLUENCE = "trainer.influence_trace"
CREDIT = "algorithm.token_credit"

OTHER_VALUES: dict[str, Any] = {
    "actor_rollout_ref.model.lora_alpha": 99,
    "actor_rollout_ref.model.target_modules": ["q_proj"],
    "actor_rollout_ref.model.exclude_modules": ["q_proj"],
    f"{ACTOR}.kl_loss_coef": 0.5,
    f"{ACTOR}.kl_loss_type": "mse",
    f"{ACTOR}.clip_ratio_c": 1.01,
    f"{ACTOR}.tau_pos": 5.0,
    f"{ACTOR}.tau_neg": 0.2,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
    f"{ACTOR}.data_loader_seed": 7,
    f"{OPTIM}.min_lr_ratio": 0.5,
    f"{OPTIM}.num_cycles": 1.5,
    f"{OPTIM}.lr_warmup_steps_ratio": 0.7,
    "algorithm.kl_penalty": "mse",
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_ctrl.kl_coef": 0.7,
    "algorithm.kl_ctrl.horizon": 3,
    "algorithm.kl_ctrl.target_kl": 9.0,
    "algorithm.gamma": 0.5,
    "algorithm.rollout_correction.rollout_is_threshold": "1.01",
    "algorithm.filter_groups.max_num_gen_batches": 2,
    f"{CREDIT}.responses": "both",
    f"{CREDIT}.strength": 0.5,
    f"{CREDIT}.keep_sum": True,
    f"{CREDIT}.min_weight": 0.5,
    f"{CREDIT}.max_weight": 2.0,
    f"{CREDIT}.anneal_steps": 3,
    f"{CREDIT}.permute": True,
    f"{CREDIT}.permute_entropy": 0.5,
    f"{CREDIT}.threshold": 0.9,
    f"{CREDIT}.delta_range": 0.5,
    f"{CREDIT}.entropy_quantile": 0.5,
    f"{CREDIT}.hessian_mode": "identity",
    f"{CREDIT}.anchors": "accepted",
    f"{CREDIT}.projection_dim": 9,
    f"{CREDIT}.module_name_filter": ["q_proj"],
    "data.gen_batch_size": 3,
    f"{OVERLONG}.penalty_factor": 3.0,
    f"{OVERLONG}.len": 40,
    f"{OVERLONG}.enable": True,
    "reward.custom_reward_function.name": "other",
    "reward.custom_reward_function.data_source": ["riddles"],
    "reward.custom_reward_function.weight": 3.0,
    "reward.custom_reward_function.batched": True,
    "reward.custom_reward_function.max_concurrency": 3,
    "reward.custom_reward_function.reward_kwargs": {"scale": 3},
    "reward.custom_kwargs": {"scale": 3},
    "reward.last_number_fallback": True,
    f"{CODE}.test_timeout_s": 1.0,
    f"{CODE}.total_timeout_s": 2.0,
    f"{CODE}.memory_mb": 999,
    f"{CODE}.max_tests": 1,
    f"{CODE}.partial_credit": True,
    f"{CODE}.allow_weak_sandbox": True,
    "data.seed": 7,
    "data.val_max_samples": 3,
    "data.val_batch_size": 2,
    "trainer.test_freq": 1,
    f"{VAL}.n": 3,
    f"{VAL}.do_sample": True,
    f"{VAL}.temperature": 0.5,
    f"{VAL}.top_p": 0.5,
    f"{VAL}.top_k": 2,
    f"{ENTROPY}.output_dir": "elsewhere",
    f"{ENTROPY}.write_every": 2,
    f"{ENTROPY}.fsync": True,
    f"{INFLUENCE}.hessian_mode": "identity",
    f"{INFLUENCE}.hessian_source": "token",
    f"{INFLUENCE}.output_function": "log_prob_reward",
    f"{INFLUENCE}.accepted_rejected_scope": "all_selected",
    f"{INFLUENCE}.contrastive_agg": "mean",
    f"{INFLUENCE}.exclude_self_response": True,
    f"{INFLUENCE}.score_normalization": "token_norm",
    f"{INFLUENCE}.reg_lambda": 0.5,
    f"{INFLUENCE}.reg_rule": "kernel_trace",
    f"{INFLUENCE}.preset": "signed",
    f"{INFLUENCE}.module_name_filter": ["q_proj"],
    f"{INFLUENCE}.max_modules": 1,
    f"{INFLUENCE}.max_tokens_per_response": 3,
    f"{INFLUENCE}.max_prompts_per_step": 1,
    f"{INFLUENCE}.projection": "none",
    f"{INFLUENCE}.projection_dim_factor": 16,
    f"{INFLUENCE}.max_proj_vector_sum": 9,
    f"{INFLUENCE}.max_hessian_dim": 16,
    f"{INFLUENCE}.factor_dtype": "float64",
    f"{INFLUENCE}.solver": "primal",
    f"{INFLUENCE}.proportionality_tolerance": 0.5,
    f"{INFLUENCE}.grad_offload_to_cpu": True,
    f"{INFLUENCE}.force_gpu_compute": False,
    f"{INFLUENCE}.profile_timing": True,
    f"{INFLUENCE}.output_dir": "elsewhere",
    f"{INFLUENCE}.write_every": 2,
    f"{INFLUENCE}.fsync": True,
    f"{INFLUENCE}.self_contained": True,
    "trainer.val_trace.enable": True,
    "trainer.val_trace.max_responses": 3,
    "trainer.total_epochs": 3,
    "trainer.log_val_generations": 2,
    "engine.worker_logs": True,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.25,
    "actor_rollout_ref.rollout.free_cache_engine": False,
}
NO_OTHER_VALUE = {
    "algorithm.filter_groups.metric",
    "trainer.max_skipped_updates",  # idle with engine=verl alone
}

REWARD = """
def compute_score(solution_str, **row):
    return float(len(solution_str) % 3 == 0)
"""
SITUATIONS = {
    "a plain run": (
        *(f"{ENTROPY}.enable=False", f"{INFLUENCE}.enable=False", "data.val_files=[]", "data.shuffle=False"),
        "actor_rollout_ref.rollout.name=hf",
    ),
    "another loss, another reward, a KL in it": (
        *(f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.ppo_epochs=2", "algorithm.use_kl_in_reward=True"),
        *(f"{OPTIM}.lr_warmup_steps=2", f"{OVERLONG}.enable=True", f"{VAL}.do_sample=False"),
        "reward.custom_reward_function.path=reward.py",
    ),
    "plain inner products of exact gradients": (
        *(f"{INFLUENCE}.hessian_mode=identity", f"{INFLUENCE}.projection=none"),
        *(f"{INFLUENCE}.output_function=training_loss", f"{INFLUENCE}.module_name_filter=[v_proj]"),
    ),
}


def with_idle_settings(config: TrainConfig) -> tuple[TrainConfig, set[str]]:
    """Give all settings that have no effect other values, as far as they have none all at once."""
    tree, changed = asdict(config), set()
    for name, value in OTHER_VALUES.items():
        *sections, last = name.split(".")
        section = tree
        for part in sections:
            section = section[part]
        before, section[last] = section[last], value
        if len(idle_notes(parse(TrainConfig, tree), {*changed, name})) == len(changed) + 1:
            changed.add(name)
        else:
            section[last] = before
    return parse(TrainConfig, tree), changed


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text(REWARD)
    return tmp_path


def traced(folder: Path) -> dict[str, np.ndarray]:
    """Return all that a run's traces hold."""
    found = {}
    for trace in sorted(folder.glob("*_trace")):
        reader = TraceReader(trace)
        for entry in reader.entries:
            arrays = reader.read_arrays(entry.step, SPECS)
            found |= {f"{trace.name} {entry.step} {name}": values for name, values in arrays.items()}
    return found


@pytest.mark.parametrize("situation", SITUATIONS)
def test_runs_with_and_without_idle_settings_are_equal(runs, here, situation):
    overrides = ("trainer.total_training_steps=2", *SITUATIONS[situation])
    config, changed = with_idle_settings(compose(runs.arguments("with", *overrides)))
    assert len(changed) > 5
    runs.here("without", *overrides)
    idle = [f"{name}={as_override(value_of(config, name))}" for name in changed]
    done = CliRunner().invoke(app, ["train", *runs.arguments("with", *overrides, *idle)])
    assert done.exit_code == 0, done.output
    assert done.output.count("has no effect") == len(changed)
    assert runs.metrics("with") == runs.metrics("without")
    weights, others = runs.weights("with"), runs.weights("without")
    assert all(torch.equal(weights[name], others[name]) for name in weights)  # type: ignore[arg-type]
    arrays, other = traced(here / "with"), traced(here / "without")
    assert arrays.keys() == other.keys()
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], other[name], err_msg=name)
    scores = [values for name, values in arrays.items() if name.endswith(" influence")]
    assert any(np.isfinite(values).any() for values in scores) or situation == "a plain run"
    assert not (here / "elsewhere").exists()


def as_override(value: Any) -> str:
    """A value in the grammar of the command line."""
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(as_override, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_override(inner)}" for key, inner in value.items()) + "}"
    return "null" if value is None else str(value)


def test_every_setting_that_can_be_idle_is_tried_in_some_run(runs, here):
    """A setting that is declared to need another, or that only some algorithms read, needs a value above.

    Those that are refused where they have no effect cannot be given then.
    """
    config = TrainConfig()
    refused = {name for name, _, setting in leaves(config) if declaration(setting).idle == "refuse"}
    named = {need.name for need in conditions(config)} | {name for name, _ in plugin_settings(config)}
    assert named - refused - NO_OTHER_VALUE == OTHER_VALUES.keys()
    tried = {
        name
        for overrides in SITUATIONS.values()
        for name in with_idle_settings(compose(runs.arguments("run", *overrides)))[1]
    }
    assert OTHER_VALUES.keys() - tried == set()


def test_the_dry_run_and_the_run_say_what_has_no_effect(runs, here):
    wanted = f"{ACTOR}.kl_loss_coef=0.01 has no effect: use_kl_loss is False"
    arguments = runs.arguments("run", "trainer.total_training_steps=1", f"{ACTOR}.kl_loss_coef=0.01")
    dry = CliRunner().invoke(app, ["train", "--dry-run", *arguments])
    assert dry.exit_code == 0
    assert wanted in " ".join(dry.output.split())
    done = CliRunner().invoke(app, ["train", *arguments])
    assert done.exit_code == 0
    assert f"note: {wanted}\n" in done.output
    assert done.output.count("has no effect") == 1
