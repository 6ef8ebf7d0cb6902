"""Which two responses of a group to lay side by side: a rejected one and the accepted one nearest to it.

Near is the Levenshtein distance of the token ids: fewest insertions, deletions and replacements of a token.
It is computed by Myers' bit-vector method: with D[i, j] the distance of the first i and j tokens, a column of
differences D[i, j] - D[i - 1, j] (each -1, 0 or 1) is two integers of n bits, and one token of the other
response moves the whole column by some additions and shifts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.viewer.steps import StepData

BUDGET = 120_000
"""Columns of one answer; of longer responses only the beginning, after what they share, is compared."""
SHORTEST = 64


@dataclass(frozen=True)
class Pair:
    """Two rows of one group, and how many tokens tell them apart."""

    row: int
    beside: int | None  # None: the group holds no other response
    distance: int | None


def edit_distance(first: Sequence[int], second: Sequence[int]) -> int:
    """Levenshtein distance of two token sequences."""
    a, b = _without_common_ends(first, second)
    if not a or not b:
        return len(a) + len(b)
    full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    places: dict[int, int] = {}
    for place, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << place
    up, down, distance = full, 0, len(a)
    for token in b:
        equal = places.get(token, 0)
        vertical = equal | down
        diagonal = (((equal & up) + up) ^ up) | equal
        right_up, right_down = down | (~(diagonal | up) & full), up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = (right_up << 1 | 1) & full, right_down << 1 & full
        up, down = right_down | (~(vertical | right_up) & full), right_up & vertical
    return distance


def _without_common_ends(first: Sequence[int], second: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    shared = min(len(first), len(second))
    start = 0
    while start < shared and first[start] == second[start]:
        start += 1
    end = 0
    while end < shared - start and first[-1 - end] == second[-1 - end]:
        end += 1
    return first[start : len(first) - end], second[start : len(second) - end]


def nearest_pair(data: StepData, group: int, row: int | None = None) -> Pair:
    """A response and the nearest one of the other verdict.

    `row` is given: that response. Else the rejected response that is nearest to an accepted one. Where the
    group is not mixed: the first two responses, or `row` and the nearest of the others.
    """
    rows = data.rows_of_group(group)
    verdicts = {int(each): data.arrays.verdict(int(each)) for each in rows}
    if row is not None and row not in verdicts:
        raise ArcherError(f"group {group} of step {data.step} has no response {row}; it has {rows.tolist()}.")
    others = [each for each in verdicts if each != row]
    if row is None:
        rejected = [each for each, verdict in verdicts.items() if verdict == "rejected"]
        accepted = [each for each, verdict in verdicts.items() if verdict == "accepted"]
        if not rejected or not accepted:
            first, *rest = verdicts
            return Pair(first, rest[0] if rest else None, None)
        return _closest(data, rejected, accepted)
    other = {"accepted": "rejected", "rejected": "accepted"}.get(verdicts[row])
    chosen = [each for each in others if verdicts[each] == other] or others
    return _closest(data, [row], chosen) if chosen else Pair(row, None, None)


def _closest(data: StepData, rows: list[int], others: list[int]) -> Pair:
    tokens = {row: _valid(data, row).tolist() for row in {*rows, *others}}
    most = max(SHORTEST, BUDGET // (len(rows) * len(others)))
    best: tuple[int, int, int] | None = None
    for row in rows:
        for other in others:
            a, b = _without_common_ends(tokens[row], tokens[other])
            distance = edit_distance(a[:most], b[:most])
            if best is None or distance < best[0]:
                best = distance, row, other
    assert best is not None
    return Pair(best[1], best[2], best[0])


def _valid(data: StepData, row: int) -> NDArray[np.int32]:
    return data.arrays.responses[row][data.arrays.response_mask[row]]
