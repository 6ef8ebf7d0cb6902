"""A run from its first validation to its result: resume, train, validate, save, report."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console

from archer.config.root import TrainConfig
from archer.engines.local.checkpoint import Checkpoint
from archer.engines.local.interrupt import StopRequest
from archer.engines.local.parts import Parts, build
from archer.engines.local.run_folder import RunFolder
from archer.engines.local.tracing import Traces
from archer.engines.local.trainer import Trainer
from archer.engines.run_report import Outcome, Progress, due, run_trackers, say_accuracy
from archer.tracking import Tracker
from archer.tracking.console import ConsoleProgress, sampled_how


class Run:
    """One start of `archer train` with the local engine."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self.config = config
        self.console = console
        self.folder = RunFolder(config)
        self.progress = Progress()

    def execute(self) -> Outcome:
        """Train until the last step, or until SIGINT or SIGTERM asks to stop."""
        with StopRequest() as stop:
            start = self.folder.claim()
            try:
                return self._execute(start, stop)
            finally:
                self.folder.release()

    def _execute(self, start: Checkpoint | None, stop: StopRequest) -> Outcome:
        parts = build(self.config, start)
        with ExitStack() as closing:
            closing.callback(parts.scorer.close)
            self.folder.settle()
            traces = Traces(self.config, parts.tokenizer, resumed_at=0 if start is None else start.step)
            closing.callback(traces.close)
            trainer = Trainer(parts, traces)
            if start is not None:
                self._restore(trainer, start)
            begun_at = trainer.step
            if begun_at < parts.total_steps or self.config.trainer.val_only:
                self._introduce(trainer, start)
                trackers = run_trackers(self.config, self.folder, start)
                for tracker in trackers:
                    closing.callback(tracker.close)
                self._loop(parts, trainer, trackers, stop)
        outcome = Outcome(trainer.step, parts.total_steps, self.progress, stop.signal, begun_at)
        if not stop() and not self.config.trainer.val_only:
            self.folder.write_result(self.progress.result(trainer.step))
        return outcome

    def _loop(self, parts: Parts, trainer: Trainer, trackers: list[Tracker], stop: StopRequest) -> None:
        options = self.config.trainer
        if options.val_only or (trainer.step == 0 and options.val_before_train):
            self._validate(parts, trainer, trackers, stop)
        if options.val_only:
            return
        console = self.console if "console" in options.logger else Console(quiet=True)
        with ConsoleProgress(console, trainer.step, parts.total_steps) as shown:
            while trainer.step < parts.total_steps and not stop():
                started = time.monotonic()
                report = trainer.train_step()
                last = trainer.step == parts.total_steps
                metrics = report.metrics
                if report.warning:
                    shown.say(f"[yellow]step {trainer.step}: {report.warning}[/yellow]")
                if due(options.test_freq, trainer.step, last):
                    metrics = metrics | self._measure(parts, trainer.step)
                for tracker in trackers:
                    tracker.log(trainer.step, metrics)
                shown.update(trainer.step, metrics)
                self.progress.seconds += time.monotonic() - started
                if due(options.save_freq, trainer.step, last) or stop():
                    self._save(parts, trainer)

    def _validate(self, parts: Parts, trainer: Trainer, trackers: list[Tracker], stop: StopRequest) -> None:
        """Measure the accuracy of the weights as they are: before training, or alone."""
        metrics = self._measure(parts, trainer.step, stop)
        if not metrics:
            return
        accuracy = self.progress.accuracy_after if trainer.step else self.progress.accuracy_before
        assert accuracy is not None, "it has just been measured"
        say_accuracy(self.console, self.config, accuracy)
        if trainer.step == 0:
            for tracker in trackers:
                tracker.log(trainer.step, metrics)

    def _measure(self, parts: Parts, step: int, stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Validate. After a step this is not interrupted: the step's metrics would lack what is due."""
        result = parts.validator.validate(stop) if parts.validator is not None else None
        if result is None:
            return {}
        how = sampled_how(self.config.actor_rollout_ref.rollout.val_kwargs)
        self.progress.measured(step, result.accuracy, how)
        return result.metrics

    def _save(self, parts: Parts, trainer: Trainer) -> None:
        trainer.traces.flush()
        state = trainer.state_dict() | {"progress": asdict(self.progress)}
        self.folder.checkpoints.save(trainer.step, parts.policy.model, parts.tokenizer, state)

    def _restore(self, trainer: Trainer, start: Checkpoint) -> None:
        state = start.training_state()
        trainer.load_state_dict(state)
        self.progress = Progress(**state["progress"])

    def _introduce(self, trainer: Trainer, start: Checkpoint | None) -> None:
        parts = trainer.parts
        model = parts.policy.model
        parameters = sum(p.numel() for p in model.parameters())
        rollout, data = self.config.actor_rollout_ref.rollout, self.config.data
        lines = [
            f"[bold]{self.config.actor_rollout_ref.model.path}[/bold]  {parameters / 1e6:,.2f} M parameters, "
            f"{parts.compute.device.type}, {str(parts.compute.dtype).removeprefix('torch.')}",
            f"{len(parts.collector.dataset):,} training prompts, {data.train_batch_size} x {rollout.n} "
            f"responses a step, {parts.total_steps} steps of {self.config.algorithm.adv_estimator}",
            f"writing to {self.folder.path}",
        ]
        if self.config.trainer.influence_trace.enable:
            with parts.compute.autocast():  # what the factors will be stored in
                lines.append(trainer.recorder.tracer.describe())
        if parts.collector.dataset.overlong:
            lines.append(f"{parts.collector.dataset.overlong:,} prompts over data.max_prompt_length left out")
        if start is not None:
            lines.append(f"going on from step {trainer.step} ({start.path})")
        for line in lines:
            self.console.print(line, highlight=False, soft_wrap=True)
