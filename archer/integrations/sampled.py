"""Responses that another trainer sampled, and what becomes known of them until they are written."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from archer.algorithms.token_credit.base import CreditInputs
from archer.influence import Group, groups_from
from archer.rewards import RewardResult
from archer.rewards.rules import NO_OPINION
from archer.training.credit import Credit
from archer.training.traces import StepRecord


@dataclass(frozen=True)
class Verdicts:
    """What was judged of all N responses of a generation, the same on every process."""

    accepted: Tensor  # [N] bool
    judged: Tensor  # [N] bool: the others have no reward
    learnt: Tensor  # [N] bool: some token of it is learnt from
    rewards: Tensor  # [N] float: what the trainer makes advantages of; NaN where it is not judged
    values: dict[str, list[float]]  # of each reward function, where there are several
    group_size: int  # responses of one prompt follow one another

    def groups(self, offset: int) -> list[Group]:
        """The responses of each prompt; row r of the generation is called offset + r."""
        known = (self.judged & self.learnt).tolist()
        flags = [flag if there else None for flag, there in zip(self.accepted.tolist(), known, strict=True)]
        uids = [row // self.group_size for row in range(len(flags))]
        return groups_from(uids, flags, range(offset, offset + len(flags)))


@dataclass(eq=False)
class SampledResponses:
    """The n responses of this process, out of the N that were sampled together."""

    step: int  # the optimizer step that it was sampled for
    offset: int  # name of row 0 of all N
    first: int  # this process's first of the N
    verdicts: Verdicts
    prompts: list[list[int]]  # n
    tokens: Tensor  # [n, C] on the CPU
    mask: Tensor  # [n, C] bool on the device: tokens that are learnt from
    lengths: list[int]  # n, up to the last such token
    whole: bool  # no response has a gap
    advantages: Tensor  # [n] or [n, C] on the device, as the trainer made them
    finished: list[bool]  # n
    sources: list[str]  # n
    truths: list[Any]  # n
    log_probs: Tensor = field(init=False)  # [n, C] of the policy before the update
    entropy: Tensor = field(init=False)  # [n, C]
    influence: Tensor = field(init=False)  # [n, C] on the CPU, NaN where nothing was computed
    weights: Tensor | None = None  # [n, C] of token credit
    scores: Tensor | None = None  # [n, C] that the weights were made from
    known: bool = False  # log_probs, entropy and weights were made before the update
    selected: frozenset[int] = frozenset()  # names of the rows whose influence is traced
    seen: set[int] = field(default_factory=set)  # names of the rows that have been through their first loss

    def __post_init__(self) -> None:
        device = self.mask.device
        self.log_probs = torch.zeros(self.mask.shape, device=device)
        self.entropy = torch.zeros(self.mask.shape, device=device)
        self.influence = torch.full(self.mask.shape, torch.nan)

    @property
    def names(self) -> range:
        """Names of the rows of this process."""
        begin = self.offset + self.first
        return range(begin, begin + len(self.prompts))

    @property
    def complete(self) -> bool:
        """Whether every row has been through its first loss."""
        return len(self.seen) == len(self.prompts)

    def local(self, names: Sequence[int]) -> list[int]:
        """Places of named rows among the n."""
        return [name - self.offset - self.first for name in names]

    def credit_inputs(
        self, places: list[int], log_probs: Tensor, entropy: Tensor, scores: Tensor | None
    ) -> CreditInputs:
        """What a mode of token credit is given of some rows; all [n', C]."""
        mask = self.mask[places]
        everyone = torch.tensor(places) + self.first
        judged = self.verdicts.judged[everyone].to(mask.device)
        return CreditInputs(
            log_probs=torch.where(mask, log_probs.float(), 0),
            entropy=torch.where(mask, entropy.float(), 0),
            advantages=self.token_advantages(places),
            mask=mask,
            accepted=self.verdicts.accepted[everyone].to(mask.device) & judged,
            judged=judged,
            scores=scores,
        )

    def token_advantages(self, places: list[int]) -> Tensor:
        """[n', C] float32, before credit."""
        given = self.advantages[places].float()
        given = given.unsqueeze(1) if given.dim() == 1 else given
        mask = self.mask[places]
        return torch.where(mask, given.expand(mask.shape), 0)

    def columns(self) -> dict[str, Any]:
        """What a trace keeps of the rows of this process, on the CPU, to be sent to the one that writes."""
        every = list(range(len(self.prompts)))

        def array(values: Tensor | None) -> Any:
            return None if values is None else values.detach().float().cpu().numpy()

        return {
            "step": self.step,
            "rows": [name - self.offset for name in self.names],
            "offset": self.offset,
            "prompts": self.prompts,
            "tokens": self.tokens.numpy(),
            "mask": self.mask.cpu().numpy(),
            "advantages": array(self.token_advantages(every)),
            "log_probs": array(self.log_probs),
            "entropy": array(self.entropy),
            "weights": array(self.weights),
            "scores": array(self.scores),
            "influence": self.influence.numpy(),
            "selected": sorted(self.selected.intersection(self.names)),
            "finished": self.finished,
            "sources": self.sources,
            "truths": self.truths,
        }


@dataclass(frozen=True)
class WholeStep:
    """A step put together from all processes, on the one that writes."""

    record: StepRecord
    influence: Tensor  # [N, L]
    selected: list[int]


def whole_step(parts: Sequence[dict[str, Any]], verdicts: dict[int, Verdicts]) -> WholeStep:
    """Join the columns of one step.

    parts:    of every process and generation of the step
    verdicts: by the offset of the generation
    """
    parts = sorted(parts, key=lambda part: (part["offset"], part["rows"][0]))
    width = max(part["mask"].shape[1] for part in parts)

    def joined(name: str, fill: float = 0.0) -> Tensor:
        given = [torch.as_tensor(part[name]) for part in parts]
        return torch.cat([pad(values, (0, width - values.shape[1]), value=fill) for values in given])

    def listed(name: str) -> list[Any]:
        return [value for part in parts for value in part[name]]

    credited = all(part["weights"] is not None for part in parts)
    scored = all(part["scores"] is not None for part in parts)
    owners = [(part["offset"], row) for part in parts for row in part["rows"]]
    place = {offset + row: number for number, (offset, row) in enumerate(owners)}
    groups: dict[tuple[int, int], int] = {}
    numbers = [
        groups.setdefault((offset, row // verdicts[offset].group_size), len(groups)) for offset, row in owners
    ]
    record = StepRecord(
        step=parts[0]["step"],
        prompts=listed("prompts"),
        sample_index=[fingerprint(prompt) for prompt in listed("prompts")],
        groups=numbers,
        tokens=joined("tokens"),
        mask=joined("mask").bool(),
        entropy=joined("entropy"),
        log_probs=joined("log_probs"),
        advantages=joined("advantages"),
        scores=_of(verdicts, owners, "rewards").nan_to_num(0.0).float(),
        correct=_of(verdicts, owners, "accepted").bool(),
        unjudged=~_of(verdicts, owners, "judged").bool(),
        results=[result_of(verdicts[offset], row) for offset, row in owners],
        data_sources=listed("sources"),
        ground_truths=listed("truths"),
        finished=torch.tensor(listed("finished"), dtype=torch.bool),
        credit=Credit(joined("weights"), joined("scores", torch.nan) if scored else None)
        if credited
        else None,
    )
    selected = sorted(place[name] for name in listed("selected"))
    return WholeStep(record, joined("influence", torch.nan), selected)


def _of(verdicts: dict[int, Verdicts], owners: list[tuple[int, int]], name: str) -> Tensor:
    return torch.stack([vars(verdicts[offset])[name][row] for offset, row in owners])


def result_of(verdicts: Verdicts, row: int) -> RewardResult:
    """The judgement of a row, with the values of all reward functions."""
    if not verdicts.judged[row]:
        return RewardResult.of_failure(NO_OPINION)
    extra = {name: value for name, values in verdicts.values.items() if np.isfinite(value := values[row])}
    return RewardResult(float(verdicts.rewards[row]), bool(verdicts.accepted[row]), extra)


def fingerprint(token_ids: Sequence[int]) -> int:
    """A number that a prompt keeps throughout a run: other trainers do not say its place in the dataset."""
    return zlib.crc32(np.asarray(token_ids, dtype="<i8").tobytes()) >> 1
