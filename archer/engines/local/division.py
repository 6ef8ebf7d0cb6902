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
    """Divide rows into even portions of consecutive whole groups of at most `most` tokens, or of one group.

    Every portion but the last holds a multiple of `multiple` rows, and more tokens if need be.
    """
    fewest = len(_filled(groups, rows, lengths, most, multiple))
    low, high = 0, most
    while low < high:  # the lowest limit that makes as few portions makes the most even ones
        middle = (low + high) // 2
        if len(_filled(groups, rows, lengths, middle, multiple)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _filled(groups, rows, lengths, high, multiple)


def _filled(
    groups: Sequence[Hashable], rows: list[int], lengths: Sequence[int], most: int, multiple: int
) -> list[list[int]]:
    """One portion after the other, each as full as the limit allows."""
    divided: list[list[int]] = []
    tokens = 0
    for _, members in groupby(rows, key=lambda row: groups[row]):
        group = list(members)
        longer = sum(lengths[row] for row in group)
        if not divided or (tokens + longer > most and len(divided[-1]) % multiple == 0):
            divided.append([])
            tokens = 0
        divided[-1] += group
        tokens += longer
    return divided


def portions(responses: Responses, groups: Tensor, rows: list[int], config: ActorConfig) -> list[list[int]]:
    """Divide a mini-batch into whole groups of about `PORTION` micro-batches."""
    lengths = total_lengths(responses)
    size = config.ppo_max_token_len_per_gpu
    if not config.use_dynamic_bsz:
        assert config.ppo_micro_batch_size_per_gpu is not None
        size = config.ppo_micro_batch_size_per_gpu * max(lengths[row] for row in rows)
    return whole_groups(groups.tolist(), rows, lengths, PORTION * size)


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
