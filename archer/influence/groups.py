"""Groups of responses that are compared with each other, their selection, and the contrast within them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.influence.config import Aggregation, InfluenceConfig


@dataclass(frozen=True)
class Group:
    """The sampled responses of one prompt.

    Attributes:
        uid: the prompt's identity.
        rows: response rows, as the layouts name them.
        accepted: for each row whether its verifiable reward says correct.
    """

    uid: str
    rows: tuple[int, ...]
    accepted: tuple[bool, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(int(row) for row in self.rows))
        object.__setattr__(self, "accepted", tuple(bool(flag) for flag in self.accepted))
        if len(self.rows) != len(self.accepted):
            raise ArcherError(
                f"group {self.uid}: {len(self.rows)} rows but {len(self.accepted)} accepted flags"
            )
        if len(set(self.rows)) != len(self.rows):
            raise ArcherError(f"group {self.uid} names a row twice: {self.rows}")


def groups_from(
    uids: Sequence[object], accepted: Sequence[bool | None], rows: Sequence[int] | None = None
) -> list[Group]:
    """Responses of one uid as a group, groups in the order in which their uids appear.

    Args:
        uids: of each response the identity of its prompt: text or number.
        accepted: of each response its verdict; None, no verdict: it is in no group.
        rows: of each response its row, as the layouts name it; absent: 0, 1, ...
    """
    names = range(len(uids)) if rows is None else rows
    if not len(uids) == len(accepted) == len(names):
        raise ArcherError(
            f"{len(uids)} uids, {len(accepted)} verdicts and {len(names)} rows: expected as many"
        )
    members: dict[str, list[tuple[int, bool]]] = {}
    for uid, flag, row in zip(uids, accepted, names, strict=True):
        if flag is not None:
            members.setdefault(str(uid), []).append((int(row), bool(flag)))
    return [Group(uid, *zip(*found, strict=True)) for uid, found in members.items()]


@dataclass(frozen=True)
class Selection:
    """The groups that are scored, and how many prompts were left out and why."""

    groups: tuple[Group, ...]
    skipped_all_accepted: int
    skipped_all_rejected: int
    skipped_by_cap: int

    @property
    def rows(self) -> list[int]:
        """All response rows to trace."""
        return [row for group in self.groups for row in group.rows]


def select_groups(groups: Sequence[Group], max_prompts: int) -> Selection:
    """Prompts that have both accepted and rejected responses; the first `max_prompts` in the order given.

    The same prompts are selected for both scopes, so that their scores can be compared. 0 or less is no cap.
    """
    seen: set[int] = set()
    for group in groups:
        twice = seen.intersection(group.rows)
        if twice:
            raise ArcherError(f"response rows {sorted(twice)} are in more than one group")
        seen.update(group.rows)
    contrasting = [group for group in groups if any(group.accepted) and not all(group.accepted)]
    kept = contrasting[:max_prompts] if max_prompts > 0 else contrasting
    return Selection(
        groups=tuple(kept),
        skipped_all_accepted=sum(all(group.accepted) and len(group.rows) > 0 for group in groups),
        skipped_all_rejected=sum(not any(group.accepted) and len(group.rows) > 0 for group in groups),
        skipped_by_cap=len(contrasting) - len(kept),
    )


def comparison_groups(selection: Selection, config: InfluenceConfig) -> list[Group]:
    """What is compared with what: each prompt by itself, or everything selected as one group."""
    if config.accepted_rejected_scope == "per_prompt" or not selection.groups:
        return list(selection.groups)
    flags = [flag for group in selection.groups for flag in group.accepted]
    return [Group("all_selected", tuple(selection.rows), tuple(flags))]


def contrast_weights(accepted: Tensor, agg: Aggregation, exclude_self: bool) -> Tensor:
    """c with score_t = sum_r c_r infl(r, t): [B, 1, R], or [B, R, R] with one line per own response of t.

    sum: +1 for accepted and -1 for rejected. mean: divided by the number of responses on that side. With
    `exclude_self` line s has no weight at s and the mean on its side is over the others; an empty side
    contributes nothing. `accepted` is bool [B, R], the responses of B groups.
    """
    R = accepted.shape[1]
    counted = torch.ones(R if exclude_self else 1, R, dtype=torch.float64)
    if exclude_self:
        counted.fill_diagonal_(0)
    flags = accepted.unsqueeze(1)
    plus, minus = counted * flags, counted * ~flags
    if agg == "mean":
        plus = plus / plus.sum(2, keepdim=True).clamp(min=1)
        minus = minus / minus.sum(2, keepdim=True).clamp(min=1)
    return plus - minus
