"""Which tokens of a response to the built-in task are its first mistake."""

from collections.abc import Sequence

import torch
from torch import Tensor

from archer.data.arithmetic import first_mistake
from archer.data.prompts import Prompt
from archer.trace.vocab import DecodedText, Vocab


def mistaken_tokens(prompt: Prompt, decoded: DecodedText, length: int) -> frozenset[int]:
    """Tokens that hold the first wrong characters; the last of all when the response stops too early.

    length: tokens of the response, those that are no text included
    """
    mistake = first_mistake(prompt.extra_info["a"], prompt.extra_info["b"], decoded.text)
    if mistake is None:
        return frozenset()
    if mistake.start == len(decoded.text):
        return frozenset({length - 1})
    return touched(decoded, mistake.start, mistake.end)


def touched(decoded: DecodedText, begin: int, end: int) -> frozenset[int]:
    """Tokens that hold some of the characters begin..end."""
    spans = zip(decoded.starts.tolist(), decoded.ends.tolist(), strict=True)
    return frozenset(token for token, (start, stop) in enumerate(spans) if start < end and stop > begin)


def first_mistakes(
    prompts: Sequence[Prompt],  # N
    tokens: Tensor,  # [N, L]
    mask: Tensor,  # [N, L] bool
    finished: Tensor,  # [N] bool: the last token is the end mark, no text
    vocab: Vocab,
) -> Tensor:  # [N, L] bool
    """Mark the first wrong token of each response that has one."""
    marks = torch.zeros_like(mask)
    for row, prompt in enumerate(prompts):
        ids = tokens[row][mask[row]].tolist()
        decoded = vocab.decode(ids[:-1] if finished[row] else ids)
        wrong = mistaken_tokens(prompt, decoded, len(ids))
        if wrong:
            marks[row, min(wrong)] = True
    return marks
