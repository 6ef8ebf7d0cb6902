"""What everything is verified on: responses that the embedded model samples on the built-in task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.algorithms.advantages import AdvantageInputs, advantage
from archer.config.model import ModelConfig
from archer.data.arithmetic import first_mistake
from archer.data.prompts import Prompt, load_prompts
from archer.engines.local.batch import MicroBatch, Responses, concatenate, micro_batch
from archer.engines.local.device import Compute
from archer.engines.local.model import BUILTIN, load_policy, load_tokenizer, stop_token_ids
from archer.engines.local.rollout import Rollout, RolloutLimits
from archer.engines.local.sampling import SamplingParams
from archer.engines.local.seeds import stream
from archer.errors import ArcherError
from archer.influence import Group
from archer.rewards.boxed import extract_answer
from archer.trace.tokenizer_bytes import vocab_from_tokenizer
from archer.trace.vocab import DecodedText

COMPUTE = Compute(torch.device("cpu"), torch.float32)
PROMPT_POOL = 4096  # problems of the held-out split that prompts are drawn from
MAX_RESPONSE_LENGTH = 48  # as in the embedded default's recipe

_MODEL = ModelConfig(path=BUILTIN, enable_gradient_checkpointing=False)
_WRITTEN_SUM = re.compile(r"=([0-9]+)")


@dataclass(frozen=True, eq=False)
class Sample:
    """Groups of responses with both verdicts, numbered row by row, and what is known of each response.

    Attributes:
        responses: N sampled responses.
        groups: one group per prompt, each with accepted and rejected responses.
        advantages: [N] GRPO advantage of each response.
        rewards: [N] 1 for a right answer, otherwise 0.
        mistakes: for each response the tokens of its first mistake; empty where it has none.
        steps: for each response the tokens of its written sums, the places where a column is decided.
    """

    responses: Responses
    groups: tuple[Group, ...]
    advantages: Tensor
    rewards: Tensor
    mistakes: tuple[frozenset[int], ...]
    steps: tuple[frozenset[int], ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return self.responses.lengths.tolist()

    @property
    def batch(self) -> MicroBatch:
        """All responses as one micro-batch of the local engine."""
        return micro_batch(self.responses, range(len(self.responses)), COMPUTE.device)

    def narrowed(self, prompts: int, responses: int) -> Sample:
        """The first groups alone, the larger ones cut to `responses` with both verdicts kept; rows are
        renumbered."""
        rows: list[int] = []
        groups = []
        for group in self.groups[:prompts]:
            label = dict(zip(group.rows, group.accepted, strict=True))
            accepted = [row for row in group.rows if label[row]]
            rejected = [row for row in group.rows if not label[row]]
            few = min(len(accepted), max(responses // 2, responses - len(rejected)))
            chosen = sorted(accepted[:few] + rejected[: responses - few])
            numbers = tuple(range(len(rows), len(rows) + len(chosen)))
            groups.append(Group(group.uid, numbers, tuple(label[row] for row in chosen)))
            rows.extend(chosen)
        return Sample(
            responses=self.responses.rows(rows),
            groups=tuple(groups),
            advantages=self.advantages[rows],
            rewards=self.rewards[rows],
            mistakes=tuple(self.mistakes[row] for row in rows),
            steps=tuple(self.steps[row] for row in rows),
        )


def embedded_model() -> PreTrainedModel:
    """The model that ships with Archer, as the local engine loads it."""
    return load_policy(_MODEL, COMPUTE)


def draw_sample(model: PreTrainedModel, prompts: int, responses: int, seed: int) -> Sample:
    """Sample groups of `responses` each until `prompts` of them hold both right and wrong answers."""
    tokenizer = load_tokenizer(_MODEL)
    limits = RolloutLimits(MAX_RESPONSE_LENGTH, max_num_seqs=256)
    rollout = Rollout(model, COMPUTE, limits, stop_token_ids(model, tokenizer), tokenizer.pad_token_id)
    drawn = load_prompts(
        f"builtin:arithmetic/val?size={PROMPT_POOL}",
        tokenizer,
        max_prompt_length=32,
        filter_overlong_prompts=False,
        max_samples=min(PROMPT_POOL, 4 * prompts + 16),
        shuffle=True,
        seed=seed,
    )
    generator = stream(COMPUTE.device, seed, "verify")
    kept: list[Responses] = []
    for start in range(0, len(drawn), prompts):
        some = rollout.generate(drawn[start : start + prompts], responses, SamplingParams(), generator)
        right = _right(some, tokenizer).view(-1, responses)
        for group in (right.any(1) & ~right.all(1)).nonzero()[:, 0].tolist():
            kept.append(some.rows(range(group * responses, (group + 1) * responses)))
        if len(kept) >= prompts:
            return _judged(concatenate(kept[:prompts]), responses, tokenizer)
    raise ArcherError(
        f"only {len(kept)} of {len(drawn)} prompts got both right and wrong answers in {responses} "
        f"responses, {prompts} are wanted: raise --responses (8 is plenty) or lower --prompts"
    )


def _judged(responses: Responses, size: int, tokenizer: Any) -> Sample:
    right = _right(responses, tokenizer)
    group = torch.arange(len(responses)) // size
    rewards = torch.zeros(responses.mask.shape)
    rewards[torch.arange(len(responses)), responses.lengths - 1] = right.float()
    advantages = advantage("grpo")(AdvantageInputs(rewards, responses.mask, group))
    vocab = vocab_from_tokenizer(tokenizer)
    mistakes, steps = [], []
    for row, prompt in enumerate(responses.prompts):
        tokens = responses.tokens[row][responses.mask[row]].tolist()
        ended = bool(responses.finished[row])  # its last token is the end mark, no text
        decoded = vocab.decode(tokens[:-1] if ended else tokens)
        mistakes.append(_mistaken_tokens(prompt, decoded, len(tokens)))
        sums = [_touched(decoded, *match.span(1)) for match in _WRITTEN_SUM.finditer(decoded.text)]
        steps.append(frozenset[int]().union(*sums))
    return Sample(
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


def _mistaken_tokens(prompt: Prompt, decoded: DecodedText, length: int) -> frozenset[int]:
    """Tokens that hold the first wrong characters; the last of all when the response stops too early."""
    mistake = first_mistake(prompt.extra_info["a"], prompt.extra_info["b"], decoded.text)
    if mistake is None:
        return frozenset()
    if mistake.start == len(decoded.text):
        return frozenset({length - 1})
    return _touched(decoded, mistake.start, mistake.end)


def _touched(decoded: DecodedText, begin: int, end: int) -> frozenset[int]:
    """Tokens that hold some of the characters begin..end."""
    spans = zip(decoded.starts.tolist(), decoded.ends.tolist(), strict=True)
    return frozenset(token for token, (start, stop) in enumerate(spans) if start < end and stop > begin)


def _right(responses: Responses, tokenizer: Any) -> Tensor:
    """[N] bool: whether the boxed answer is the sum."""
    rows = [tokens[mask].tolist() for tokens, mask in zip(responses.tokens, responses.mask, strict=True)]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    answers = [extract_answer(text, last_number_fallback=False) for text in texts]
    truths = [prompt.ground_truth for prompt in responses.prompts]
    return torch.tensor([answer == truth for answer, truth in zip(answers, truths, strict=True)])
