"""A user's own verl trainer with the mixin, on stock verl's entry point: real Ray, two ranks on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archer.data.builtin import builtin_rows, tiny_reasoner_path
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return float(sum(map(ord, solution_str)) % 2)
"""
ACTOR, ROLLOUT, RAY = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "ray_kwargs.ray_init"
OVERRIDES = [
    "data.train_files=train.parquet",
    "data.val_files=train.parquet",
    "data.train_batch_size=4",
    "data.max_prompt_length=32",
    "data.max_response_length=16",
    "data.dataloader_num_workers=0",
    "data.custom_cls.path=pkg://archer.engines.verl.prompts",  # verl's own wants a tokenizer with chat tokens
    "data.custom_cls.name=ArcherDataset",
    f"{ROLLOUT}.agent.default_agent_loop=archer_single_turn",
    f"actor_rollout_ref.model.path={tiny_reasoner_path()}",
    "actor_rollout_ref.model.external_lib=archer.engines.verl.plugin",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.ref.fsdp_config.strategy=fsdp2",
    f"{ACTOR}.fsdp_config.model_dtype=fp32",
    f"+{ACTOR}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
    f"{ACTOR}.use_torch_compile=False",
    f"{ACTOR}.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    f"{ACTOR}.shuffle=False",
    f"{ROLLOUT}.name=transformers_cpu",
    f"{ROLLOUT}.n=4",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.agent.num_workers=1",
    f"{ROLLOUT}.calculate_log_probs=True",
    f"{ROLLOUT}.n_gpus_per_node=2",
    "algorithm.adv_estimator=grpo",
    "critic.enable=False",
    "reward.num_workers=1",
    "reward.custom_reward_function.path=reward.py",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=2",
    "trainer.nnodes=1",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.val_before_train=False",
    "trainer.logger=[console]",
    "trainer.default_local_dir=checkpoints",
    "trainer.resume_mode=disable",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    f"+{RAY}.address=local",
    f"{RAY}.num_cpus=20",
    f"+{RAY}.num_gpus=2",
    f"+{RAY}.object_store_memory={300 * 2**20}",
    f"+{RAY}.include_dashboard=False",
]
CPU = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "archer.engines.verl.cpu.platform",
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, str]:
    """The folder of two steps of the example, and what it said."""
    folder = tmp_path_factory.mktemp("verl")
    pq.write_table(
        pa.Table.from_pylist(builtin_rows("builtin:arithmetic/train")[:16]), folder / "train.parquet"
    )
    (folder / "reward.py").write_text(REWARD)
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/own_verl_trainer.py"), *OVERRIDES],
        env={**variables, **CPU},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if psutil.pid_exists(process.pid):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
    assert process.returncode == 0, said[-6000:]
    return folder / "runs/own_verl_trainer", said


def test_both_traces_are_whole(run):
    folder, said = run
    for kind in ("entropy", "influence"):
        assert not check_trace(folder / f"{kind}_trace").problems
        assert [entry.step for entry in TraceReader(folder / f"{kind}_trace").entries] == [1, 2]
    assert "influence: 28 linear modules traced" in said


def test_every_token_of_the_mixed_groups_has_a_score(run):
    folder, _ = run
    everything = TraceReader(folder / "entropy_trace").read(1).arrays
    trace = TraceReader(folder / "influence_trace").read(1).arrays
    assert len(everything.response_index) == 16
    assert np.array_equal(everything.accepted, everything.reward > 0)
    for group in np.unique(everything.group_id):
        flags = everything.accepted[everything.group_id == group]
        rows = set(everything.response_index[everything.group_id == group].tolist())
        assert (0 < flags.sum() < len(flags)) == (rows <= set(trace.response_index.tolist()))
    assert np.isfinite(trace.influence[trace.response_mask]).all()


def test_the_users_own_changes_run_and_metrics_are_verls(run):
    _, said = run
    assert "mine/hopeless_steps:" in said
    assert "influence_trace/selected_prompts:" in said
