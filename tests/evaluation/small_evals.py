"""Small runs and evaluations of them, some of which are stopped on their way."""

import io
from pathlib import Path

from rich.console import Console

from archer.config import compose
from archer.evaluation.choice import choose_model
from archer.evaluation.plan import EvalOptions, make_plan
from archer.evaluation.run import Evaluated, evaluate
from archer.evaluation.store import EvalFolder
from archer.train import make_run

SMALL = (
    "data.train_batch_size=4",
    "data.val_max_samples=7",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.val_kwargs.n=3",
    "actor_rollout_ref.rollout.max_num_seqs=9",  # chunks of three prompts, the last of one
    "trainer.total_training_steps=2",
    "trainer.save_freq=1",
    "trainer.test_freq=1",
    "trainer.entropy_trace.enable=False",
    "trainer.influence_trace.enable=False",
    "engine.threads=1",
    "engine.device=cpu",
)


def train(folder: Path, *overrides: str) -> Path:
    config = compose([*SMALL, f"trainer.default_local_dir={folder}", *overrides])
    make_run(config, Console(file=io.StringIO())).execute()
    return folder


def evaluated(model: Path | str, out: Path, overwrite: bool = False, **options) -> Evaluated:
    plan = make_plan(choose_model(str(model)), EvalOptions(**options))
    return evaluate(plan, Console(file=io.StringIO()), out, overwrite)


class Stop(Exception):  # noqa: N818
    """Stands for a kill."""


def interrupted_after(chunks: int, monkeypatch, whole_last_chunk: bool = True) -> None:
    """Let the evaluation die once so many chunks are on disk, or in the middle of writing the next."""
    append, written = EvalFolder.append, []

    def dying(self, samples):
        if len(written) == chunks:
            if not whole_last_chunk:
                append(self, samples[:2])
                self._out.write('{"prompt_index": 3, "resp')
                self._out.flush()
            raise Stop
        written.append(len(samples))
        append(self, samples)

    monkeypatch.setattr(EvalFolder, "append", dying)
