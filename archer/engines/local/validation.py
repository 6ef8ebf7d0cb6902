"""Accuracy on held-out prompts while training: an evaluation of the current weights."""

from collections.abc import Callable
from dataclasses import dataclass

from archer.config.root import TrainConfig
from archer.data.prompts import PromptDataset
from archer.engines.local.judge import Judge
from archer.engines.local.rollout import Rollout
from archer.engines.local.sampling import SamplingParams
from archer.evaluation.evaluator import EvalSampling, Evaluator
from archer.evaluation.samples import Sample
from archer.evaluation.summary import summarise


@dataclass(frozen=True)
class ValidationResult:
    """avg@n over all prompts, and the metrics of every data source."""

    accuracy: float
    metrics: dict[str, float]


class Validator:
    """Evaluates the current weights, from the same random streams every time."""

    def __init__(self, config: TrainConfig, dataset: PromptDataset, rollout: Rollout, judge: Judge) -> None:
        self._evaluator = Evaluator(dataset, rollout, judge, validation_sampling(config))

    def validate(self, stop: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """Return the result, or None when `stop()` turned true on the way."""
        samples: list[Sample] = []
        chunks = self._evaluator.chunks()
        while not stop():
            chunk = next(chunks, None)
            if chunk is None:
                summary = summarise(samples)
                return ValidationResult(summary.overall.avg, summary.metrics())
            samples += chunk
        return None


def validation_sampling(config: TrainConfig) -> EvalSampling:
    """How a run samples its validation; `archer eval` on its checkpoints does the same."""
    rollout = config.actor_rollout_ref.rollout
    options = rollout.val_kwargs
    return EvalSampling(
        n=options.n,
        params=SamplingParams(options.temperature, options.top_p, options.top_k, options.do_sample),
        seed=rollout.seed,
        max_num_seqs=rollout.max_num_seqs,
        batch_size=config.data.val_batch_size,
    )
