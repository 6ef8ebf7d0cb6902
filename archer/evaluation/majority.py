"""Majority voting: is the answer that most responses agree on the right one?

Votes are counted by equivalence, so 1/2 and 0.5 are one answer. Right answers are one class, because each is
equivalent to the reference; comparisons are needed only among wrong answers, and only where there are enough
of them to win. Responses without an answer do not vote.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]
Equal = Callable[[Sequence[Pair]], Sequence[bool]]


@dataclass(frozen=True)
class Ballot:
    """The votes on one prompt: each response's answer (None: it gives none) and whether it is right."""

    answers: tuple[str | None, ...]
    correct: tuple[bool, ...]

    @property
    def right(self) -> int:
        """Votes for the right answer."""
        return sum(c for a, c in zip(self.answers, self.correct, strict=True) if a is not None)

    @property
    def wrong(self) -> tuple[str, ...]:
        """The wrong answers, one for each vote."""
        return tuple(a for a, c in zip(self.answers, self.correct, strict=True) if a is not None and not c)


def majority(ballots: Sequence[Ballot], equal: Equal) -> list[float]:
    """For each prompt 1 when the right answer has most votes, 0 when a wrong one has.

    When the right answer shares the lead with m wrong ones the value is 1 / (m + 1): what a random choice
    among them is worth. `equal` compares many pairs of answers at once.
    """
    open_ballots = {i: b for i, b in enumerate(ballots) if 0 < b.right <= len(b.wrong)}
    sizes = dict(zip(open_ballots, class_sizes([b.wrong for b in open_ballots.values()], equal), strict=True))
    values = [float(ballot.right > 0) for ballot in ballots]
    for index, found in sizes.items():
        right = ballots[index].right
        values[index] = 0.0 if max(found) > right else 1.0 / (found.count(right) + 1)
    return values


def class_sizes(votes: Sequence[Sequence[str]], equal: Equal) -> list[list[int]]:
    """For each list of answers the sizes of its classes of equivalent answers.

    An answer belongs to the first class whose first member it equals. One call of `equal` serves all lists:
    there are as many calls as the list with the most classes has.
    """
    left = [Counter(answers) for answers in votes]  # in order of first appearance
    sizes: list[list[int]] = [[] for _ in votes]
    while any(left):
        heads = [next(iter(answers), None) for answers in left]
        pairs = [
            (row, answer, head)
            for row, head in enumerate(heads)
            if head is not None
            for answer in left[row]
            if answer != head
        ]
        verdicts = equal([(answer, head) for _, answer, head in pairs]) if pairs else []
        for row, head in enumerate(heads):
            if head is not None:
                sizes[row].append(left[row].pop(head))
        for (row, answer, _), same in zip(pairs, verdicts, strict=True):
            if same:
                sizes[row][-1] += left[row].pop(answer)
    return sizes
