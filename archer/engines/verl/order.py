"""The order in which a step's responses are handed to verl.

verl deals a batch out in two cuts: into as many consecutive parts as there are ranks, and each rank's part
into consecutive mini-batches. So that a prompt's group lies in one mini-batch, whole, the cuts are taken the
other way round here: groups to mini-batches first, the rows of a mini-batch to ranks then.

A large mini-batch is divided once more, into portions of whole groups: a rank has a like share of each, so
that all ranks can capture, score and forget one portion after the other.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from archer.config.actor import ActorConfig
from archer.training.portions import portion_tokens, whole_groups

Balance = Callable[[Sequence[int], int], list[list[int]]]
"""(lengths, parts) -> positions of each part: as many in each, with like sums of lengths."""


@dataclass(frozen=True)
class PortionSize:
    """How large a portion may be, on all ranks.

    Attributes:
        tokens: the most whose factors are kept.
        multiple: what its number of rows is a multiple of.
        kept: of every row, how many tokens' factors are kept; 0 where it is not traced.
    """

    tokens: int
    multiple: int
    kept: Sequence[int]

    @classmethod
    def of(
        cls, actor: ActorConfig, ranks: int, lengths: Sequence[int], traced: Collection[int]
    ) -> "PortionSize":
        """The local engine's portions on every rank; `traced` are rows."""
        kept = [length if row in traced else 0 for row, length in enumerate(lengths)]
        each = 1 if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
        assert each is not None
        return cls(portion_tokens(actor, max(lengths)) * ranks, each * ranks, kept)


@dataclass(frozen=True)
class Order:
    """Where the rows of a step go. Rows are numbered as they were given."""

    rows: list[int]  # in the order verl is to have them
    mini_batches: list[list[list[int]]]  # rows of each portion of each mini-batch, on all ranks
    split: frozenset[Hashable]  # groups that did not fit into one mini-batch


def order_rows(
    groups: Sequence[Hashable],
    lengths: Sequence[int],
    mini_batch_rows: int,
    ranks: int,
    balance: Balance,
    shuffle: Callable[[int], Sequence[int]] | None = None,
    portion: PortionSize | None = None,
) -> Order:
    """Lay out rows in mini-batches of `mini_batch_rows`, each shared equally by `ranks`.

    groups:  the group of every row; there is a multiple of `mini_batch_rows` of them
    lengths: the tokens of every row
    shuffle: a permutation of so many groups, when mini-batches are not to follow their order
    portion: how large portions are; None: mini-batches are not divided

    Groups keep their order as far as they fit. One that fits nowhere whole (groups are of unequal size when
    some responses failed) is split and named in `split`.
    """
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    bins: list[list[int]] = [[] for _ in range(len(groups) // mini_batch_rows)]
    left_over: list[Hashable] = []
    names = list(members)
    for group in names if shuffle is None else [names[i] for i in shuffle(len(names))]:
        rows = members[group]
        home = next((b for b in bins if len(b) + len(rows) <= mini_batch_rows), None)
        if home is None:
            left_over.append(group)
        else:
            home.extend(rows)
    for group in left_over:
        for row in members[group]:
            next(b for b in bins if len(b) < mini_batch_rows).append(row)
    divided = [[rows] if portion is None else _portions(rows, groups, portion) for rows in bins]
    shares = [_shares(rows, lengths, ranks, balance) for portions in divided for rows in portions]
    ordered = [row for rank in range(ranks) for share in shares for row in share[rank]]
    return Order(ordered, divided, frozenset(left_over))


def _portions(rows: list[int], groups: Sequence[Hashable], size: PortionSize) -> list[list[int]]:
    """Whole groups in portions; those of odd sizes go last, with rows that fill up: no portion ends there."""
    members = [list(group) for _, group in groupby(rows, key=lambda row: groups[row])]
    members.sort(key=lambda group: len(group) % size.multiple != 0)
    ordered = [row for group in members for row in group]
    return whole_groups(groups, ordered, size.kept, size.tokens, size.multiple)


def _shares(rows: list[int], lengths: Sequence[int], ranks: int, balance: Balance) -> list[list[int]]:
    parts = balance([lengths[row] for row in rows], ranks)
    return [[rows[position] for position in sorted(part)] for part in parts]
