"""Sampling a model on a prompt file until enough rejected responses with a false equation are found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from archer.data.config import DataConfig
from archer.data.prompts import PromptDataset
from archer.errors import ArcherError
from archer.generation.batch import Responses
from archer.generation.build import Generation, PromptFiles, build_generation
from archer.generation.config import ComputeConfig, ModelConfig, RolloutConfig
from archer.generation.judge import failures_of, refuse_outage
from archer.generation.policy import Policy
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.rewards.config import RewardConfig
from archer.trace.vocab import vocab_from_tokenizer
from archer.verify.equations import numbers
from archer.verify.localisation import Label, MistakeCase, label_of
from archer.verify.token_methods import TokenMethods

DATA_KEY = "--data"


@dataclass(frozen=True)
class GatherOptions:
    """What is sampled, and until when."""

    model: str
    data: tuple[str, ...]
    cases: int
    max_prompts: int
    responses: int
    max_tokens: int
    temperature: float
    batch: int  # prompts that are sampled together
    seed: int
    device: str
    dtype: str
    threads: int  # of the CPU; 0: all cores
    factor: int  # projection_dim_factor
    budget: int  # tokens that go through the model together
    permutations: int
    last_number: bool  # take the last number for an answer where none is boxed


@dataclass(eq=False)
class Gathered:
    """The cases, what they were found among, and the first groups with both verdicts."""

    cases: list[MistakeCase] = field(default_factory=list)
    groups: list[tuple[Responses, tuple[bool, ...]]] = field(default_factory=list)
    prompts: int = 0
    responses: int = 0
    rejected: int = 0
    mixed: int = 0
    false: int = 0
    """Rejected responses with a false equation, those of prompts without any right answer included."""

    def told(self) -> str:
        """The counts in one line."""
        return (
            f"{self.prompts} prompts, {self.responses} responses, {self.rejected} rejected, {self.false} of "
            f"them with a false equation; {self.mixed} prompts with both verdicts; {len(self.cases)} cases"
        )


def build(options: GatherOptions) -> Generation:
    """Load the model as the local engine trains it, and the prompts."""
    return build_generation(
        ModelConfig(path=options.model, enable_gradient_checkpointing=False),
        RolloutConfig(temperature=options.temperature, name="hf"),
        DataConfig(max_response_length=options.max_tokens),
        RewardConfig(last_number_fallback=options.last_number),
        ComputeConfig(device=options.device, dtype=options.dtype, threads=options.threads),  # type: ignore[arg-type]
        {DATA_KEY: PromptFiles(options.data, options.max_prompts, options.seed)},
        trains=True,
        fit_prompts=True,
    )


def gather(
    generation: Generation, options: GatherOptions, told: Callable[[str], None], kept: int
) -> Gathered:
    """Sample group after group; the first `kept` with both verdicts are handed back.

    told: is given a line of progress after each batch
    """
    policy = Policy(generation.model, generation.compute, options.temperature)
    methods = TokenMethods(policy, options.factor, options.permutations, options.seed, options.budget)
    vocab = vocab_from_tokenizer(generation.tokenizer)
    found = Gathered()
    for responses, accepted, judged in _groups(generation, options):
        found.prompts += 1
        found.responses += len(responses)
        labels: list[Label | None] = []
        written: set[Fraction] = set()  # by accepted responses
        for row in range(len(responses)):
            rejected = judged[row] and not accepted[row]
            tokens = responses.tokens[row][responses.mask[row]].tolist()
            text = tokens[:-1] if bool(responses.finished[row]) else tokens
            decoded = vocab.decode(text)
            labels.append(label_of(decoded, len(tokens)) if rejected else None)
            if judged[row] and accepted[row]:
                written |= numbers(decoded.text)
            found.rejected += rejected
        found.false += sum(label is not None for label in labels)
        rows = [row for row in range(len(responses)) if judged[row]]
        mixed = len({accepted[row] for row in rows}) == 2
        found.mixed += mixed
        if mixed:
            group = responses.rows(rows), tuple(accepted[row] for row in rows)
            if len(found.groups) < kept:
                found.groups.append(group)
            if any(labels):
                found.cases += _cases(methods, group, [labels[row] for row in rows], written)
        told(found.told())
        if len(found.cases) >= options.cases and len(found.groups) >= kept:
            break
    if not found.groups:
        raise ArcherError(
            f"none of {found.prompts} prompts got both right and wrong answers in {options.responses} "
            f"responses ({found.told()}): raise --responses or --max-prompts, or "
            "take easier or harder prompts"
        )
    return found


def _cases(
    methods: TokenMethods,
    group: tuple[Responses, tuple[bool, ...]],
    labels: list[Label | None],
    written: Collection[Fraction],
) -> Iterator[MistakeCase]:
    responses, accepted = group
    valued = methods.of(responses, accepted)
    prompt = " ".join(map(str, responses.prompts[0].token_ids))
    for row, label in enumerate(labels):
        if label is not None:
            answered = not label.true.isdisjoint(written)
            yield MistakeCase(
                prompt, label, valued.entropy[row], valued.values[row], valued.nulls[row], answered
            )


def _groups(
    generation: Generation, options: GatherOptions
) -> Iterator[tuple[Responses, tuple[bool, ...], tuple[bool, ...]]]:
    """(responses, accepted, judged) of prompt after prompt, sampled a batch at a time."""
    dataset: PromptDataset = generation.datasets[DATA_KEY]
    n = options.responses
    params = SamplingParams(temperature=options.temperature)
    for start in range(0, len(dataset), options.batch):
        prompts = dataset[start : start + options.batch]
        streams = SampleStreams.named(options.seed, "verify", first_prompt=start)
        with torch.no_grad():
            responses = generation.rollout.generate(prompts, n, params, streams)
        _, results = generation.judge.verdicts(responses)
        refuse_outage(
            failures_of(results),
            len(results),
            RewardConfig(),
            f"prompts {start + 1} to {start + len(prompts)}",
        )
        for place in range(len(prompts)):
            rows = list(range(place * n, (place + 1) * n))
            yield (
                responses.rows(rows),
                tuple(bool(results[row].correct) for row in rows),
                tuple(not results[row].unjudged for row in rows),
            )
