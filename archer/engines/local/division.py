"""How the rows of a step are divided: mini-batches, portions of whole groups, micro-batches."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from archer.config.model import ActorConfig
from archer.engines.local.batch import Responses, split_by_rows, split_by_tokens
from archer.engines.local.seeds import stream

PORTION = 8  # micro-batches' worth of tokens whose factors are kept at a time, where groups are that small


def mini_batches(groups: Tensor, config: ActorConfig, epoch: int, step: int) -> Iterator[list[int]]:
    """Yield the rows of each mini-batch: whole prompt groups, `ppo_mini_batch_size` of them."""
    order = list(dict.fromkeys(groups.tolist()))
    if config.shuffle:
        generator = stream(groups.device, config.data_loader_seed, "mini-batches", step, epoch)
        order = [order[i] for i in torch.randperm(len(order), generator=generator).tolist()]
    members: dict[int, list[int]] = {group: [] for group in order}
    for row, group in enumerate(groups.tolist()):
        members[group].append(row)
    for start in range(0, len(order), config.ppo_mini_batch_size):
        yield [row for group in order[start : start + config.ppo_mini_batch_size] for row in members[group]]


def whole_groups(
    groups: Sequence[Hashable], rows: list[int], lengths: Sequence[int], most: int, multiple: int = 1
) -> list[list[int]]:
    """Divide rows into the fewest and most even portions of consecutive whole groups.

    Each has at most `most` tokens and a multiple of `multiple` rows; one that cannot have both is as small as
    the second allows: a group, or a few. Only the last one has other numbers of rows.
    """
    pieces = _pieces(groups, rows, multiple)
    tokens = [sum(lengths[row] for row in piece) for piece in pieces]
    fewest = len(_filled(pieces, tokens, most))
    low, high = 0, most
    while low < high:  # the lowest limit that makes as few portions makes the most even ones
        middle = (low + high) // 2
        if len(_filled(pieces, tokens, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _filled(pieces, tokens, high)


def _pieces(groups: Sequence[Hashable], rows: list[int], multiple: int) -> list[list[int]]:
    """Join consecutive groups until their rows are a multiple; the last piece is what is left."""
    pieces: list[list[int]] = [[]]
    for _, members in groupby(rows, key=lambda row: groups[row]):
        if len(pieces[-1]) % multiple == 0 and pieces[-1]:
            pieces.append([])
        pieces[-1].extend(members)
    return pieces


def _filled(pieces: list[list[int]], tokens: list[int], most: int) -> list[list[int]]:
    """One portion after the other, each as full as the limit allows."""
    divided: list[list[int]] = []
    held = 0
    for piece, count in zip(pieces, tokens, strict=True):
        if not divided or held + count > most:
            divided.append([])
            held = 0
        divided[-1] += piece
        held += count
    return divided


def portions(responses: Responses, groups: Tensor, rows: list[int], config: ActorConfig) -> list[list[int]]:
    """Divide a mini-batch into whole groups of about `PORTION` micro-batches."""
    lengths = total_lengths(responses)
    most = portion_tokens(config, max(lengths[row] for row in rows))
    return whole_groups(groups.tolist(), rows, lengths, most)


def portion_tokens(config: ActorConfig, longest: int) -> int:
    """Tokens of `PORTION` micro-batches; `longest` is the length of the longest row."""
    if config.use_dynamic_bsz:
        return PORTION * config.ppo_max_token_len_per_gpu
    assert config.ppo_micro_batch_size_per_gpu is not None
    return PORTION * config.ppo_micro_batch_size_per_gpu * longest


def micro_batches(responses: Responses, rows: list[int], config: ActorConfig) -> list[list[int]]:
    """Divide a mini-batch by token budget or by row count."""
    if not config.use_dynamic_bsz:
        assert config.ppo_micro_batch_size_per_gpu is not None
        return split_by_rows(rows, config.ppo_micro_batch_size_per_gpu)
    return split_by_tokens(total_lengths(responses), rows, config.ppo_max_token_len_per_gpu)


def total_lengths(responses: Responses) -> list[int]:
    """Return prompt plus response length of every row."""
    return [
        len(prompt.token_ids) + int(length)
        for prompt, length in zip(responses.prompts, responses.lengths.tolist(), strict=True)
    ]
