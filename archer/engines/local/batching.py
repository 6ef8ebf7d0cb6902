"""How the rows of a step are divided: mini-batches, portions of whole groups, micro-batches."""

from collections.abc import Iterator

import torch
from torch import Tensor

from archer.config.actor import ActorConfig
from archer.generation.batch import Responses, split_by_rows, split_by_tokens, total_lengths
from archer.generation.sampling import stream
from archer.training.portions import portion_tokens, token_budget, whole_groups


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


def portions(responses: Responses, groups: Tensor, rows: list[int], config: ActorConfig) -> list[list[int]]:
    """Divide a mini-batch into whole groups of about `PORTION` micro-batches."""
    lengths = total_lengths(responses)
    most = portion_tokens(config, max(lengths[row] for row in rows))
    return whole_groups(groups.tolist(), rows, lengths, most)


def filled_up(
    rows: list[int], others: list[int], responses: Responses, budget: int
) -> tuple[list[int], list[int]]:
    """Add other rows as long as no more micro-batches of `budget` tokens are needed; returns both lists."""
    lengths = total_lengths(responses)
    held = sum(lengths[row] for row in rows)
    room = -held % budget
    added: list[int] = []
    for row in others:
        if lengths[row] <= room:
            added.append(row)
            room -= lengths[row]
    taken = set(added)
    return rows + added, [row for row in others if row not in taken]


def micro_batches(
    responses: Responses, rows: list[int], config: ActorConfig, packed: bool = False
) -> list[list[int]]:
    """Divide a mini-batch by token budget, padding counted unless rows are `packed`, or by row count."""
    if not config.use_dynamic_bsz:
        assert config.ppo_micro_batch_size_per_gpu is not None
        return split_by_rows(rows, config.ppo_micro_batch_size_per_gpu)
    return split_by_tokens(total_lengths(responses), rows, token_budget(config), packed)


def group_batches(
    responses: Responses, groups: Tensor, rows: list[int], config: ActorConfig, packed: bool
) -> list[list[int]]:
    """Divide rows into micro-batches of whole groups; a group that is larger than the budget goes alone."""
    lengths = total_lengths(responses)
    if not packed and rows:
        lengths = [max(lengths[row] for row in rows)] * len(lengths)  # padding counts
    number = groups.tolist()
    ordered = sorted(rows, key=lambda row: (number[row], row))
    return whole_groups(number, ordered, lengths, token_budget(config)) if rows else []
