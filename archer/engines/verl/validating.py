"""verl's synchronous trainer with Archer's validations: figures, samples to show, and their trace."""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.v1 import PPOTrainerSync

from archer.engines.verl.metrics import validation_summary
from archer.engines.verl.settings import archer_config
from archer.engines.verl.validation import ValidationRecorder
from archer.evaluation.summary import Summary
from archer.tracking import ValidationSample
from archer.training.loop import validation_at
from archer.training.traces import Traces, traces_validation


class ValidatingTrainer(PPOTrainerSync):
    """Samples and judges as verl does; what is made of it is what the local engine makes."""

    traces: Traces
    accuracy_summary: Summary

    def __init__(self, config: DictConfig) -> None:
        self.settings = archer_config(config.trainer)
        super().__init__(config)
        self.validation = ValidationRecorder(self.settings.trainer.val_trace.max_responses)
        self.generations: list[ValidationSample] = []  # of the last validation, as many as are to be shown

    def validate(self) -> dict[str, float]:
        """Have verl validate, and trace the first responses where that is wanted."""
        if not traces_validation(self.settings):
            return self._validate()
        self.validation.begin()
        self.replay_buffer.on_validation = self.validation.observe
        metrics = self._validate()
        arrays = self.validation.step()
        if arrays is not None:
            self.traces.validation.write(self.global_steps, arrays)
        return metrics

    def _maybe_log_val_generations(
        self, inputs: Sequence[str], outputs: Sequence[str], scores: Sequence[float]
    ) -> None:
        """Keep as many of the validation's generations as are to be shown; the run loop shows them."""
        chosen: dict[str, ValidationSample] = {}
        for prompt, response, score in zip(inputs, outputs, scores, strict=True):
            chosen.setdefault(prompt, ValidationSample(prompt, response, score))
        self.generations = list(chosen.values())[: self.settings.trainer.log_val_generations]

    def _val_metrics_update(
        self,
        data_sources: Sequence[str],
        sample_uids: Sequence[str],
        reward_extra_infos_dict: dict[str, list[Any]],
        sample_turns: Any,
        expected_acc_counts: dict[tuple[str, str], int] | None = None,
    ) -> dict[str, float]:
        self.accuracy_summary = validation_summary(
            data_sources,
            sample_uids,
            reward_extra_infos_dict,
            expected_acc_counts or {},
            self.settings.reward,
            validation_at(self.global_steps),
        )
        return self.accuracy_summary.metrics()
