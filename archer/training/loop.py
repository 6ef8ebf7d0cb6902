"""The run loop, the same for both engines: claim a folder, resume, validate, train, save, report.

An engine supplies what differs (`Engine`): how it starts, steps, validates and writes a checkpoint.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape

from archer.config.root import TrainConfig
from archer.errors import ArcherError, visible
from archer.runs.checkpoint import Checkpoint
from archer.runs.folder import RunFolder
from archer.tracking import ShownResponse, StepResponse, Tracker, ValidationSample
from archer.tracking.console import ConsoleProgress, sampled_how
from archer.training.credit import TokenCredit
from archer.training.progress import Outcome, Progress, StopRequest, due, run_trackers, say_accuracy
from archer.training.traces import Traces


@dataclass(frozen=True)
class EngineFacts:
    """What the head of a run's report says of the engine."""

    parameters: int
    where: str  # device and number format, or devices and versions
    prompts: int  # training prompts
    overlong: int  # prompts left out because they are too long
    traced: str  # what influence is read from; empty: nothing
    trained: int | None = None  # parameters of adapters; None: all are trained


@dataclass(frozen=True)
class StepReport:
    """What one training step did."""

    metrics: dict[str, float]
    warning: str | None
    responses: Sequence[StepResponse] = ()  # those of `trainer.log_step_responses`


@dataclass(frozen=True)
class ValidationResult:
    """avg@n over all prompts, and the metrics of every data source."""

    accuracy: float
    metrics: dict[str, float]
    samples: Sequence[ValidationSample]  # those of `trainer.log_val_generations`


def validation_at(step: int) -> str:
    """What an error calls the validation after a step."""
    return f"the validation after step {step}" if step else "the validation before training"


class Engine(Protocol):
    """What an engine does its own way."""

    traces: Traces  # given once everything else is loaded

    @property
    def folder(self) -> RunFolder:
        """Where the run is written."""
        ...

    @property
    def step(self) -> int:
        """Steps done."""
        ...

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        ...

    def guard(self) -> AbstractContextManager[None]:
        """Check what this machine must have, and surround the run: failures become errors a user can read."""
        ...

    def start(self, start: Checkpoint | None, closing: ExitStack) -> None:
        """Load everything; `start` is where to resume from. What must be closed is left with `closing`."""
        ...

    def resume(self, start: Checkpoint) -> Progress:
        """Take over the state of a checkpoint, once the traces are open."""
        ...

    def facts(self) -> EngineFacts:
        """Describe what was loaded."""
        ...

    def validate(self, stop: Callable[[], bool]) -> ValidationResult | None:
        """Measure accuracy; None where there is nothing to validate on, or `stop()` turned true."""
        ...

    def train_step(self, saves: Callable[[], bool]) -> StepReport:
        """Run one step. An engine that can only write its weights on the way does so when `saves()`."""
        ...

    def save(self, progress: Progress) -> None:
        """Make the checkpoint of the current step complete."""
        ...


class Run:
    """One start of `archer train`."""

    def __init__(self, config: TrainConfig, console: Console, engine: Engine) -> None:
        self.config = config
        self.console = console
        self.engine = engine
        self.folder = engine.folder
        self.progress = Progress()
        self._trackers: list[Tracker] = []

    def execute(self) -> Outcome:
        """Train until the last step, or until SIGINT or SIGTERM asks to stop."""
        with self.engine.guard(), StopRequest() as stop:
            start = self.folder.claim()
            try:
                return self._execute(start, stop)
            finally:
                self.folder.release()

    def _execute(self, start: Checkpoint | None, stop: StopRequest) -> Outcome:
        engine, options = self.engine, self.config.trainer
        with ExitStack() as closing:
            engine.start(start, closing)
            stop.listen()
            self.folder.settle()
            resumed_at = 0 if start is None else start.step
            engine.traces = Traces(self.config, engine.tokenizer, resumed_at)
            closing.callback(engine.traces.close)
            if start is not None:
                self.progress = engine.resume(start)
            begun_at = engine.step
            if begun_at < engine.total_steps or options.val_only:
                self._introduce(start)
                self._trackers = run_trackers(self.config, self.folder, start)
                for tracker in self._trackers:
                    closing.callback(tracker.close)
                engine.traces.diagnosis.recall(self.folder.metrics_file, resumed_at)
                self._validate(stop)
                if not options.val_only:
                    self._train(stop)
        if not stop() and not options.val_only:
            self.folder.write_result(self.progress.result(engine.step))
        return Outcome(engine.step, engine.total_steps, self.progress, stop.signal, begun_at)

    def _train(self, stop: StopRequest) -> None:
        engine = self.engine
        console = (
            self.console if "console" in self.config.trainer.logger else Console(quiet=True, emoji=False)
        )
        with ConsoleProgress(console, engine.step, engine.total_steps) as shown:
            while engine.step < engine.total_steps and not stop():
                self._step(stop, shown)

    def _step(self, stop: StopRequest, shown: ConsoleProgress) -> None:
        engine, options = self.engine, self.config.trainer
        started = time.monotonic()
        step, last = engine.step + 1, engine.step + 1 == engine.total_steps

        def saves() -> bool:
            return due(options.save_freq, step, last) or stop()

        report = engine.train_step(saves)
        metrics = report.metrics
        self._show(report.responses)
        if report.warning:
            shown.say(f"[yellow]step {step}: {report.warning}[/yellow]")
        refusal: ArcherError | None = None
        if due(options.test_freq, step, last):
            try:
                metrics = metrics | self._measure()
            except ArcherError as error:  # a validation that cannot be judged does not cost the step
                refusal = error
        metrics = metrics | self._diagnose(step, metrics, shown)
        for tracker in self._trackers:
            tracker.log(step, metrics)
        shown.update(step, metrics)
        self.progress.seconds += time.monotonic() - started
        if saves():
            engine.traces.flush()
            engine.save(self.progress)
        if refusal is not None:
            raise refusal

    def _diagnose(self, step: int, metrics: dict[str, float], shown: ConsoleProgress) -> dict[str, float]:
        """Warn of what goes wrong, once each; nothing without `trainer.diagnose`."""
        verdict = self.engine.traces.diagnosis.step(step, metrics)
        for found in verdict.new:
            colour = "red" if found.severity == "critical" else "yellow"
            text = escape(visible(f"{found.name}: {found.what} {found.advice}"))
            shown.say(f"[{colour}]step {step}: {text}[/{colour}]")
        return verdict.metrics

    def _validate(self, stop: StopRequest) -> None:
        """Measure the accuracy of the weights as they are: before training, or alone."""
        step, options = self.engine.step, self.config.trainer
        if not options.val_only and not (step == 0 and options.val_before_train):
            return
        metrics = self._measure(stop)
        if not metrics:
            return
        accuracy = self.progress.accuracy_after if step else self.progress.accuracy_before
        assert accuracy is not None, "it has just been measured"
        say_accuracy(self.console, self.config, accuracy)
        if step == 0:
            for tracker in self._trackers:
                tracker.log(step, metrics)

    def _measure(self, stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Validate. After a step this is not interrupted: the step's metrics would lack what is due."""
        result = self.engine.validate(stop)
        if result is None:
            return {}
        how = sampled_how(self.config.actor_rollout_ref.rollout.val_kwargs)
        self.progress.measured(self.engine.step, result.accuracy, how)
        self._show(result.samples)
        return result.metrics

    def _show(self, samples: Sequence[ShownResponse]) -> None:
        if not samples:
            return
        for sample in samples:
            self.console.print(sample.panel(self.engine.step))
        for tracker in self._trackers:
            tracker.log_samples(self.engine.step, samples)

    def _introduce(self, start: Checkpoint | None) -> None:
        facts = self.engine.facts()
        rollout, data = self.config.actor_rollout_ref.rollout, self.config.data
        adapters = "" if facts.trained is None else f" and {facts.trained / 1e6:,.2f} M of LoRA adapters"
        lines = [
            f"[bold]{self.config.actor_rollout_ref.model.path}[/bold]  {facts.parameters / 1e6:,.2f} M "
            f"parameters{adapters}, {facts.where}",
            f"{facts.prompts:,} training prompts, {data.train_batch_size} x {rollout.n} responses a step, "
            f"{self.engine.total_steps} steps of {self.config.algorithm.adv_estimator}",
            f"writing to {self.folder.path}",
        ]
        if facts.traced:
            lines.append(facts.traced)
        credit = TokenCredit(self.config.algorithm.token_credit, rollout.seed).describe()
        if credit:
            lines.append(credit)
        if facts.overlong:
            lines.append(f"{facts.overlong:,} prompts over data.max_prompt_length left out")
        for warning in self.folder.warnings:
            lines.append(f"[yellow]{escape(warning)}[/yellow]")
        if start is not None:
            lines.append(f"resuming from step {self.engine.step} ({start.path})")
        for line in lines:
            self.console.print(line, highlight=False, soft_wrap=True)
