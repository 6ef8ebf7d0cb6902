"""Choosing the next token: temperature, top-k, top-p, and the random numbers that decide.

Every response has a random stream of its own, named by (seed, purpose, step, prompt, sample). Its number at a
position is a hash of name and position, not the next one of a generator: what is drawn for a response does
not depend on which others are decoded beside it, in what order, or on which device.
"""

import hashlib
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How responses are drawn. `do_sample=False` takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    do_sample: bool = True


def sample_tokens(
    logits: Tensor,  # [B, V]
    params: SamplingParams,
    uniform: Tensor,  # [B] float64 in [0, 1)
) -> tuple[Tensor, Tensor]:  # [B] token ids, [B] log-probs
    """Draw one token per row and return it with its log-probability.

    The log-probability is that of the full distribution at the temperature, log softmax(logits / T),
    before top-k and top-p cut it: the same quantity the training forward computes. It is finite but for rows
    whose logits are not (NaN, or infinite), which have no distribution to draw from.
    """
    scaled = logits.float() / params.temperature
    log_probs = scaled.log_softmax(-1)
    if params.do_sample:
        kept = truncate(log_probs, params.top_k, params.top_p)
        tokens = draw(kept, uniform)
    else:
        tokens = log_probs.argmax(-1)
    return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]


def draw(
    log_probs: Tensor,  # [B, V], need not be normalised
    uniform: Tensor,  # [B] float64 in [0, 1)
) -> Tensor:  # [B]
    """Draw one token per row by inverting its distribution function: the first with F(token) > u F(last).

    One uniform number a row instead of noise for every token of the vocabulary, which took longer than the
    rest of the draw; in float64, so that no token of a large vocabulary is lost to rounding. A token of
    probability 0 adds nothing to F and is never first. A row of NaN gives some token: an index past the end
    would abort the whole process on CUDA.
    """
    distribution = log_probs.double().exp_().cumsum_(-1)
    total = distribution[:, -1:]
    u = _below(uniform[:, None] * total, total)
    return torch.searchsorted(distribution, u, right=True)[:, 0].clamp_(max=log_probs.shape[-1] - 1)


BLOCK = 128  # tokens of the vocabulary that are summed before they are searched


def sample_by_blocks(
    logits: Tensor,  # [B, V]
    params: SamplingParams,
    uniform: Tensor,  # [B] float64 in [0, 1)
) -> tuple[Tensor, Tensor]:  # [B] token ids, [B] log-probs
    """As `sample_tokens`, in few passes over the logits and without asking the device anything.

    The distribution function is inverted in two steps: over the sums of blocks of the vocabulary, then inside
    the block that was hit. What top-k or top-p cut takes the long way.
    """
    if not params.do_sample or params.top_p < 1 or 0 < params.top_k < logits.shape[-1]:
        return sample_tokens(logits, params, uniform)
    missing = -logits.shape[-1] % BLOCK
    if missing:
        logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    blocks = logits.view(len(logits), -1, BLOCK)  # [B, C, BLOCK]
    z = blocks.float() / params.temperature
    largest = z.amax((1, 2), keepdim=True)  # [B, 1, 1]
    ends = z.sub_(largest).exp_().sum(-1).double().cumsum(-1)  # [B, C] distribution function at block ends
    total = ends[:, -1:]
    u = _below(uniform[:, None] * total, total)
    block = torch.searchsorted(ends, u, right=True).clamp_(max=ends.shape[1] - 1)  # [B, 1]
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = z.gather(1, block[..., None].expand(-1, 1, BLOCK))[:, 0].double().cumsum(-1)  # [B, BLOCK]
    place = torch.searchsorted(inside, _below(u - before, inside[:, -1:]).clamp(min=0), right=True)
    tokens = (block * BLOCK + place.clamp_(max=BLOCK - 1)).clamp_(max=logits.shape[-1] - missing - 1)
    chosen = logits.gather(1, tokens).float() / params.temperature
    log_probs = chosen - largest[:, 0] - total.log()
    return tokens[:, 0], log_probs[:, 0].float()


def _below(u: Tensor, total: Tensor) -> Tensor:
    """u, or the largest number below the total where rounding has taken it there."""
    return torch.minimum(u, total.nextafter(torch.zeros_like(total)))


def truncate(
    log_probs: Tensor,  # [B, V]
    top_k: int,
    top_p: float,
) -> Tensor:  # [B, V]
    """Set to -inf what top-k and top-p leave out.

    top-k keeps the k likeliest tokens and those that tie with the k-th. top-p then keeps the smallest set of
    likeliest tokens whose (renormalised) probability reaches p; the likeliest token always stays.
    """
    vocabulary = log_probs.shape[-1]
    if 0 < top_k < vocabulary:
        smallest_kept = log_probs.topk(top_k, dim=-1).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < smallest_kept, -torch.inf)
    if top_p < 1.0:
        ordered, order = log_probs.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs  # probability of all likelier tokens
        cut = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, order, before >= top_p)
        log_probs = log_probs.masked_fill(cut, -torch.inf)
    return log_probs


@dataclass(frozen=True)
class SampleStreams:
    """The random streams of one batch of responses; `seed` is `stream_seed` of (seed, purpose, step)."""

    seed: int
    first_prompt: int = 0  # number of the batch's first prompt among all that share the seed

    @classmethod
    def named(cls, *name: int | str, first_prompt: int = 0) -> "SampleStreams":
        """Return the streams of e.g. (seed, "rollout", step)."""
        return cls(stream_seed(*name), first_prompt)

    def draws(self, prompts: Tensor, samples: Tensor) -> "Draws":
        """Return the numbers of some responses: [N] place of its prompt in the batch, [N] which sample of it.

        Prompt and sample are hashed one after the other: sample 3 of prompt 5 is the same whatever n is.
        """
        names = _mixed(_mixed((prompts + self.first_prompt) * _STEP + self.seed) + (samples + 1) * _STEP)
        return Draws(names)

    def seeds(self, prompts: int, n: int) -> Tensor:
        """Return the names of the streams of n responses to each of so many prompts: [prompts * n] int64."""
        number = torch.arange(prompts * n)
        return self.draws(number // n, number % n).names


class Draws:
    """Uniform numbers of N responses by position, hashed for a block of positions at a time."""

    BLOCK = 64

    def __init__(self, names: Tensor) -> None:
        self.names = names  # [N] int64
        self._block = names.new_empty(0, 0, dtype=torch.float64)

    def at(self, position: int, rows: Tensor) -> Tensor:
        """Return the numbers of the given rows at a position of the response: [B] float64 in [0, 1)."""
        place = position % self.BLOCK
        if place == 0 or self._block.numel() == 0:
            first = position - place + 1
            positions = torch.arange(first, first + self.BLOCK, device=self.names.device)
            self._block = uniform(self.names[:, None] + positions * _STEP)
        return self._block[rows, place]


def uniform_at(names: Tensor, positions: Tensor) -> Tensor:
    """The numbers of responses at positions of their own: [B] float64, as `Draws.at` gives them."""
    return uniform(names + (positions + 1) * _STEP)


_STEP = 0x9E3779B97F4A7C15 - 2**64  # 2^64 / golden ratio, odd: its multiples are spread over all of int64


def uniform(counters: Tensor) -> Tensor:
    """Return float64 in [0, 1), the top 53 bits of a hash of each int64; the same on every device."""
    return ((_mixed(counters) >> 11) & (2**53 - 1)).double() * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of int64 whose every output bit depends on every input bit.

    Products wrap around; `>>` of torch keeps the sign, so the bits that it fills in are masked off.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)):
        x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * factor
    return x ^ ((x >> 31) & (2**33 - 1))


def stream(device: torch.device, *name: int | str) -> torch.Generator:
    """Return a generator whose seed is a hash of `name`, e.g. (seed, "rollout", step, batch)."""
    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(*name))
    return generator


def seed_everything(seed: int, step: int) -> None:
    """Seed the global generators of torch, NumPy and Python for one step.

    Nothing of Archer's draws from them, but a model or a user's function may; named by seed and step they
    give the same numbers whatever ran before, and after a resume.
    """
    value = stream_seed(seed, "global", step)
    torch.manual_seed(value)  # of every device
    np.random.seed(value % 2**32)
    random.seed(value)


def stream_seed(*name: int | str) -> int:
    """Return a 63-bit seed that depends on every part of `name` and on nothing else."""
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
