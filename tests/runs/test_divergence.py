"""A run that diverges stops with a message, and what was saved before stays good."""

import io
import random

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from archer.config import compose
from archer.engines.local.trainer import Trainer
from archer.engines.local.update import Updater
from archer.errors import ArcherError
from archer.generation.sampling import seed_everything
from archer.runs.checkpoint import CheckpointFolder
from archer.train import make_run

SMALL = (
    *("data.train_batch_size=2", "data.val_files=[]", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
    *("actor_rollout_ref.rollout.n=4", "data.max_response_length=24", "trainer.save_freq=1"),
    *("engine.threads=1", "engine.device=cpu"),
)


def train(folder, steps: int, *overrides: str) -> int:
    config = compose(
        [*SMALL, f"trainer.default_local_dir={folder}", f"trainer.total_training_steps={steps}", *overrides]
    )
    return make_run(config, Console(file=io.StringIO())).execute().steps


@pytest.fixture
def gradients(monkeypatch):
    """Make the gradient norm of chosen updates NaN: those from the n-th on."""

    def spoil(first: int, last: int = 10**9) -> None:
        count = 0
        real = torch.nn.utils.clip_grad_norm_

        def norm(*args):
            nonlocal count
            count += 1
            return torch.tensor(torch.nan) if first <= count <= last else real(*args)

        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", norm)

    return spoil


def test_updates_skipped_in_a_row_stop_the_run_and_the_checkpoints_before_stay(tmp_path, gradients):
    gradients(2)
    with pytest.raises(ArcherError, match="gradients of 3 updates in a row were not finite"):
        train(tmp_path, 9, "trainer.max_skipped_updates=3")
    saved = {path.name for path in (tmp_path / "checkpoints").glob("global_step_*")}
    assert saved == {"global_step_2", "global_step_3"}, "steps 2 and 3 were skipped, but left sound weights"
    newest = torch.load(tmp_path / "checkpoints/global_step_3/training_state.pt", weights_only=True)
    assert newest["skipped_in_a_row"] == 2, "a resumed run goes on counting"


def test_one_bad_batch_passes(tmp_path, gradients):
    gradients(2, 3)
    assert train(tmp_path, 5, "trainer.max_skipped_updates=3") == 5


def test_a_short_run_none_of_whose_updates_was_applied_is_not_called_finished(tmp_path, gradients):
    gradients(1)
    with pytest.raises(ArcherError, match="No update of this run could be applied"):
        train(tmp_path, 2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_never_saved_over_good_ones(tmp_path, monkeypatch, value):
    real = Updater._apply

    def diverge(self) -> float:
        norm = real(self)
        if float(self.optimizer.state[self._parameters()[0]]["step"]) == 2:
            self._parameters()[-1].data.flatten()[0] = value
        return norm

    monkeypatch.setattr(Updater, "_apply", diverge)
    with pytest.raises(ArcherError, match="After step 2 the weights are not finite") as raised:
        train(tmp_path, 4)
    assert "global_step_1 is untouched" in str(raised.value)
    assert [path.name for path in (tmp_path / "checkpoints").glob("global_step_*")] == ["global_step_1"]
    weights = load_file(tmp_path / "checkpoints/global_step_1/model.safetensors")
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


def test_saving_itself_refuses_them_whoever_asks(tmp_path, monkeypatch):
    class Model(torch.nn.Linear):
        def save_pretrained(self, folder):
            raise AssertionError("it must not come to this")

    model = Model(2, 2)
    model.weight.data[0, 0] = torch.nan
    with pytest.raises(ArcherError, match=r"weight has NaN or infinite values.*nothing was saved before"):
        CheckpointFolder(tmp_path).save(1, model, None, {})
    assert not list(tmp_path.iterdir())


def test_global_generators_depend_on_seed_and_step_alone(tmp_path, monkeypatch):
    def numbers() -> tuple[float, float, float]:
        return float(torch.rand(1)), float(np.random.rand()), random.random()

    seen: list[tuple[float, float, float]] = []
    real = Trainer._learn
    monkeypatch.setattr(Trainer, "_learn", lambda *args: seen.append(numbers()) or real(*args))
    torch.manual_seed(1)
    train(tmp_path / "one", 2)
    torch.manual_seed(2)
    random.seed(5)
    train(tmp_path / "two", 1)
    numbers()
    train(tmp_path / "two", 2)
    assert seen[:2] == seen[2:] and seen[0] != seen[1]
    seed_everything(42, 1)
    assert numbers() == seen[0]
