"""Sampling of responses with the model itself.

On CUDA the decoder of `decoder.py` does it, where the model's attention can be packed. Elsewhere a prompt is
read once, its cache is shared out to the n responses of its group, and rows that have ended leave the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from archer.data.prompts import Prompt
from archer.errors import ArcherError
from archer.generation.batch import Responses, RolloutLimits, concatenate
from archer.generation.cache import growing_cache
from archer.generation.decoder import Decoder
from archer.generation.device import Compute
from archer.generation.model import SamplingWeights
from archer.generation.packed import NAME, has_experts
from archer.generation.sampling import Draws, SampleStreams, SamplingParams, sample_tokens

COMPACT_SHARE = 0.75  # drop ended rows once fewer than this share of the batch is still going


class Sampler(Protocol):
    """Prompts in, responses with log-probs out: what training and evaluation ask of a backend."""

    def generate(
        self, prompts: Sequence[Prompt], n: int, params: SamplingParams, streams: SampleStreams
    ) -> Responses:
        """Return n responses per prompt, those of a prompt in consecutive rows."""
        ...

    def rest(self) -> None:
        """Give back what memory can be had again, until the next responses are wanted."""
        ...

    def refresh(self) -> None:
        """Take over the policy's current weights."""
        ...


class Rollout:
    """Draws responses from the current weights of a model."""

    def __init__(
        self,
        weights: SamplingWeights,
        compute: Compute,
        limits: RolloutLimits,
        stop_ids: Sequence[int],
        pad_id: int,
        graphs: bool = True,
    ) -> None:
        self.weights = weights
        self.compute = compute
        self.limits = limits
        self.pad_id = pad_id
        self.stop_ids = torch.tensor(stop_ids, device=compute.device)
        self._decoder = None
        if weights.model.config._attn_implementation == NAME and limits.max_prompt_length:
            graphs = graphs and not has_experts(self.model)
            self._decoder = Decoder(self.model, limits, self.stop_ids, pad_id, graphs)

    @property
    def model(self) -> PreTrainedModel:
        """The model that samples."""
        return self.weights.model

    def rest(self) -> None:
        """Nothing is given back: the decoder's graphs know where their memory is."""

    def refresh(self) -> None:
        """Take over the policy's current weights."""
        self.weights.refresh()

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], n: int, params: SamplingParams, streams: SampleStreams
    ) -> Responses:
        """Return n responses per prompt; the responses of a prompt are consecutive rows.

        Every response draws from a stream of its own: `max_num_seqs` and the company of other prompts change
        its tokens no more than their rounding of the logits does.
        """
        training = self.model.training
        self.model.eval()  # in training mode gradient checkpointing would switch the cache off
        if self._decoder is not None:
            responses = self._decoder.generate(prompts, n, params, streams)
        else:
            responses = self._in_batches(prompts, n, params, streams)
        self.model.train(training)
        _refuse_not_finite(responses)
        return replace(responses, seeds=streams.seeds(len(prompts), n))

    def _in_batches(
        self, prompts: Sequence[Prompt], n: int, params: SamplingParams, streams: SampleStreams
    ) -> Responses:
        n_at_once = min(n, self.limits.max_num_seqs)
        groups_at_once = self.limits.max_num_seqs // n_at_once  # 1 where a group has to be divided
        parts = []
        for start in range(0, len(prompts), groups_at_once):
            some = prompts[start : start + groups_at_once]
            for done in range(0, n, n_at_once):
                count = min(n_at_once, n - done)
                number = torch.arange(len(some) * count, device=self.compute.device)
                draws = streams.draws(number // count + start, number % count + done)
                parts.append(self._generate(some, count, params, draws))
        return concatenate(parts)

    def _generate(self, prompts: Sequence[Prompt], n: int, params: SamplingParams, draws: Draws) -> Responses:
        with self.compute.autocast():
            state = self._prefill(prompts, n)
            out = _Transcript(
                len(prompts) * n, self.limits.max_response_length, self.pad_id, self.compute.device
            )
            while True:
                uniform = draws.at(out.length, state.rows)
                tokens, log_probs = sample_tokens(state.logits, params, uniform)
                ended = torch.isin(tokens, self.stop_ids) | ~log_probs.isfinite()
                out.append(state.rows, tokens, log_probs, ended)
                if out.full or bool((out.ended[state.rows]).all()):
                    break
                state = self._decode(state, tokens, out)
        return out.responses(tuple(prompt for prompt in prompts for _ in range(n)))

    def _prefill(self, prompts: Sequence[Prompt], n: int) -> "_State":
        """Read every prompt once (left-padded), then repeat its cache for the n responses of the group."""
        device = self.compute.device
        lengths = torch.tensor([len(prompt.token_ids) for prompt in prompts], device=device)
        longest = int(lengths.max())
        ids = torch.full((len(prompts), longest), self.pad_id, device=device)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids, device=device)
        real = torch.arange(longest, device=device) >= (longest - lengths)[:, None]  # [P, S]
        padded = not bool(real.all())
        cache = growing_cache(self.model.config)
        output = self.model(
            input_ids=ids,
            attention_mask=real.long() if padded else None,
            position_ids=(real.cumsum(-1) - 1).clamp(min=0) if padded else None,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_repeat_interleave(n)
        return _State(
            rows=torch.arange(len(prompts) * n, device=device),
            logits=output.logits[:, -1].repeat_interleave(n, 0),
            positions=lengths.repeat_interleave(n),
            real=real.repeat_interleave(n, 0) if padded else None,
            cache=cache,
        )

    def _decode(self, state: "_State", tokens: Tensor, out: "_Transcript") -> "_State":
        """Feed the sampled tokens and return the state that emits the next ones."""
        state, tokens = _compact(state, tokens, out.ended)
        real = state.real
        if real is not None:
            real = torch.cat([real, real.new_ones(len(real), 1)], dim=1)
        output = self.model(
            input_ids=tokens[:, None],
            attention_mask=real.long() if real is not None else None,
            position_ids=state.positions[:, None],
            past_key_values=state.cache,
            use_cache=True,
        )
        return _State(state.rows, output.logits[:, -1], state.positions + 1, real, state.cache)


@dataclass(frozen=True)
class _State:
    """What decoding continues from: one line per row still in the batch."""

    rows: Tensor  # [B] which response each line belongs to
    logits: Tensor  # [B, V] of the next token
    positions: Tensor  # [B] position of the next token
    real: Tensor | None  # [B, S] False at left padding; None: nothing is padded
    cache: DynamicCache


def _compact(state: _State, tokens: Tensor, ended: Tensor) -> tuple[_State, Tensor]:
    """Remove the lines whose response has ended, once enough of them have."""
    going = ~ended[state.rows]
    if int(going.sum()) > COMPACT_SHARE * len(going):
        return state, tokens
    keep = going.nonzero()[:, 0]
    state.cache.batch_select_indices(keep)
    compacted = _State(
        rows=state.rows[keep],
        logits=state.logits[keep],
        positions=state.positions[keep],
        real=None if state.real is None else state.real[keep],
        cache=state.cache,
    )
    return compacted, tokens[keep]


def _refuse_not_finite(responses: Responses) -> None:
    """Stop where the model gave logits to which no distribution belongs; such rows ended with that token."""
    bad = ~responses.log_probs.isfinite()
    if not bool(bad.any()):
        return
    row, position = bad.nonzero()[0].tolist()
    raise ArcherError(
        f"The model's logits are not finite (NaN or infinite) in {int(bad.any(-1).sum())} of "
        f"{len(responses)} responses, first at token {position + 1} of a response to prompt "
        f"{responses.prompts[row].index + 1}: its weights have diverged, or are damaged. If it trained "
        "before this, run from an earlier checkpoint with a lower actor_rollout_ref.actor.optim.lr or "
        "actor_rollout_ref.actor.grad_clip; if not, check actor_rollout_ref.model.path and engine.dtype."
    )


class _Transcript:
    """The tokens sampled so far, one row per response."""

    def __init__(self, rows: int, limit: int, pad_id: int, device: torch.device) -> None:
        self.tokens = torch.full((rows, limit), pad_id, device=device)
        self.log_probs = torch.zeros(rows, limit, device=device)
        self.mask = torch.zeros(rows, limit, dtype=torch.bool, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.length = 0

    @property
    def full(self) -> bool:
        return self.length == self.tokens.shape[1]

    def append(self, rows: Tensor, tokens: Tensor, log_probs: Tensor, ended: Tensor) -> None:
        """Add one token to the given rows; rows that had ended before ignore it."""
        going = ~self.ended[rows]
        here = rows[going]
        self.tokens[here, self.length] = tokens[going]
        self.log_probs[here, self.length] = log_probs[going]
        self.mask[here, self.length] = True
        self.ended[here] = ended[going]
        self.length += 1

    def responses(self, prompts: tuple[Prompt, ...]) -> Responses:
        """Return everything sampled, cut to the longest response, on the CPU."""
        longest = self.length
        return Responses(
            prompts=prompts,
            tokens=self.tokens[:, :longest].cpu(),
            mask=self.mask[:, :longest].cpu(),
            log_probs=self.log_probs[:, :longest].cpu(),
            finished=self.ended.cpu(),
        )
