"""The lines of a decoding batch: what each is about to feed, and what has been sampled in its slot.

Everything lies in tensors of fixed memory, so that a recorded graph can work on them; a graph of r lines
works on the first r.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Begun:
    """A response whose prompt has been read, all but the last token."""

    row: int  # among all responses of the call
    slot: int
    token: int  # last token of the prompt, to be fed next
    position: int  # of that token
    stream: int  # name of its random stream


class Lines:
    """Up to `slots` responses in the making; results lie by slot, one more of them for scrap."""

    def __init__(self, slots: int, max_response_length: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.scrap = slots
        self.token, self.position = zeros(slots), zeros(slots)
        self.slot = torch.full((slots,), self.scrap, device=device)
        self.stream, self.count = zeros(slots), zeros(slots)  # name of the random numbers; tokens so far
        self.going = zeros(slots, dtype=torch.bool)
        self.ends = torch.arange(slots + 1, dtype=torch.int32, device=device)  # of one token a line
        self.tokens = zeros(slots + 1, max_response_length)
        self.log_probs = zeros(slots + 1, max_response_length, dtype=torch.float32)
        self.lengths, self.finished = zeros(slots + 1), zeros(slots + 1, dtype=torch.bool)

    def arrange(self, kept: list[int], begun: list[Begun]) -> None:
        """Move the lines that go on to the front and put new ones behind them; the rest feed scrap."""
        count, total = len(kept), len(kept) + len(begun)
        where = torch.tensor(kept, dtype=torch.long, device=self.token.device)
        new = torch.tensor([[b.token, b.position, b.slot, b.stream, 0] for b in begun], dtype=torch.long)
        new = new.view(-1, 5).T.to(self.token.device)
        fields = (self.token, self.position, self.slot, self.stream, self.count)
        for field, values in zip(fields, new, strict=True):
            field[:count] = field[where]
            field[count:total] = values
            field[total:] = 0
        self.slot[total:] = self.scrap
        self.going[:total] = True
        self.going[total:] = False

    def record(
        self,
        size: int,
        tokens: Tensor,  # [size] sampled
        log_probs: Tensor,  # [size]
        stop_ids: Tensor,
    ) -> None:
        """Note what was sampled in the first `size` lines, and which go on; ended ones stand still."""
        going, slot, count = self.going[:size], self.slot[:size], self.count[:size]
        ended = torch.isin(tokens, stop_ids) | ~log_probs.isfinite()
        length = self.tokens.shape[1]
        place = torch.where(going, slot * length + count, self.scrap * length)
        self.tokens.view(-1).index_copy_(0, place, tokens)
        self.log_probs.view(-1).index_copy_(0, place, log_probs)
        count += going
        self.position[:size] += going
        here = torch.where(going, slot, self.scrap)
        self.lengths.index_copy_(0, here, count)
        self.finished.index_copy_(0, here, ended)
        self.token[:size].copy_(torch.where(going, tokens, self.token[:size]))
        going &= ~ended & (count < length)
