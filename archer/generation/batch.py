"""The responses of one step, and their division into micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archer.data.prompts import Prompt
from archer.generation.packed import Packing
from archer.influence.factors import send


@dataclass(frozen=True)
class RolloutLimits:
    """How long responses may get, how many are decoded at a time, and the longest prompt."""

    max_response_length: int
    max_num_seqs: int
    max_prompt_length: int = 0  # what fixed memory is made for; 0: not known


@dataclass(frozen=True)
class Responses:
    """N sampled responses, right-padded to the longest (L), on the CPU.

    `mask` is True at response tokens, the closing end-of-sequence token included.
    """

    prompts: tuple[Prompt, ...]  # N
    tokens: Tensor  # [N, L] int64
    mask: Tensor  # [N, L] bool
    log_probs: Tensor  # [N, L] float32, as sampled
    finished: Tensor  # [N] bool: ended by itself, not by the length limit
    seeds: Tensor | None = None  # [N] int64: the random stream that each was drawn from, where known

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> Tensor:
        """[N] number of tokens of each response."""
        return self.mask.sum(-1)

    def rows(self, index: Sequence[int]) -> "Responses":
        """Return the chosen rows, cut to the longest of them."""
        where = torch.as_tensor(index, dtype=torch.long)
        longest = int(self.lengths[where].max()) if len(where) else 0
        return Responses(
            prompts=tuple(self.prompts[i] for i in index),
            tokens=self.tokens[where, :longest],
            mask=self.mask[where, :longest],
            log_probs=self.log_probs[where, :longest],
            finished=self.finished[where],
            seeds=None if self.seeds is None else self.seeds[where],
        )


def concatenate(parts: Sequence[Responses]) -> Responses:
    """Join responses row-wise, padding to the longest."""
    longest = max(part.tokens.shape[1] for part in parts)

    def join(tensors: list[Tensor]) -> Tensor:
        return torch.cat([torch.nn.functional.pad(t, (0, longest - t.shape[1])) for t in tensors])

    seeds = [part.seeds for part in parts if part.seeds is not None]
    return Responses(
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        tokens=join([part.tokens for part in parts]),
        mask=join([part.mask for part in parts]),
        log_probs=join([part.log_probs for part in parts]),
        finished=torch.cat([part.finished for part in parts]),
        seeds=torch.cat(seeds) if len(seeds) == len(parts) else None,
    )


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together, prompt and response: right-padded to S, or in one line.

    Right padding needs no attention mask: in a causal model no real token sees what follows it. A line of all
    sequences needs a packing, which says where each begins. The position that emits response token t of row
    r is `prompt_len[r] + t - 1`. What the program has to know stays on the CPU: asking the device for it
    would wait for all work before.
    """

    rows: Tensor  # [n] row numbers in the step's responses, on the CPU
    input_ids: Tensor  # [n, S], or [1, sum of lengths] with a packing
    tokens: Tensor  # [n, L] response tokens
    mask: Tensor  # [n, L] bool
    prompt_lengths: Tensor  # [n] on the CPU
    lengths: Tensor  # [n] of the responses, on the CPU
    emitting: Tensor  # [T] where in the flattened input_ids each response token is emitted, row by row
    places: Tensor  # [T] where in the flattened [n, L] each response token stands
    packing: Packing | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the model is called with beside the tokens."""
        return {} if self.packing is None else self.packing.arguments

    def gather(self, values: Tensor) -> Tensor:
        """Return [T, ...], the values of a tensor shaped like `input_ids` where tokens are emitted."""
        return values.flatten(0, 1).index_select(0, self.emitting)

    def scatter(self, values: Tensor) -> Tensor:
        """Place [T, ...] values of the response tokens in an [n, L, ...] tensor, zeros elsewhere."""
        rest = values.shape[1:]
        flat = values.new_zeros(self.mask.numel(), *rest).index_copy(0, self.places, values)
        return flat.view(*self.mask.shape, *rest)

    @property
    def response_tokens(self) -> Tensor:
        """[T] all response tokens, row by row."""
        return self.tokens.flatten().index_select(0, self.places)


def micro_batch(
    responses: Responses, rows: Sequence[int], device: torch.device, packed: bool = False
) -> MicroBatch:
    """Build the micro-batch of the given rows; `packed`: in one line instead of padded."""
    part = responses.rows(rows)
    sequences = [
        torch.cat([torch.tensor(prompt.token_ids, dtype=torch.long), tokens[mask]])
        for prompt, tokens, mask in zip(part.prompts, part.tokens, part.mask, strict=True)
    ]
    prompt_lengths = torch.tensor([len(prompt.token_ids) for prompt in part.prompts])
    if packed:
        totals = torch.tensor([len(sequence) for sequence in sequences])
        input_ids = torch.cat(sequences)[None]
        begins = totals.cumsum(0) - totals
    else:
        input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        begins = torch.arange(len(sequences)) * input_ids.shape[1]
    row, token = part.mask.nonzero(as_tuple=True)
    return MicroBatch(
        rows=torch.as_tensor(rows, dtype=torch.long),
        input_ids=send(input_ids, device),
        tokens=send(part.tokens, device),
        mask=send(part.mask, device),
        prompt_lengths=prompt_lengths,
        lengths=part.lengths,
        emitting=send((begins + prompt_lengths)[row] + token - 1, device),
        places=send(row * part.mask.shape[1] + token, device),
        packing=Packing.of(totals, device) if packed else None,
    )


def total_lengths(responses: Responses) -> list[int]:
    """Return prompt plus response length of every row."""
    return [
        len(prompt.token_ids) + int(length)
        for prompt, length in zip(responses.prompts, responses.lengths.tolist(), strict=True)
    ]


def split_by_tokens(
    lengths: Sequence[int], rows: Sequence[int], budget: int, packed: bool = False
) -> list[list[int]]:
    """Divide `rows` into micro-batches of at most `budget` tokens, longest rows first.

    `lengths[i]` is the length of row i. Padding counts, unless the rows of a micro-batch are `packed`;
    sorting by length keeps it small. The order is deterministic. A row longer than the budget goes alone. As
    few micro-batches as the budget allows, the largest of them as small as that number allows: a short one
    left over would keep a GPU waiting for the program.
    """
    order = sorted(rows, key=lambda r: (-lengths[r], r))
    if not order:
        return []
    parts = _filled(lengths, order, budget, packed)
    enough, too_small = budget, 0
    while enough - too_small > 1:
        between = (enough + too_small) // 2
        evener = _filled(lengths, order, between, packed)
        if len(evener) > len(parts):
            too_small = between
        else:
            enough, parts = between, evener
    return parts


def _filled(lengths: Sequence[int], order: Sequence[int], budget: int, packed: bool) -> list[list[int]]:
    """Fill one micro-batch after the other."""
    parts: list[list[int]] = []
    held = 0
    for row in order:
        width = lengths[row] if packed else lengths[parts[-1][0]] if parts else 0
        if parts and held + width <= budget:
            parts[-1].append(row)
            held += width
        else:
            parts.append([row])
            held = lengths[row]
    return parts


def split_by_rows(rows: Sequence[int], size: int) -> list[list[int]]:
    """Divide `rows` into consecutive micro-batches of `size` rows."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]
