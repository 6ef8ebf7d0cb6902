"""Runs with LoRA: they learn, leave whole traces, resume to the bit, and are evaluated and exported."""

import json
import shutil
import time

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from archer.cli import app
from archer.config import compose
from archer.errors import ArcherError
from archer.evaluation.choice import is_complete
from archer.generation.model import BUILTIN, model_folder
from archer.runs.folder import RunFolder
from archer.trace.check import check_trace

LORA = (
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.entropy_trace.enable=True",
    "trainer.influence_trace.enable=True",
)
WHOLE = ("actor_rollout_ref.actor.use_kl_loss=True", "trainer.test_freq=1")
PLACE = "trainer.default_local_dir"
IDS = torch.arange(1, 13)[None]


def newest(runs, name: str):
    folder = runs.folder / name / "checkpoints"
    return folder / f"global_step_{(folder / 'latest_checkpointed_iteration.txt').read_text()}"


def adapter(runs, name: str) -> dict[str, torch.Tensor]:
    return load_file(newest(runs, name) / "lora_adapter" / "adapter_model.safetensors")


def assert_same(runs, one: str, other: str) -> None:
    assert runs.metrics(one) == runs.metrics(other)
    theirs = adapter(runs, other)
    for name, tensor in adapter(runs, one).items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module")
def finished(kept_runs):
    """A run of three steps with a KL term, validated after each."""
    kept_runs.here("run", *LORA, *WHOLE)
    return kept_runs


def test_a_run_leaves_two_whole_traces_of_its_adapters(finished):
    for kind in ("entropy_trace", "influence_trace"):
        report = check_trace(finished.folder / "run" / kind)
        assert report.whole and report.steps == (1, 2, 3), report.render()
    assert all(bool(t.abs().sum() > 0) for t in adapter(finished, "run").values()), "A and B have moved"
    assert not list(newest(finished, "run").glob("*.safetensors")), "the frozen weights are not saved"


def test_a_run_in_two_parts_gives_the_same_numbers(finished):
    finished.here("parts", *LORA, *WHOLE, "trainer.total_training_steps=2")
    finished.here("parts", *LORA, *WHOLE)
    assert_same(finished, "parts", "run")


def test_so_does_one_with_frozen_weights_in_bfloat16_and_mini_batches(runs):
    options = (
        *(*LORA, "trainer.test_freq=1", "engine.dtype=bfloat16", "trainer.total_training_steps=2"),
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.model.target_modules=[q_proj,v_proj]",
    )
    runs.here("whole", *options)
    runs.here("parts", *options, "trainer.total_training_steps=1")
    runs.here("parts", *options)
    assert_same(runs, "parts", "whole")


@pytest.mark.slow
def test_a_run_that_was_killed_gives_the_same_numbers(runs):
    options = (*LORA, "algorithm.use_kl_in_reward=True", "trainer.total_training_steps=4")
    runs.here("whole", *options)
    process = runs.process("killed", *options)
    file = runs.folder / "killed" / "metrics.jsonl"
    while not file.exists() or '"step": 2,' not in file.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    process.communicate()
    runs.here("killed", *options)
    assert_same(runs, "killed", "whole")


def test_the_kl_begins_at_zero_because_the_reference_is_the_model_without_adapters(finished):
    first, *later = [line["actor/kl_loss"] for line in finished.metrics("run") if "actor/kl_loss" in line]
    assert first == pytest.approx(0.0, abs=1e-6)
    assert max(later) > 1e-6


@pytest.mark.slow
def test_the_embedded_model_learns_with_adapters(runs):
    outcome = runs.here(
        "run",
        *("data.train_batch_size=16", "actor_rollout_ref.rollout.n=8", "data.val_max_samples=48"),
        "actor_rollout_ref.model.lora_rank=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "trainer.total_training_steps=6",
        "trainer.save_freq=-1",
        "trainer.influence_trace.enable=False",
    )
    assert outcome.progress.accuracy_after > outcome.progress.accuracy_before + 0.2


def test_eval_gives_the_number_that_training_logged_and_export_the_same_model(finished, tmp_path):
    runs, run = finished, finished.folder / "run"
    call = CliRunner().invoke
    result = call(app, ["eval", "--model", str(run)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (summary,) = run.glob("evaluation/*/global_step_3/summary.json")
    logged = {k: v for k, v in runs.metrics("run")[-1].items() if k.startswith("val-core/")}
    measured = json.loads(summary.read_text())["metrics"]
    exact = logged.pop("val-core/arithmetic/exact")
    assert logged and logged == {k: measured[k] for k in logged}
    assert measured["val-core/arithmetic/exact"] == pytest.approx(
        exact, rel=1e-3
    )  # adapters are merged there

    out = tmp_path / "plain"
    result = call(app, ["export-model", str(run), str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    base = AutoModelForCausalLM.from_pretrained(model_folder(BUILTIN), dtype=torch.float32)
    with torch.no_grad():
        before = base(IDS).logits
        adapted = PeftModel.from_pretrained(base, newest(runs, "run") / "lora_adapter")(IDS).logits
        plain = AutoModelForCausalLM.from_pretrained(out)(IDS).logits
    torch.testing.assert_close(plain, adapted, rtol=1e-4, atol=1e-4)
    assert bool((plain - before).abs().max() > 1e-2)
    assert not (out / "training_state.pt").exists()
    with pytest.raises(ArcherError, match="exists already"):
        call(app, ["export-model", str(run), str(out)], catch_exceptions=False)


def test_a_run_resumes_only_with_the_adapters_it_has(finished):
    runs = finished
    with pytest.raises(ArcherError, match="lora_rank: 4 there, 8 now"):
        runs.here("run", *LORA, *WHOLE, "actor_rollout_ref.model.lora_rank=8")
    start = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={newest(runs, 'run')}")
    rank = "actor_rollout_ref.model.lora_rank"
    for overrides, said in (
        ((f"{rank}=8",), "an adapter of lora_rank 4, but"),
        ((), r"a run with LoRA \(rank 4\)"),
        ((f"{rank}=4", "actor_rollout_ref.model.lora_alpha=1"), "of lora_alpha 16"),
        ((f"{rank}=4", "actor_rollout_ref.model.target_modules=q_proj"), "tensors that the adapter does not"),
    ):
        with pytest.raises(ArcherError, match=said):
            runs.here("new", *start, *overrides)


def test_a_run_of_whole_weights_does_not_become_one_of_adapters(runs):
    runs.here("run", "trainer.total_training_steps=1")
    start = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={newest(runs, 'run')}")
    with pytest.raises(ArcherError, match="holds no lora_adapter: all weights were trained there"):
        runs.here("new", *start, *LORA)


def test_an_adapter_is_no_model_but_the_start_of_another_run(finished):
    runs, first = finished, newest(finished, "run")
    data = ("data.train_files=builtin:arithmetic/train", "data.val_files=[]")
    with pytest.raises(ArcherError, match="holds a LoRA adapter, not a whole model"):
        runs.here("none", f"actor_rollout_ref.model.path={first}", *data)
    path = f"actor_rollout_ref.model.lora_adapter_path={first}"
    runs.here("second", *LORA, path, "trainer.total_training_steps=1")
    runs.here("second", *LORA, path, "trainer.total_training_steps=2")
    assert runs.metrics("second")[-1]["step"] == 2
    with pytest.raises(ArcherError, match="lora_rank"):
        runs.here("third", path)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_damaged_adapter_falls_back_to_the_checkpoint_before(finished, tmp_path, name):
    shutil.copytree(finished.folder / "run", tmp_path / "run")
    damaged = tmp_path / "run/checkpoints/global_step_3"
    assert is_complete(damaged)
    (damaged / "lora_adapter" / name).write_bytes(b"no")
    assert not is_complete(damaged)
    folder = RunFolder(compose([*finished.arguments("run", *LORA, *WHOLE), f"{PLACE}={tmp_path / 'run'}"]))
    start = folder.inspect()
    assert start is not None and start.step == 2
    assert f"lora_adapter/{name}" in folder.warnings[0]


def test_a_file_of_weights_that_was_not_saved_is_named(finished, tmp_path):
    shutil.copytree(finished.folder / "run", tmp_path / "run")
    for step in (1, 2, 3):
        folder = tmp_path / f"run/checkpoints/global_step_{step}/lora_adapter"
        if folder.is_dir():
            shutil.copy(folder / "adapter_model.safetensors", folder / "more.safetensors")
    settings = compose([*finished.arguments("run", *LORA, *WHOLE), f"{PLACE}={tmp_path / 'run'}"])
    with pytest.raises(ArcherError, match=r"more.safetensors was not saved.*move \S*global_step_3 away"):
        RunFolder(settings).inspect()
