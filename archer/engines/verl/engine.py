"""The verl engine: the driver of a run on Ray. Stock verl trains; this process orders, traces and reports."""

import io
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.console import Console

from archer.config.root import TrainConfig
from archer.engines.verl.checkpoints import VerlRunFolder, VerlState, check_adapter, check_ranks, read_state
from archer.engines.verl.cluster import (
    as_archer_error,
    cluster,
    how_to_resume,
    process_group_timeout,
    set_environment,
)
from archer.engines.verl.settings import verl_settings
from archer.engines.verl.translate import on_cpu, ranks, rollout_name
from archer.engines.verl.versions import check_internals, check_versions
from archer.runs.checkpoint import Checkpoint
from archer.training.loop import EngineFacts, StepReport, ValidationResult
from archer.training.progress import Progress
from archer.training.traces import Traces

if TYPE_CHECKING:
    from archer.engines.verl.trainer import ArcherTrainer


class VerlEngine:
    """What the run loop asks of an engine, on Ray and verl."""

    trainer: "ArcherTrainer"
    versions: dict[str, str]

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self.config = config
        self.console = console
        self.folder = VerlRunFolder(config)
        self._written = 0  # step whose weights are on the disk
        self._logs: Path | None = None  # where Ray's workers write, once it runs

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Check versions and environment at once, not in a worker minutes later."""
        self.versions = check_versions(rollout_name(self.config))
        process_group_timeout()
        set_environment(self.config)
        check_internals(self.versions["verl"])
        with as_archer_error(lambda: how_to_resume(self.folder, self._logs)):
            yield

    def start(self, start: Checkpoint | None, closing: ExitStack) -> None:
        """Start Ray, verl's trainer and all its workers; minutes on a large model."""
        settings = verl_settings(self.config)
        if start is not None:
            check_ranks(start, read_state(start), ranks(self.config))
            check_adapter(start, self.config.actor_rollout_ref.model)
            settings.trainer.resume_mode = "resume_path"
            settings.trainer.resume_from_path = str(start.path.resolve())
        workers = count_of(ranks(self.config), "training worker")
        self.console.print(f"starting Ray and {workers} ...", style="dim", highlight=False)
        self._logs = closing.enter_context(cluster(self.config, settings))
        self.trainer = self._built(settings)

    def _built(self, settings: DictConfig) -> "ArcherTrainer":
        quiet = not self.config.engine.worker_logs
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()) if quiet else nullcontext():
            if quiet:
                warnings.simplefilter("ignore")
            from archer.engines.verl.trainer import build_trainer

            return build_trainer(settings)

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self.trainer.tokenizer

    @property
    def step(self) -> int:
        """Steps done."""
        return self.trainer.global_steps

    @property
    def total_steps(self) -> int:
        """Steps of the run, as verl counts them."""
        return self.trainer.total_training_steps

    @property
    def traces(self) -> Traces:
        """Where steps are written."""
        return self.trainer.traces

    @traces.setter
    def traces(self, traces: Traces) -> None:
        self.trainer.traces = traces

    def resume(self, start: Checkpoint) -> Progress:
        """Take over what verl has not loaded itself."""
        state = read_state(start)
        if state.kl_coefficient is not None:
            self.trainer.kl_ctrl_in_reward.value = state.kl_coefficient
        self._written = start.step
        return Progress(**state.progress)

    def facts(self) -> EngineFacts:
        """Describe model, devices, versions and what is traced."""
        parameters, traced = self.trainer.actor_rollout_wg.describe_model()[0]
        kind = "process" if on_cpu(self.config) else "GPU"
        devices = count_of(ranks(self.config), kind) + (" on the CPU" if on_cpu(self.config) else "")
        versions = ", ".join(f"{name} {self.versions[name]}" for name in ("verl", "ray", "torch"))
        prompts = self.trainer.train_dataset.prompts
        return EngineFacts(
            parameters=parameters,
            where=f"{devices}, {versions}, rollout {rollout_name(self.config)}",
            prompts=len(prompts),
            overlong=prompts.overlong,
            traced=traced,
        )

    def validate(self, stop: Callable[[], bool]) -> ValidationResult | None:
        """Let verl sample the validation prompts; the figures are those of Archer's evaluation."""
        if not self.config.data.val_files:
            return None
        metrics = self.trainer.validate()
        return ValidationResult(self.trainer.accuracy_summary.accuracy, metrics, self.trainer.generations)

    def train_step(self, saves: Callable[[], bool]) -> StepReport:
        """Run one step. Weights are written while the rollout sleeps, before it is given the new ones."""
        started = time.monotonic()
        trainer = self.trainer
        trainer.global_steps += 1
        batch, metrics = trainer.train_step()
        if saves():
            self._write()
        metrics |= trainer.finish_step(batch, metrics, time.monotonic() - started)
        return StepReport(metrics, trainer.warning, trainer.responses)

    def save(self, progress: Progress) -> None:
        """Say that the step's checkpoint is complete; it counts once the step is logged."""
        if self._written < self.step:  # the request to stop came after the last chance to write
            self.trainer.checkpoint_manager.sleep_replicas()
            self._write()
        adaptive = self.config.algorithm.use_kl_in_reward
        coefficient = float(self.trainer.kl_ctrl_in_reward.value) if adaptive else None
        state = VerlState(asdict(progress), coefficient, ranks(self.config))
        self.folder.checkpoints.complete(self.step, state)

    def _write(self) -> None:
        self.traces.flush()
        self.trainer._save_checkpoint()
        self._written = self.step


def count_of(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `2 processes`."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural}"
