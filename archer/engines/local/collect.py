"""Collecting a step's responses: prompts, rollout, verification, dynamic sampling with refill."""

from dataclasses import dataclass

import torch

from archer.algorithms.dynamic_sampling import DynamicSampling
from archer.algorithms.groups import count_groups
from archer.config.root import TrainConfig
from archer.data.prompts import PromptDataset
from archer.data.sampler import PromptSampler
from archer.generation.batch import concatenate
from archer.generation.build import Generation
from archer.generation.judge import Judged, failures_of, refuse_outage
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.training.metrics import Sampled


@dataclass(frozen=True)
class Collected:
    """The responses a step trains on, and everything that was sampled to get them."""

    judged: Judged
    sampled: Sampled


class Collector:
    """Draws training prompts and turns them into judged responses."""

    def __init__(
        self, config: TrainConfig, dataset: PromptDataset, sampler: PromptSampler, generation: Generation
    ) -> None:
        self.config = config
        self.dataset = dataset
        self.sampler = sampler
        self.generation = generation
        options = config.actor_rollout_ref.rollout
        self._params = SamplingParams(options.temperature, options.top_p, options.top_k)

    def collect(self, step: int) -> Collected:
        """Return the judged responses of `data.train_batch_size` prompts.

        With `algorithm.filter_groups.enable`, groups that are all right or all wrong are replaced by new
        prompts until the batch is full or `max_num_gen_batches` is reached; then the step trains on what
        there is, and says so.
        """
        filtering = self.config.algorithm.filter_groups
        wanted = self.config.data.train_batch_size
        if not filtering.enable:
            judged = self._generate(step, wanted, first_group=0)
            self._refuse_outage(step, [judged])
            counts = count_groups(judged.correct, judged.groups, ~judged.unjudged)
            return Collected(judged, Sampled(judged.results, counts, 1, _tokens(judged)))
        state = DynamicSampling(wanted, filtering.max_num_gen_batches)
        batches: list[Judged] = []
        size = self.config.data.gen_batch_size or wanted
        while not state.done:
            batches.append(self._generate(step, size, first_group=len(batches) * size))
            # at once: without verdicts no group is mixed, and none ends it
            self._refuse_outage(step, batches)
            state = state.after(batches[-1].correct, batches[-1].groups, ~batches[-1].unjudged)
        everything = _join(batches)
        kept = set(state.kept)
        rows = [row for row, group in enumerate(everything.groups.tolist()) if group in kept]
        sampled = Sampled(
            everything.results, state.counts, len(batches), _tokens(everything), state.shortfall
        )
        return Collected(everything.rows(rows), sampled)

    def _refuse_outage(self, step: int, batches: list[Judged]) -> None:
        results = [result for batch in batches for result in batch.results]
        refuse_outage(failures_of(results), len(results), self.config.reward, f"step {step}")

    def _generate(self, step: int, size: int, first_group: int) -> Judged:
        options = self.config.actor_rollout_ref.rollout
        prompts = [self.dataset[i] for i in self.sampler.next_batch(size)]
        streams = SampleStreams.named(options.seed, "rollout", step, first_prompt=first_group)
        responses = self.generation.rollout.generate(prompts, options.n, self._params, streams)
        groups = torch.arange(size).repeat_interleave(options.n) + first_group
        return self.generation.judge.judge(responses, groups)


def _join(batches: list[Judged]) -> Judged:
    return Judged(
        responses=concatenate([batch.responses for batch in batches]),
        groups=torch.cat([batch.groups for batch in batches]),
        results=tuple(result for batch in batches for result in batch.results),
        penalties=torch.cat([batch.penalties for batch in batches]),
    )


def _tokens(judged: Judged) -> int:
    return int(judged.responses.mask.sum())
