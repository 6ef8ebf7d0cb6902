"""A run on Ray from its first validation to its result: start, resume, train, validate, save, report."""

import io
import time
import warnings
from contextlib import ExitStack, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.console import Console

from archer.config.root import TrainConfig
from archer.engines.local.checkpoint import Checkpoint
from archer.engines.local.interrupt import StopRequest
from archer.engines.local.judge import refuse_unjudged
from archer.engines.run_report import Outcome, Progress, due, run_trackers, say_accuracy
from archer.engines.verl.checkpoints import VerlRunFolder, VerlState, check_ranks, read_state
from archer.engines.verl.cluster import cluster, set_environment
from archer.engines.verl.failures import as_archer_error, how_to_go_on
from archer.engines.verl.process_group import process_group_timeout
from archer.engines.verl.settings import rollout_name, verl_settings
from archer.engines.verl.translate import on_cpu, ranks
from archer.engines.verl.versions import check_versions
from archer.tracking import Tracker
from archer.tracking.console import ConsoleProgress, sampled_how

if TYPE_CHECKING:
    from archer.engines.verl.trainer import ArcherTrainer


class VerlRun:
    """One start of `archer train engine=verl`. The driver is this process: it trains, traces and reports."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self.config = config
        self.console = console
        self.folder = VerlRunFolder(config)
        self.progress = Progress()
        self._saved = 0  # step of the newest checkpoint
        self._logs: Path | None = None  # where Ray's workers write, once it runs

    def execute(self) -> Outcome:
        """Train until the last step, or until SIGINT or SIGTERM asks to stop."""
        self.versions = check_versions(rollout_name(self.config))
        process_group_timeout()  # said now, not by a worker minutes later
        set_environment(self.config)
        with StopRequest() as stop:
            start = self.folder.claim()
            try:
                with as_archer_error(lambda: how_to_go_on(self.folder, self._logs)):
                    return self._execute(start, stop)
            finally:
                self.folder.release()

    def _execute(self, start: Checkpoint | None, stop: StopRequest) -> Outcome:
        settings = verl_settings(self.config)
        if start is not None:
            state = read_state(start)
            check_ranks(start, state, ranks(self.config))
            self.progress, self._saved = Progress(**state.progress), start.step
            settings.trainer.resume_mode = "resume_path"
            settings.trainer.resume_from_path = str(start.path.resolve())
        with ExitStack() as closing:
            self.console.print(
                f"starting Ray and {count_of(ranks(self.config), 'training worker')} ...",
                style="dim",
                highlight=False,
            )
            self._logs = closing.enter_context(cluster(self.config, settings))
            trainer = self._trainer(settings)
            stop.listen()
            self.folder.settle()
            traces = trainer.open_traces(trainer.global_steps)
            closing.callback(traces.close)
            if start is not None and state.kl_coefficient is not None:
                trainer.kl_ctrl_in_reward.value = state.kl_coefficient
            begun_at, total = trainer.global_steps, trainer.total_training_steps
            if begun_at < total or self.config.trainer.val_only:
                self._introduce(trainer, start)
                trackers = run_trackers(self.config, self.folder, start)
                for tracker in trackers:
                    closing.callback(tracker.close)
                self._loop(trainer, trackers, stop)
            steps = trainer.global_steps
        if not stop() and not self.config.trainer.val_only:
            self.folder.write_result(self.progress.result(steps))
        return Outcome(steps, total, self.progress, stop.signal, begun_at)

    def _trainer(self, settings: DictConfig) -> "ArcherTrainer":
        """Build verl's trainer with all its workers; minutes on a large model."""
        quiet = not self.config.engine.worker_logs
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()) if quiet else nullcontext():
            if quiet:
                warnings.simplefilter("ignore")
            from archer.engines.verl.trainer import build_trainer

            return build_trainer(settings)

    def _loop(self, trainer: "ArcherTrainer", trackers: list[Tracker], stop: StopRequest) -> None:
        options = self.config.trainer
        if options.val_only or (trainer.global_steps == 0 and options.val_before_train):
            self._validate(trainer, trackers)
        if options.val_only:
            return
        console = self.console if "console" in options.logger else Console(quiet=True)
        with ConsoleProgress(console, trainer.global_steps, trainer.total_training_steps) as shown:
            while trainer.global_steps < trainer.total_training_steps and not stop():
                self._step(trainer, trackers, stop, shown)
        if trainer.global_steps > self._saved:  # the request to stop came after the last chance to save
            trainer.checkpoint_manager.sleep_replicas()
            self._save(trainer)
            self._complete(trainer)

    def _step(
        self, trainer: "ArcherTrainer", trackers: list[Tracker], stop: StopRequest, shown: ConsoleProgress
    ) -> None:
        """One step. A checkpoint is written while the rollout sleeps, and counts once the step is logged."""
        options = self.config.trainer
        started = time.monotonic()
        trainer.global_steps += 1
        step, last = trainer.global_steps, trainer.global_steps == trainer.total_training_steps
        batch, metrics = trainer.train_step()
        if step == 1:
            verdicts = trainer.replay_buffer.sampled.verdicts
            refuse_unjudged([verdict.failure for verdict in verdicts], self.config.reward)
        saves = due(options.save_freq, step, last) or stop()
        if saves:
            self._save(trainer)
        metrics |= trainer.finish_step(batch, metrics, time.monotonic() - started)
        if trainer.warning:
            shown.say(f"[yellow]step {step}: {trainer.warning}[/yellow]")
        if due(options.test_freq, step, last):
            metrics |= self._measure(trainer)
        for tracker in trackers:
            tracker.log(step, metrics)
        shown.update(step, metrics)
        self.progress.seconds += time.monotonic() - started
        if saves:
            self._complete(trainer)

    def _validate(self, trainer: "ArcherTrainer", trackers: list[Tracker]) -> None:
        """Measure the accuracy of the weights as they are: before training, or alone."""
        metrics = self._measure(trainer)
        if not metrics:
            return
        accuracy = self.progress.accuracy_after if trainer.global_steps else self.progress.accuracy_before
        assert accuracy is not None, "it has just been measured"
        say_accuracy(self.console, self.config, accuracy)
        if trainer.global_steps == 0:
            for tracker in trackers:
                tracker.log(0, metrics)

    def _measure(self, trainer: "ArcherTrainer") -> dict[str, float]:
        if not self.config.data.val_files:
            return {}
        metrics = trainer._validate()
        how = sampled_how(self.config.actor_rollout_ref.rollout.val_kwargs)
        self.progress.measured(trainer.global_steps, trainer.accuracy_summary.overall.avg, how)
        return metrics

    def _save(self, trainer: "ArcherTrainer") -> None:
        trainer.traces.flush()
        trainer._save_checkpoint()

    def _complete(self, trainer: "ArcherTrainer") -> None:
        adaptive = self.config.algorithm.use_kl_in_reward
        coefficient = float(trainer.kl_ctrl_in_reward.value) if adaptive else None
        state = VerlState(asdict(self.progress), coefficient, ranks(self.config))
        self.folder.checkpoints.complete(trainer.global_steps, state)
        self._saved = trainer.global_steps

    def _introduce(self, trainer: "ArcherTrainer", start: Checkpoint | None) -> None:
        parameters, traced = trainer.actor_rollout_wg.describe_model()[0]
        rollout, data = self.config.actor_rollout_ref.rollout, self.config.data
        kind = "process" if on_cpu(self.config) else "GPU"
        devices = count_of(ranks(self.config), kind) + (" on the CPU" if on_cpu(self.config) else "")
        versions = ", ".join(f"{name} {self.versions[name]}" for name in ("verl", "ray", "torch"))
        lines: list[Any] = [
            f"[bold]{self.config.actor_rollout_ref.model.path}[/bold]  {parameters / 1e6:,.2f} M parameters, "
            f"{devices}, {versions}, rollout {rollout_name(self.config)}",
            f"{len(trainer.train_dataset):,} training prompts, {data.train_batch_size} x {rollout.n} "
            f"responses a step, {trainer.total_training_steps} steps of "
            f"{self.config.algorithm.adv_estimator}",
            f"writing to {self.folder.path}",
            *([traced] if traced else []),
        ]
        if start is not None:
            lines.append(f"going on from step {trainer.global_steps} ({start.path})")
        for line in lines:
            self.console.print(line, highlight=False, soft_wrap=True)


def count_of(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `2 processes`."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural}"
