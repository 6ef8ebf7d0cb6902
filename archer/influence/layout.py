"""Which response token each row of a flattened activation belongs to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Literal

import torch
from torch import Tensor

from archer.errors import ArcherError

Ints = Sequence[int] | Tensor

IGNORED = -100  # what transformers puts where no token is learnt


@dataclass(frozen=True, eq=False)
class Layout:
    """For a tensor flattened to `size` rows: the response row and response token each one belongs to.

    A position belongs to the token it *emits*: token t of a response sits at sequence position `prompt_len +
    t` and is predicted by the logits one position earlier. Rows are the caller's own numbers (the row in the
    rollout batch, say); -1 marks positions that are not traced: prompts, padding, responses that were not
    selected.

    Attributes:
        row: int64 [size], response row or -1.
        token: int64 [size], index within the response, meaningless where row is -1.
        runs: (position of its first token, number of tokens) of each response, given by who knows that the
            tokens of every response follow one another.
    """

    row: Tensor
    token: Tensor
    runs: dict[int, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if self.row.dim() != 1 or self.row.shape != self.token.shape:
            shapes = f"{tuple(self.row.shape)} and {tuple(self.token.shape)}"
            raise ArcherError(f"a layout needs row and token as two vectors of one length, not {shapes}")
        object.__setattr__(self, "row", self.row.detach().to("cpu", torch.int64))
        object.__setattr__(self, "token", self.token.detach().to("cpu", torch.int64))
        if self.runs is not None:
            return
        here = self.row >= 0
        row, token = self.row[here], self.token[here]
        if len(row) and len(torch.unique(row * (token.max() + 1) + token)) != len(row):
            raise ArcherError("a layout names some (row, token) twice; every response token has one position")

    @property
    def size(self) -> int:
        """Number of flattened positions."""
        return self.row.numel()

    def lengths(self) -> dict[int, int]:
        """Length of each response row: its highest token plus one."""
        if self.runs is not None:
            return {row: length for row, (_, length) in self.runs.items()}
        here = self.row >= 0
        rows, inverse = torch.unique(self.row[here], return_inverse=True)
        longest = torch.zeros_like(rows).scatter_reduce_(0, inverse, self.token[here] + 1, "amax")
        return dict(zip(rows.tolist(), longest.tolist(), strict=True))

    def only(self, rows: Collection[int]) -> Layout:
        """Keep these response rows: those of a selection, where groups are known before the capture.

        What is left out costs nothing: no factors, and no backward of its own for a row with advantage 0.
        """
        kept = torch.isin(self.row, torch.tensor(sorted(rows), dtype=torch.int64))
        runs = None if self.runs is None else {row: run for row, run in self.runs.items() if row in rows}
        return Layout(torch.where(kept, self.row, -1), self.token, runs)

    def last_tokens(self, count: int) -> Layout:
        """Keep only the last `count` tokens of each response; all of them when count <= 0."""
        if count <= 0 or not (self.row >= 0).any():
            return self
        length = torch.zeros(int(self.row.max()) + 1, dtype=torch.int64)
        for row, tokens in self.lengths().items():
            length[row] = tokens
        kept = (self.row >= 0) & (self.token >= length[self.row.clamp(min=0)] - count)
        return Layout(torch.where(kept, self.row, -1), self.token)

    @classmethod
    def from_starts(cls, rows: Ints, starts: Ints, lengths: Ints, size: int) -> Layout:
        """Token t of the i-th sequence is emitted at flat position `starts[i] + t`."""
        runs: dict[int, tuple[int, int]] = {}
        for r, start, length in zip(_list(rows), _list(starts), _list(lengths), strict=True):
            if r < 0 or length == 0:
                continue
            if r in runs:
                raise ArcherError(f"a layout names response row {r} twice; each has one sequence")
            if not 0 <= start <= size - length:
                raise ArcherError(
                    f"response row {r}: {length} tokens emitted from position {start} do not fit in {size} "
                    "positions (a response needs at least one prompt token before it)"
                )
            runs[r] = (start, length)
        begins, counts = torch.tensor(list(runs.values()), dtype=torch.int64).view(-1, 2).unbind(1)
        within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        where = begins.repeat_interleave(counts) + within
        row = torch.full((size,), -1, dtype=torch.int64)
        row[where] = torch.tensor(list(runs), dtype=torch.int64).repeat_interleave(counts)
        token = torch.zeros(size, dtype=torch.int64)
        token[where] = within
        if int((row >= 0).sum()) != len(where):
            raise ArcherError("sequences of a layout overlap; every position emits one response token")
        return cls(row, token, runs)

    @classmethod
    def padded(
        cls,
        rows: Ints,
        prompt_lengths: Ints,
        response_lengths: Ints,
        width: int,
        side: Literal["left", "right"] = "right",
    ) -> Layout:
        """A [N, width] batch whose sequences (prompt, then response) are padded on one side."""
        prompts, responses = _sequences(prompt_lengths, response_lengths)
        if side == "right":
            offsets = [i * width + p for i, p in enumerate(prompts)]
        elif side == "left":
            offsets = [(i + 1) * width - r for i, r in enumerate(responses)]
        else:
            raise ArcherError(f"padding side {side!r} is neither left nor right")
        for prompt, response in zip(prompts, responses, strict=True):
            if prompt + response > width:
                raise ArcherError(
                    f"prompt {prompt} + response {response} tokens exceed the batch width {width}"
                )
        return cls.from_starts(rows, [o - 1 for o in offsets], responses, len(prompts) * width)

    @classmethod
    def blocks(cls, rows: Ints, prompt_width: int, response_lengths: Ints, width: int) -> Layout:
        """A [N, width] batch of two blocks: prompts padded left to `prompt_width`, responses padded right."""
        responses = _list(response_lengths)
        longest = max(responses, default=0)
        if prompt_width < 1 or prompt_width + longest > width:
            raise ArcherError(
                f"a prompt block of {prompt_width} and responses of up to {longest} tokens do not fit in a "
                f"width of {width}: prompts need at least one token, both together at most the width"
            )
        starts = [i * width + prompt_width - 1 for i in range(len(responses))]
        return cls.from_starts(rows, starts, responses, len(responses) * width)

    @classmethod
    def packed(
        cls,
        rows: Ints,
        prompt_lengths: Ints,
        response_lengths: Ints,
        offsets: Ints | None = None,
        size: int = 0,
    ) -> Layout:
        """Sequences one after the other: activations [1, nnz, H], or the values of a jagged tensor.

        Args:
            rows: response row of each sequence, -1 where it is not traced.
            prompt_lengths: tokens of each prompt.
            response_lengths: tokens of each response.
            offsets: where each sequence begins, with or without the end; sequences follow one another when
                absent.
            size: flat positions in all, when padding follows the last sequence.
        """
        prompts, responses = _sequences(prompt_lengths, response_lengths)
        ends = list(accumulate(map(add, prompts, responses), initial=0))
        begins = ends[:-1] if offsets is None else _list(offsets)[: len(prompts)]
        total = ends[-1] if offsets is None else max([ends[-1], *_list(offsets)])
        starts = [begin + prompt - 1 for begin, prompt in zip(begins, prompts, strict=True)]
        return cls.from_starts(rows, starts, responses, max(size, total))

    @classmethod
    def from_mask(cls, mask: Tensor, rows: Ints | None = None) -> Layout:
        """A [N, width] batch in which `mask` is True at the tokens that are traced, whatever surrounds them.

        The token in column j is emitted in column j - 1. It is token j - f of its row, f the first column of
        the row's mask, so that gaps (another's turn, a tool's output) keep their place. What stands in column
        0 is emitted by nothing and is left out.

        Args:
            mask: bool [N, width], like the input ids.
            rows: response row of each line, -1 where it is not traced; absent: 0, 1, ...
        """
        kept = mask.detach().to("cpu", torch.bool, copy=True)
        kept[:, :1] = False
        names = torch.arange(len(kept)) if rows is None else torch.as_tensor(_list(rows))
        first = kept.int().argmax(1, keepdim=True)
        row = torch.where(kept, names[:, None], -1).roll(-1, 1)
        token = (torch.arange(kept.shape[1]) - first).clamp(min=0).roll(-1, 1)
        return cls(row.flatten(), token.flatten())

    @classmethod
    def from_labels(cls, labels: Tensor, rows: Ints | None = None) -> Layout:
        """As `from_mask`, for transformers' labels [N, width]: like the input ids, -100 not traced."""
        return cls.from_mask(labels != IGNORED, rows)

    @classmethod
    def responses(cls, rows: Ints, response_lengths: Ints, width: int) -> Layout:
        """A [N, width] tensor of response tokens only, column t for token t: log-probs, advantages."""
        lengths = _list(response_lengths)
        starts = [i * width for i in range(len(lengths))]
        return cls.from_starts(rows, starts, lengths, len(lengths) * width)


def _list(values: Ints) -> list[int]:
    return values.tolist() if isinstance(values, Tensor) else list(values)


def _sequences(prompt_lengths: Ints, response_lengths: Ints) -> tuple[list[int], list[int]]:
    prompts, responses = _list(prompt_lengths), _list(response_lengths)
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if response and prompt < 1:
            raise ArcherError(
                f"sequence {index} has no prompt token, so nothing emits its first response token"
            )
    return prompts, responses
