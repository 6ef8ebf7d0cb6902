"""The one way in which accuracy is measured: in training (validation) and on saved models (`archer eval`).

Prompts are taken in chunks; every response has a random stream of its own, named by the seed, the prompt's
number and the sample's. An evaluation that was stopped therefore resumes with exactly the responses it would
have drawn, and chunks of another size draw the same ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from archer.config.actor import DEFAULT_TOKENS
from archer.config.root import TrainConfig
from archer.data.prompts import Prompt, PromptDataset
from archer.evaluation.exact import ExactAccuracy
from archer.evaluation.majority import Ballot, majority
from archer.evaluation.recorder import SampleRecorder
from archer.evaluation.summary import Sample, shown_truth
from archer.generation.build import Generation
from archer.generation.judge import Judge, failures_of, refuse_outage
from archer.generation.policy import Policy
from archer.generation.rollout import Sampler
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.rewards.config import RewardConfig


@dataclass(frozen=True)
class EvalSampling:
    """How responses are drawn for an evaluation. All of it matters for the exact responses."""

    n: int  # responses per prompt
    params: SamplingParams
    seed: int
    max_num_seqs: int  # responses decoded at a time
    batch_size: int | None = None  # prompts at a time; None: as many as max_num_seqs allows

    @property
    def chunk(self) -> int:
        """Prompts that are sampled and judged together."""
        fitting = max(1, self.max_num_seqs // self.n)
        return fitting if self.batch_size is None else min(fitting, self.batch_size)


class Evaluator:
    """Samples and judges n responses to every prompt of a dataset."""

    def __init__(
        self,
        dataset: PromptDataset,
        rollout: Sampler,
        judge: Judge,
        sampling: EvalSampling,
        recorder: SampleRecorder | None = None,
    ) -> None:
        self.dataset = dataset
        self.rollout = rollout
        self.judge = judge
        self.sampling = sampling
        self.recorder = recorder

    @property
    def total(self) -> int:
        """Responses of the whole evaluation."""
        return len(self.dataset) * self.sampling.n

    def chunks(self, done: int = 0) -> Iterator[list[Sample]]:
        """Yield the samples of chunk after chunk; `done` prompts (whole chunks) are left out."""
        if done % self.sampling.chunk and done != len(self.dataset):
            raise ValueError(f"{done} prompts are not whole chunks of {self.sampling.chunk}")
        for start in range(done, len(self.dataset), self.sampling.chunk):
            end = min(start + self.sampling.chunk, len(self.dataset))
            yield self._evaluate([self.dataset[i] for i in range(start, end)], start)

    def _evaluate(self, prompts: Sequence[Prompt], start: int) -> list[Sample]:
        sampling = self.sampling
        streams = SampleStreams.named(sampling.seed, "validation", first_prompt=start)
        responses = self.rollout.generate(prompts, sampling.n, sampling.params, streams)
        texts, results = self.judge.verdicts(responses)
        answers = [
            self.judge.scorer.answer(prompt.data_source, text)
            for prompt, text in zip(responses.prompts, texts, strict=True)
        ]
        if self.recorder is not None and self.recorder.wants_more:
            self.rollout.rest()  # the pass over the responses may need its memory
            self.recorder.observe(responses, results, answers)
        cast = [None if result.unjudged else answer for answer, result in zip(answers, results, strict=True)]
        votes = self._votes(prompts, cast, [result.correct for result in results])
        return [
            Sample(
                prompt_index=prompt.index,
                sample=row % sampling.n,
                data_source=prompt.data_source,
                prompt=prompt.messages[-1]["content"] if prompt.messages else "",
                ground_truth=shown_truth(prompt.ground_truth),
                response=texts[row],
                answer=answers[row],
                correct=results[row].correct,
                score=results[row].score,
                tokens=int(responses.lengths[row]),
                finished=bool(responses.finished[row]),
                failure=results[row].failure,
                majority=votes[row // sampling.n],
            )
            for row, prompt in enumerate(responses.prompts)
        ]

    def _votes(
        self, prompts: Sequence[Prompt], answers: Sequence[str | None], correct: Sequence[bool]
    ) -> list[float | None]:
        """Whether the majority of each prompt's responses is right; None where answers cannot be compared."""
        n, scorer = self.sampling.n, self.judge.scorer
        values: list[float | None] = [None] * len(prompts)
        for source in dict.fromkeys(prompt.data_source for prompt in prompts):
            if scorer.has_answers(source):
                places = [i for i, prompt in enumerate(prompts) if prompt.data_source == source]
                rows = [slice(i * n, (i + 1) * n) for i in places]
                ballots = [Ballot(tuple(answers[those]), tuple(correct[those])) for those in rows]
                found = majority(ballots, partial(scorer.same_answers, source))
                for i, value in zip(places, found, strict=True):
                    values[i] = value
        return values


def all_samples(
    evaluator: Evaluator, reward: RewardConfig, where: str, stop: Callable[[], bool] = lambda: False
) -> list[Sample] | None:
    """Run a whole evaluation in memory; None when `stop()` turned true on the way.

    It ends with an error as soon as too many responses are unjudged; `where` names it in the message.
    """
    samples: list[Sample] = []
    if evaluator.recorder is not None:
        evaluator.recorder.begin()
    chunks = evaluator.chunks()
    while not stop():
        chunk = next(chunks, None)
        if chunk is None:
            return samples
        samples += chunk
        refuse_outage(failures_of(samples), evaluator.total, reward, where)
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


def recorder_of(generation: Generation, config: TrainConfig, sampling: EvalSampling) -> SampleRecorder:
    """What traces the samples of an evaluation: the model, at the temperature that it samples at."""
    params = sampling.params
    temperature = params.temperature if params.do_sample else 1.0
    return SampleRecorder(
        lambda: Policy(generation.model, generation.compute, temperature),
        sampling.n,
        config.trainer.val_trace.max_responses,
        _budget(config),
        greedy=not params.do_sample,
    )


def exact_of(generation: Generation, config: TrainConfig, prompts: Sequence[Prompt]) -> ExactAccuracy:
    """What measures exact accuracy: the model at temperature 1, however it is sampled."""
    policy = Policy(generation.model, generation.compute, temperature=1.0)
    return ExactAccuracy(prompts, policy, generation.tokenizer, _budget(config))


def _budget(config: TrainConfig) -> int:
    """Tokens that go through the model together where responses are scored."""
    options = config.actor_rollout_ref
    chosen = options.rollout.log_prob_max_token_len_per_gpu or options.actor.ppo_max_token_len_per_gpu
    return chosen or DEFAULT_TOKENS
