"""The local engine: one process on one device."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from archer.config.root import TrainConfig
from archer.data.sampler import PromptSampler
from archer.engines.local.collect import Collector
from archer.engines.local.sizing import MicroBatchSizes, choose_sizes, with_sizes
from archer.engines.local.trainer import Trainer
from archer.evaluation.evaluator import Evaluator, all_samples, exact_of, recorder_of, validation_sampling
from archer.evaluation.exact import ExactAccuracy
from archer.evaluation.summary import summarise
from archer.generation.adapter_files import save_adapters
from archer.generation.build import Generation, PromptFiles, build_generation
from archer.generation.lora import BasePolicy
from archer.generation.model import load_reference
from archer.generation.policy import Policy
from archer.generation.sampling import seed_everything
from archer.runs.checkpoint import Checkpoint
from archer.runs.folder import RunFolder
from archer.runs.integrity import STATE_FILE, DamagedCheckpointError, check_optimizer
from archer.tracking import ValidationSample
from archer.training.loop import EngineFacts, StepReport, ValidationResult, validation_at
from archer.training.progress import Progress
from archer.training.traces import Traces, traces_validation

TRAIN, VAL = "data.train_files", "data.val_files"


class LocalEngine:
    """What the run loop asks of an engine, in this process."""

    generation: Generation
    trainer: Trainer
    evaluator: Evaluator | None
    exact: ExactAccuracy | None
    total_steps: int
    sizes: MicroBatchSizes | None

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = RunFolder(config)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Nothing but this process is needed, and its errors are its own."""
        yield

    def start(self, start: Checkpoint | None, closing: ExitStack) -> None:
        """Load data, model and rewards. `start` replaces the policy's weights, never the reference's."""
        config, options, data = self.config, self.config.actor_rollout_ref, self.config.data
        seed_everything(options.rollout.seed, 0)
        named = {
            TRAIN: PromptFiles(data.train_files, data.train_max_samples),
            VAL: PromptFiles(data.val_files, data.val_max_samples),
        }
        self.generation = build_generation(
            options.model,
            options.rollout,
            data,
            config.reward,
            config.engine,
            {key: prompts for key, prompts in named.items() if prompts.files},
            weights=None if start is None else str(start.path.resolve()),
            trains=True,
        )
        closing.callback(self.generation.scorer.close)
        compute, temperature = self.generation.compute, options.rollout.temperature
        policy = Policy(self.generation.model, compute, temperature)
        self.generation.rollout.rest()
        adapters = self.generation.adapters
        reference: Policy | None = None
        if config.needs_reference and adapters is not None:
            reference = BasePolicy(adapters, compute, temperature)
        elif config.needs_reference:
            reference = Policy(load_reference(options.model, compute), compute, temperature)
        longest = max(len(p.token_ids) for d in self.generation.datasets.values() for p in d)
        # last: what stays in memory beside the update is there now
        self.sizes = choose_sizes(policy, options.model, options.actor, longest + data.max_response_length)
        options = replace(options, actor=with_sizes(options.actor, self.sizes))
        config = replace(config, actor_rollout_ref=options)
        datasets = self.generation.datasets
        train = datasets[TRAIN] if TRAIN in datasets else datasets[VAL]  # trainer.val_only needs no other
        sampler = PromptSampler(len(train), data.train_batch_size, data.shuffle, data.seed)
        self.total_steps = (
            config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch
        )
        collector = Collector(config, train, sampler, self.generation)
        self.trainer = Trainer(config, policy, reference, collector, self.total_steps)
        self.trainer.newest = self.folder.checkpoints.latest
        self.evaluator, self.exact = None, None
        if VAL in datasets:
            self.exact = exact_of(self.generation, self.config, datasets[VAL])
            sampling = validation_sampling(config)
            self.evaluator = Evaluator(
                datasets[VAL],
                self.generation.rollout,
                self.generation.judge,
                sampling,
                recorder_of(self.generation, config, sampling) if traces_validation(config) else None,
            )

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self.generation.tokenizer

    @property
    def step(self) -> int:
        """Steps done."""
        return self.trainer.step

    @property
    def traces(self) -> Traces:
        """Where steps are written."""
        return self.trainer.traces

    @traces.setter
    def traces(self, traces: Traces) -> None:
        self.trainer.traces = traces

    def resume(self, start: Checkpoint) -> Progress:
        """Take over optimizer, data position and random state; the weights are loaded already."""
        state = start.training_state()
        file = start.path / STATE_FILE
        try:
            check_optimizer(state["optimizer"], self.trainer.parameters, start.path)
            progress = Progress(**state["progress"])
            self.trainer.load_state_dict(state)
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
            raise DamagedCheckpointError(file, f"holds no state of this run ({error})") from error
        return progress

    def facts(self) -> EngineFacts:
        """Describe model, device and what is traced."""
        compute, dataset = self.generation.compute, self.trainer.collector.dataset
        traced = ""
        if self.config.trainer.influence_trace.enable:
            with compute.autocast():  # what the factors will be stored in
                responses = self.config.actor_rollout_ref.rollout.n
                traced = self.trainer.recorder.tracer.describe(responses)
        every = sum(p.numel() for p in self.generation.model.parameters())
        trained = sum(p.numel() for p in self.trainer.parameters)
        whole = self.generation.adapters is None
        return EngineFacts(
            parameters=every if whole else every - trained,
            trained=None if whole else trained,
            where=self._where(),
            prompts=len(dataset),
            overlong=dataset.overlong,
            traced=traced,
        )

    def _where(self) -> str:
        """Device, number format, what samples, and the sizes that were chosen."""
        compute = self.generation.compute
        parts = [compute.device.type, str(compute.dtype).removeprefix("torch.")]
        if compute.device.type == "cuda":
            parts.append(f"rollout {self.generation.backend}")
        return ", ".join([*parts, *([str(self.sizes)] if self.sizes else [])])

    def validate(self, stop: Callable[[], bool]) -> ValidationResult | None:
        """Evaluate the current weights, from the same random streams every time."""
        if self.evaluator is None or self.exact is None:
            return None
        samples = all_samples(self.evaluator, self.config.reward, validation_at(self.step), stop)
        if samples is None:
            return None
        recorder = self.evaluator.recorder
        arrays = None if recorder is None else recorder.step()
        if arrays is not None:
            self.traces.validation.write(self.step, arrays)
        self.generation.rollout.rest()  # one more pass over the model may need its memory
        summary = summarise(samples, self.exact.mean())
        first = [s for s in samples if s.sample == 0][: self.config.trainer.log_val_generations]
        shown = [ValidationSample(s.prompt, s.response, None if s.failure else s.score) for s in first]
        return ValidationResult(summary.accuracy, summary.metrics(), shown)

    def train_step(self, saves: Callable[[], bool]) -> StepReport:
        """Run one step; a checkpoint is written after it."""
        return self.trainer.train_step()

    def save(self, progress: Progress) -> None:
        """Write the checkpoint of the current step."""
        state = self.trainer.state_dict() | {"progress": asdict(progress)}
        adapters, base = self.generation.adapters, self.config.actor_rollout_ref.model.path
        self.folder.checkpoints.save(
            self.step,
            self.generation.model,
            self.tokenizer,
            state,
            self.folder.run_id,
            save_weights=None if adapters is None else partial(save_adapters, adapters, base),
        )
