"""A checkpoint with any file damaged in any way: the one before it with a warning, or one message."""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from archer.config import compose
from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.runs.folder import RunFolder
from archer.runs.integrity import MANIFEST, STATE_FILE
from archer.train import make_run

SMALL = (
    *("data.train_batch_size=2", "data.val_files=[]", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
    *("actor_rollout_ref.rollout.n=2", "data.max_response_length=8", "trainer.save_freq=1"),
    *("engine.threads=1", "engine.device=cpu"),
)
FILES = (
    *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"),
    *("tokenizer_config.json", STATE_FILE, MANIFEST),
)


def config_of(folder: Path, steps: int, *overrides: str) -> TrainConfig:
    return compose(
        [*SMALL, f"trainer.default_local_dir={folder}", f"trainer.total_training_steps={steps}", *overrides]
    )


def train(folder: Path, steps: int, *overrides: str) -> tuple[int, str]:
    """Train in this process; return the steps done and what was printed."""
    out = io.StringIO()
    return make_run(
        config_of(folder, steps, *overrides), Console(file=out, width=500)
    ).execute().steps, out.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[str, Path]:
    """A run of two steps, and another of other data and seed."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "run", 2)
    train(folder / "other", 2, "actor_rollout_ref.rollout.seed=7", "data.seed=7")
    return {"run": folder / "run", "other": folder / "other"}


@pytest.fixture
def copies(finished, tmp_path) -> Path:
    shutil.copytree(finished["run"], tmp_path / "run")
    return tmp_path / "run"


def truncate(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path, _: Path) -> None:
    file.write_bytes(b"")


def garbage(file: Path, _: Path) -> None:
    file.write_bytes(b"\xff\x00garbage" * 200)


def garbage_of_the_same_size(file: Path, _: Path) -> None:
    file.write_bytes(b"\xfe" * file.stat().st_size)


def flip_a_byte(file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 0x41
    file.write_bytes(bytes(data))


def swap_with_another_runs(file: Path, other: Path) -> None:
    shutil.copy(other / file.parent.name / file.name, file)


def swap_with_another_file(file: Path, _: Path) -> None:
    shutil.copy(file.parent / ("config.json" if file.name != "config.json" else STATE_FILE), file)


def remove(file: Path, _: Path) -> None:
    file.unlink()


def make_a_folder_of_it(file: Path, _: Path) -> None:
    file.unlink()
    file.mkdir()


KINDS = (
    *(truncate, empty, garbage, garbage_of_the_same_size, flip_a_byte, swap_with_another_runs),
    *(swap_with_another_file, remove, make_a_folder_of_it),
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", KINDS)
def test_any_damage_to_any_file_falls_back_to_the_checkpoint_before_or_is_harmless(
    copies, finished, name, damage
):
    newest = copies / "checkpoints" / "global_step_2"
    before = (newest / name).read_bytes()
    damage(newest / name, finished["other"] / "checkpoints")
    unharmed = (newest / name).is_file() and (newest / name).read_bytes() == before
    folder = RunFolder(config_of(copies, 3))
    start = folder.claim()
    folder.release()
    if unharmed or (name == MANIFEST and damage is remove):  # without its manifest it is still readable
        assert start is not None and (start.step, folder.warnings) == (2, [])
        return
    assert start is not None and start.step == 1
    assert len(folder.warnings) == 1
    assert name in folder.warnings[0] or "checkpoint of another run" in folder.warnings[0]
    assert newest.is_dir(), "nothing is changed before everything else is loaded"


@pytest.mark.parametrize("damage", [truncate, garbage, remove, make_a_folder_of_it])
def test_with_no_whole_checkpoint_left_one_message_names_the_file_and_nothing_is_changed(
    copies, finished, damage
):
    for step in (1, 2):
        damage(copies / f"checkpoints/global_step_{step}/model.safetensors", finished["other"])
    before = (copies / "metrics.jsonl").read_bytes()
    with pytest.raises(ArcherError, match=r"global_step_2/model.safetensors .*move .*global_step_2 away"):
        train(copies, 3)
    assert (copies / "metrics.jsonl").read_bytes() == before
    assert (copies / "checkpoints/global_step_2").is_dir()


def test_a_damaged_checkpoint_named_by_the_user_is_an_error(copies, finished, tmp_path):
    chosen = copies / "checkpoints/global_step_2"
    truncate(chosen / STATE_FILE, chosen)
    with pytest.raises(ArcherError, match=r"training_state.pt has"):
        train(tmp_path / "new", 3, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={chosen}")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit_state(folder: Path, change: Callable[[dict], None]) -> None:
    state = torch.load(folder / STATE_FILE, weights_only=True)
    change(state)
    torch.save(state, folder / STATE_FILE)


NORM = "model.norm.weight"
WEIGHT_CHANGES = {
    "lack 1 of its tensors": lambda w: w.pop(NORM),
    "tensors of another shape|mismatch": lambda w: w.update({NORM: torch.zeros(3)}),
    "have 1 tensors that the model does not have": lambda w: w.update(extra=torch.zeros(2)),
    "NaN or infinite": lambda w: w[NORM].fill_(torch.nan),
}
STATE_CHANGES = {
    "'optimizer' is missing": lambda s: s.pop("optimizer"),
    "is the state of step 7": lambda s: s.update(step=7),
    "optimizer of 0 tensors": lambda s: s["optimizer"].update(param_groups=[]),
    "moments of 1 of": lambda s: s["optimizer"].update(state={0: s["optimizer"]["state"][0]}),
    "exp_avg of tensor 0 as": lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.zeros(3)),
    "values not finite": lambda s: s["optimizer"]["state"][0]["exp_avg_sq"].fill_(torch.inf),
    "holds no state of this run": lambda s: s["progress"].update(unknown=1),
    "no state of this run .*position": lambda s: s["data"].pop("position"),
    "holds a list": None,
}


@pytest.mark.parametrize("said", WEIGHT_CHANGES)
def test_weights_of_a_checkpoint_without_manifest_are_compared_with_the_model(copies, said):
    newest = copies / "checkpoints" / "global_step_2"
    (newest / MANIFEST).unlink()
    edit_weights(newest, WEIGHT_CHANGES[said])
    with pytest.raises(ArcherError, match=said) as raised:
        train(copies, 3)
    assert str(newest) in str(raised.value)


@pytest.mark.parametrize("said", STATE_CHANGES)
def test_the_state_of_a_checkpoint_without_manifest_is_compared_with_the_run(copies, said):
    newest = copies / "checkpoints" / "global_step_2"
    (newest / MANIFEST).unlink()
    if STATE_CHANGES[said] is None:
        torch.save([1], newest / STATE_FILE)
    else:
        edit_state(newest, STATE_CHANGES[said])
    try:
        _, printed = train(copies, 3)
    except ArcherError as error:
        printed = str(error)
    assert str(newest / STATE_FILE) in printed.replace("\n", " ")
    assert re.search(said, printed)


def test_a_checkpoint_of_another_model_is_refused_by_what_differs(copies, tmp_path):
    newest = copies / "checkpoints" / "global_step_2"
    (newest / MANIFEST).unlink()
    config = json.loads((newest / "config.json").read_text())
    (newest / "config.json").write_text(json.dumps(config | {"intermediate_size": 12}))
    with pytest.raises(ArcherError, match="checkpoint of another model: its intermediate_size is 12"):
        train(copies, 3)


def test_a_whole_checkpoint_folder_of_another_run_is_not_resumed_from(copies, finished):
    shutil.rmtree(copies / "checkpoints/global_step_2")
    shutil.copytree(finished["other"] / "checkpoints/global_step_2", copies / "checkpoints/global_step_2")
    _, printed = train(copies, 3)
    assert "checkpoint of another run" in printed and "resuming from step 1" in printed


def test_falling_back_gives_the_numbers_of_a_run_that_was_left_alone(copies, finished, tmp_path):
    truncate(copies / "checkpoints/global_step_2/model.safetensors", copies)
    _, printed = train(copies, 3)
    assert "model.safetensors has" in printed and "resuming from step 1" in printed
    kept = {path.name for path in (copies / "checkpoints").iterdir() if path.is_dir()}
    assert kept == {"global_step_2", "global_step_3", "damaged_global_step_2"}, "two whole ones are kept"
    train(tmp_path / "whole", 3)
    ours, theirs = (
        load_file(run / "checkpoints/global_step_3/model.safetensors") for run in (copies, tmp_path / "whole")
    )
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_text("?!")])
def test_a_run_that_lost_its_id_takes_it_back_from_its_checkpoints(copies, damage):
    before = (copies / ".run_id").read_text()
    damage(copies / ".run_id")
    assert train(copies, 2)[0] == 2  # nothing is left to do
    assert train(copies, 3)[0] == 3
    assert (copies / ".run_id").read_text() == before


@pytest.mark.parametrize("content", ["", "- a\n- list\n", "only text", "{}"])
def test_a_configuration_that_holds_no_settings_is_called_that(copies, content):
    (copies / "config.yaml").write_text(content)
    with pytest.raises(ArcherError, match=r"config\.yaml cannot be read as a configuration: .*[Pp]ut back"):
        train(copies, 3)


def test_one_flipped_byte_anywhere_is_seen(copies):
    file = copies / "checkpoints/global_step_2/model.safetensors"
    content = bytearray(file.read_bytes())
    for place in (len(content) // 3, len(content) // 2 + 1, len(content) - 2):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        folder = RunFolder(config_of(copies, 3))
        assert folder.inspect().step == 1
        assert "its content has changed" in folder.warnings[0]
