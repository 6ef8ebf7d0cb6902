"""How much goes through the model at a time on CUDA: measured, not guessed.

Two small micro-batches through forward and backward tell what a token costs in memory. From that and the free
memory follow the tokens of a micro-batch and whether activations have to be computed again, where the
configuration leaves both open.
"""

from dataclasses import dataclass, replace

import torch

from archer.config.actor import ActorConfig
from archer.data.prompts import Prompt
from archer.generation.batch import Responses, micro_batch
from archer.generation.config import ModelConfig
from archer.generation.model import set_gradient_checkpointing
from archer.generation.policy import Policy

PROBE = 2048  # tokens of the smaller trial
ENOUGH = 16384  # tokens that keep a GPU busy: with room for so many, nothing is computed again
MOST = 32768  # more tokens make nothing faster
SHARE = 0.6  # of the free memory that activations may take; influence and fragments take from the rest
STATE_BYTES = 12  # for each trained parameter: its gradient and AdamW's two moments, in float32


@dataclass(frozen=True)
class MicroBatchSizes:
    """What was chosen, and how to say it."""

    tokens: int  # of a micro-batch
    checkpointing: bool
    bytes_per_token: int

    def __str__(self) -> str:
        again = "activations computed again in the backward" if self.checkpointing else "activations kept"
        return f"micro-batches of {self.tokens:,} tokens, {again}"


def choose_sizes(
    policy: Policy, model: ModelConfig, actor: ActorConfig, longest: int
) -> MicroBatchSizes | None:
    """Choose what the configuration leaves open; None where there is nothing to choose.

    longest: tokens of the longest sequence, which goes through the model whole. Leaves the model with the
    chosen checkpointing.
    """
    given = actor.ppo_max_token_len_per_gpu or 0
    by_rows = not actor.use_dynamic_bsz
    checkpointing = model.enable_gradient_checkpointing
    if policy.compute.device.type != "cuda" or (checkpointing != "auto" and (given or by_rows)):
        return None
    wanted = given or ENOUGH
    if by_rows:
        wanted = longest * (actor.ppo_micro_batch_size_per_gpu or 1)
    if checkpointing == "auto":
        set_gradient_checkpointing(policy.model, False)
    cost = token_bytes(policy, longest)
    fits = tokens_that_fit(policy, cost)
    if checkpointing == "auto" and fits < max(wanted, longest):
        set_gradient_checkpointing(policy.model, True)
        cost = token_bytes(policy, longest)
        fits = tokens_that_fit(policy, cost)
    on = bool(policy.model.is_gradient_checkpointing)
    return MicroBatchSizes(given or max(longest, min(MOST, fits)), on, cost)


def with_sizes(actor: ActorConfig, sizes: MicroBatchSizes | None) -> ActorConfig:
    """Put the chosen number of tokens in the place of an open one."""
    if sizes is None or not actor.use_dynamic_bsz:
        return actor
    return replace(actor, ppo_max_token_len_per_gpu=sizes.tokens)


def tokens_that_fit(policy: Policy, cost: int) -> int:
    """Tokens whose activations fit beside gradients and optimizer, which are not there yet."""
    device = policy.compute.device
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + cached
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    return int(SHARE * max(0, free - STATE_BYTES * trained)) // max(1, cost)


def token_bytes(policy: Policy, longest: int) -> int:
    """Memory of one more token at the peak of forward and backward, from two trials of different size."""
    first, second = (_peak(policy, tokens, longest) for tokens in (PROBE, 2 * PROBE))
    return max(1, (second - first) // PROBE)


def _peak(policy: Policy, tokens: int, longest: int) -> int:
    """Bytes that a micro-batch of about so many tokens takes at most, beyond what is there before it."""
    length = max(2, min(longest, tokens))
    rows = max(1, tokens // length)
    prompt = Prompt(0, (), (0,), "", None, {})  # one token: the head then runs at nearly all positions
    shape = (rows, length - 1)
    responses = Responses(
        prompts=(prompt,) * rows,
        tokens=torch.zeros(shape, dtype=torch.long),
        mask=torch.ones(shape, dtype=torch.bool),
        log_probs=torch.zeros(shape),
        finished=torch.ones(rows, dtype=torch.bool),
    )
    device = policy.compute.device
    batch = micro_batch(responses, range(rows), device, policy.packs)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    policy.token_stats(batch).log_probs.sum().backward()
    policy.model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated(device) - before
