"""What everything is verified on: responses that the embedded model samples on the built-in task."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.advantages.group_relative import GrpoSettings, grpo
from archer.data.config import DataConfig
from archer.errors import ArcherError
from archer.generation.batch import MicroBatch, Responses, concatenate, micro_batch
from archer.generation.build import PromptFiles, build_generation
from archer.generation.config import ComputeConfig, ModelConfig, RolloutConfig
from archer.generation.device import Compute
from archer.generation.judge import Judge
from archer.generation.model import BUILTIN
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.influence import Group
from archer.rewards.config import RewardConfig
from archer.rewards.extract import extract_answer
from archer.trace.vocab import vocab_from_tokenizer
from archer.training.mistakes import mistaken_tokens, touched

COMPUTE = Compute(torch.device("cpu"), torch.float32)
MODEL = ModelConfig(path=BUILTIN, enable_gradient_checkpointing=False)
DATA = DataConfig(max_prompt_length=32, max_response_length=48)  # as in the embedded default's recipe
PROMPT_POOL = 4096  # problems of the held-out split that prompts are drawn from


@dataclass(frozen=True, eq=False)
class VerificationSample:
    """N responses in groups with both verdicts, numbered row by row, and what is known of each response."""

    responses: Responses
    groups: tuple[Group, ...]  # one per prompt, each with accepted and rejected responses
    advantages: Tensor  # [N] GRPO advantage
    rewards: Tensor  # [N] 1 for a right answer, otherwise 0
    mistakes: tuple[frozenset[int], ...]  # N x the tokens of its first mistake; empty where it has none
    steps: tuple[frozenset[int], ...]  # N x the tokens of its written sums, where a column is decided

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return self.responses.lengths.tolist()

    @property
    def batch(self) -> MicroBatch:
        """All responses as one micro-batch of the local engine."""
        return micro_batch(self.responses, range(len(self.responses)), COMPUTE.device)

    def narrowed(self, prompts: int, responses: int) -> VerificationSample:
        """The first groups alone, the larger ones cut to `responses` with both verdicts kept; rows are
        renumbered."""
        rows: list[int] = []
        groups = []
        for group in self.groups[:prompts]:
            accepted = [row for row in group.rows if self.rewards[row]]
            rejected = [row for row in group.rows if not self.rewards[row]]
            few = min(len(accepted), max(responses // 2, responses - len(rejected)))
            chosen = sorted(accepted[:few] + rejected[: responses - few])
            numbers = tuple(range(len(rows), len(rows) + len(chosen)))
            groups.append(Group(group.uid, numbers, tuple(row in accepted for row in chosen)))
            rows.extend(chosen)
        return VerificationSample(
            responses=self.responses.rows(rows),
            groups=tuple(groups),
            advantages=self.advantages[rows],
            rewards=self.rewards[rows],
            mistakes=tuple(self.mistakes[row] for row in rows),
            steps=tuple(self.steps[row] for row in rows),
        )


def draw_sample(prompts: int, responses: int, seed: int) -> tuple[PreTrainedModel, VerificationSample]:
    """The model that ships with Archer, as the local engine loads it, and what it says to held-out problems.

    Groups of `responses` each are sampled until `prompts` of them hold both right and wrong answers.
    """
    pool = f"builtin:arithmetic/val?size={PROMPT_POOL}"
    generation = build_generation(
        MODEL,
        RolloutConfig(),
        DATA,
        RewardConfig(),
        ComputeConfig(device="cpu", dtype="float32", threads=1),
        {pool: PromptFiles((pool,), min(PROMPT_POOL, 4 * prompts + 16), seed)},
        trains=True,
    )
    drawn, judge = generation.datasets[pool], generation.judge
    kept: list[Responses] = []
    for start in range(0, len(drawn), prompts):
        streams = SampleStreams.named(seed, "verify", first_prompt=start)
        some = generation.rollout.generate(
            drawn[start : start + prompts], responses, SamplingParams(), streams
        )
        right = _right(some, judge).view(-1, responses)
        for group in (right.any(1) & ~right.all(1)).nonzero()[:, 0].tolist():
            kept.append(some.rows(range(group * responses, (group + 1) * responses)))
        if len(kept) >= prompts:
            return generation.model, _judged(concatenate(kept[:prompts]), responses, judge)
    raise ArcherError(
        f"only {len(kept)} of {len(drawn)} prompts got both right and wrong answers in {responses} "
        f"responses, {prompts} are wanted: raise --responses (8 is plenty) or lower --prompts"
    )


def _judged(responses: Responses, size: int, judge: Judge) -> VerificationSample:
    right = _right(responses, judge)
    group = torch.arange(len(responses)) // size
    rewards = torch.zeros(responses.mask.shape)
    rewards[torch.arange(len(responses)), responses.lengths - 1] = right.float()
    advantages = grpo(AdvantageInputs(rewards, responses.mask, group), GrpoSettings())
    vocab = vocab_from_tokenizer(judge.tokenizer)
    mistakes, steps = [], []
    for row, prompt in enumerate(responses.prompts):
        tokens = responses.tokens[row][responses.mask[row]].tolist()
        ended = bool(responses.finished[row])  # its last token is the end mark, no text
        decoded = vocab.decode(tokens[:-1] if ended else tokens)
        mistakes.append(mistaken_tokens(prompt, decoded, len(tokens)))
        sums = [touched(decoded, *match.span(1)) for match in re.finditer(r"=([0-9]+)", decoded.text)]
        steps.append(frozenset[int]().union(*sums))
    return VerificationSample(
        responses=responses,
        groups=tuple(
            Group(f"prompt {g}", tuple(rows.tolist()), tuple(right[rows].tolist()))
            for g, rows in enumerate(torch.arange(len(responses)).split(size))
        ),
        advantages=advantages[:, 0],
        rewards=right.float(),
        mistakes=tuple(mistakes),
        steps=tuple(steps),
    )


def _right(responses: Responses, judge: Judge) -> Tensor:
    """[N] bool: whether the boxed answer is the sum."""
    answers = [extract_answer(text, last_number_fallback=False) for text in judge.decode(responses)]
    truths = [prompt.ground_truth for prompt in responses.prompts]
    return torch.tensor([answer == truth for answer, truth in zip(answers, truths, strict=True)])


def permuted(groups: tuple[Group, ...], seed: int) -> tuple[Group, ...]:
    """The groups with their labels drawn in another order; every group keeps its number of each."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = []
    for group in groups:
        order = torch.randperm(len(group.rows), generator=generator).tolist()
        shuffled.append(Group(group.uid, group.rows, tuple(group.accepted[i] for i in order)))
    return tuple(shuffled)
