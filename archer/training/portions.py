"""Portions of a mini-batch: whole groups whose token factors are captured, scored and freed together.

Kept for a whole mini-batch of long responses, token factors would outgrow the model itself.
"""

from collections.abc import Hashable, Sequence
from itertools import groupby

from archer.config.actor import DEFAULT_TOKENS, ActorConfig

PORTION = 8  # micro-batches' worth of tokens whose factors are kept at a time, where groups are that small


def token_budget(config: ActorConfig) -> int:
    """Tokens of a micro-batch; the local engine has put a number in the place of `auto` before it asks."""
    return config.ppo_max_token_len_per_gpu or DEFAULT_TOKENS


def portion_tokens(config: ActorConfig, longest: int) -> int:
    """Tokens of `PORTION` micro-batches; `longest` is the length of the longest row."""
    if config.use_dynamic_bsz:
        return PORTION * token_budget(config)
    assert config.ppo_micro_batch_size_per_gpu is not None
    return PORTION * config.ppo_micro_batch_size_per_gpu * longest


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
