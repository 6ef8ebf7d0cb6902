"""Examples with labels in a trace: the labelled tokens are the response, what is before them the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from archer.influence.layout import IGNORED
from archer.integrations.sampled import fingerprint
from archer.rewards import RewardResult
from archer.rewards.rules import NO_OPINION
from archer.training.traces import StepRecord

NOT_COMPUTED = (
    "not_computed"  # summary metadata: arrays that hold NaN, which `archer trace check` then expects
)


@dataclass(eq=False)
class Examples:
    """The n examples of a micro-batch, on the CPU; tokens without a label are gaps of their response."""

    rows: list[int]  # names of the rows
    input_ids: Tensor  # [n, S]
    labels: Tensor  # [n, S]
    uids: list[Any] | None  # n, where responses are compared
    accepted: list[bool] | None  # n
    scores: dict[int, Tensor] = field(default_factory=dict)  # row -> influence of its tokens
    noted: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # place -> of labelled tokens

    def note(self, place: int, log_probs: Tensor, entropy: Tensor) -> None:
        """Keep what the forward says of an example's labelled tokens; both [labelled]."""
        self.noted[place] = (log_probs.float().cpu(), entropy.float().cpu())


@dataclass(frozen=True)
class SupervisedStep:
    """A traced optimizer step, and what of it could not be computed."""

    record: StepRecord
    influence: Tensor  # [N, L]
    selected: list[int]
    missing: dict[str, Any]


def supervised_step(step: int, parts: Sequence[Examples]) -> SupervisedStep:
    """Put the micro-batches of all processes together."""
    lines = [(part, place) for part in parts for place in range(len(part.rows))]
    spans = [labelled_span(part.labels[place]) for part, place in lines]
    N, L = len(lines), max(1, *(end - begin for begin, end in spans))
    mask = torch.zeros(N, L, dtype=torch.bool)
    tokens = torch.zeros(N, L, dtype=torch.int64)
    log_probs, entropy = torch.full((N, L), torch.nan), torch.full((N, L), torch.nan)
    influence = torch.full((N, L), torch.nan)
    groups: dict[Any, int] = {}
    numbers, prompts, results, selected = [], [], [], []
    for number, ((part, place), (begin, end)) in enumerate(zip(lines, spans, strict=True)):
        width = end - begin
        mask[number, :width] = part.labels[place, begin:end] != IGNORED
        tokens[number, :width] = part.input_ids[place, begin:end]
        if place in part.noted:
            log_probs[number, mask[number]], entropy[number, mask[number]] = part.noted[place]
        row = part.rows[place]
        if row in part.scores:
            influence[number, : len(part.scores[row])] = part.scores[row]
            selected.append(number)
        prompts.append(part.input_ids[place, :begin].tolist())
        uid = row if part.uids is None else part.uids[place]
        numbers.append(groups.setdefault(uid, len(groups)))
        results.append(
            RewardResult.of_failure(NO_OPINION)
            if part.accepted is None
            else RewardResult.of_verdict(part.accepted[place])
        )
    known = all(place in part.noted for part, place in lines)
    record = StepRecord(
        step=step,
        prompts=prompts,
        sample_index=[
            fingerprint([*prompt, *line[there].tolist()])
            for prompt, line, there in zip(prompts, tokens, mask, strict=True)
        ],
        groups=numbers,
        tokens=tokens,
        mask=mask,
        entropy=torch.where(mask, entropy, 0),
        log_probs=torch.where(mask, log_probs, 0),
        advantages=torch.zeros(N, L),
        scores=torch.tensor([result.score for result in results]),
        correct=torch.tensor([result.correct for result in results]),
        unjudged=torch.tensor([result.unjudged for result in results]),
        results=results,
        data_sources=[""] * N,
        ground_truths=[None] * N,
        finished=torch.ones(N, dtype=torch.bool),
    )
    missing = {} if known else {NOT_COMPUTED: ["entropies", "log_probs"]}
    return SupervisedStep(record, influence, selected, missing)


def labelled_span(labels: Tensor) -> tuple[int, int]:
    """(begin, end) of the labelled tokens [S] that some position emits; (0, 0) where there are none."""
    places = (labels[1:] != IGNORED).nonzero().squeeze(1) + 1
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
