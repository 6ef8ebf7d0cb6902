"""Accuracy on held-out prompts."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from archer.config.root import TrainConfig
from archer.data.prompts import PromptDataset
from archer.engines.local.judge import Judge
from archer.engines.local.rollout import Rollout
from archer.engines.local.sampling import SamplingParams
from archer.engines.local.seeds import stream


@dataclass(frozen=True)
class ValidationResult:
    """avg@n over all prompts, and the metrics of every data source."""

    accuracy: float
    metrics: dict[str, float]


class Validator:
    """Samples n responses per validation prompt, from the same random stream every time."""

    def __init__(self, config: TrainConfig, dataset: PromptDataset, rollout: Rollout, judge: Judge) -> None:
        self.config = config
        self.dataset = dataset
        self.rollout = rollout
        self.judge = judge

    def validate(self, stop: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """Return the result, or None when `stop()` turned true on the way."""
        options = self.config.actor_rollout_ref.rollout.val_kwargs
        params = SamplingParams(options.temperature, options.top_p, options.top_k, options.do_sample)
        size = self.config.data.val_batch_size or len(self.dataset)
        generator = stream(
            self.rollout.compute.device, self.config.actor_rollout_ref.rollout.seed, "validation"
        )
        correct: dict[str, list[list[bool]]] = defaultdict(list)  # source -> prompt -> response
        lengths: dict[str, list[int]] = defaultdict(list)
        for start in range(0, len(self.dataset), size):
            if stop():
                return None
            prompts = [self.dataset[i] for i in range(start, min(start + size, len(self.dataset)))]
            responses = self.rollout.generate(prompts, options.n, params, generator)
            groups = torch.arange(len(prompts)).repeat_interleave(options.n)
            judged = self.judge.judge(responses, groups, shaped=False)
            verdicts = judged.correct.view(len(prompts), options.n).tolist()
            for prompt, verdict, length in zip(
                prompts, verdicts, responses.lengths.view(-1, options.n).tolist(), strict=True
            ):
                correct[prompt.data_source].append(verdict)
                lengths[prompt.data_source].extend(length)
        return summarise(correct, lengths, options.n)


def summarise(
    correct: dict[str, list[list[bool]]], lengths: dict[str, list[int]], n: int
) -> ValidationResult:
    """Turn verdicts (data source -> prompt -> n responses) into verl's `val-core/...` metrics.

    mean@n is the share of right responses; pass@n the share of prompts with at least one right response.
    """
    metrics: dict[str, float] = {}
    for source, verdicts in correct.items():
        metrics[f"val-core/{source}/acc/mean@{n}"] = _mean([sum(v) / n for v in verdicts])
        metrics[f"val-core/{source}/acc/pass@{n}"] = _mean([float(any(v)) for v in verdicts])
        metrics[f"val-aux/{source}/response_length/mean"] = _mean([float(x) for x in lengths[source]])
    everything = [sum(v) / n for verdicts in correct.values() for v in verdicts]
    return ValidationResult(_mean(everything), metrics)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
