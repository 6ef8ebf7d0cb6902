"""Log-probabilities and entropies of response tokens under a model.

The head (hidden size x vocabulary) runs only at the positions that emit response tokens, a chunk of tokens at
a time (`generation/head.py`): the [tokens, vocabulary] matrix of logits never exists as a whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from archer.generation.batch import MicroBatch, Responses, micro_batch, split_by_tokens, total_lengths
from archer.generation.device import Compute
from archer.generation.head import CHUNK_ELEMENTS, head_statistics, token_statistics
from archer.generation.packed import is_packed
from archer.influence.head import HeadSketch
from archer.influence.logits import LogitMap


@dataclass(frozen=True)
class HeadFactors:
    """Factors of each token's gradient ∇log π with respect to the head's weight, zero outside the mask."""

    u: Tensor  # [n, L, k_out]
    v: Tensor  # [n, L, k_in]


@dataclass(frozen=True)
class TokenStats:
    """Per response token: log-probability of the token and entropy of its distribution, in nats."""

    log_probs: Tensor  # [n, L], zero outside the mask
    entropy: Tensor  # [n, L], zero outside the mask
    factors: HeadFactors | None = None  # of the head's influence, where they were asked for

    @classmethod
    def zeros(cls, shape: torch.Size) -> "TokenStats":
        """Return a place to gather those of a whole step, [N, L] on the CPU."""
        return cls(torch.zeros(shape), torch.zeros(shape))

    def detached(self) -> "TokenStats":
        """Return the values without the graph they came from."""
        return TokenStats(self.log_probs.detach(), self.entropy.detach())

    def put(self, batch: MicroBatch, stats: "TokenStats") -> None:
        """Fill in the rows of a micro-batch."""
        width = batch.mask.shape[1]
        self.log_probs[batch.rows, :width] = stats.log_probs.float().cpu()
        self.entropy[batch.rows, :width] = stats.entropy.float().cpu()


class Policy:
    """A causal language model seen as a distribution over response tokens at a sampling temperature."""

    def __init__(self, model: PreTrainedModel, compute: Compute, temperature: float) -> None:
        self.model = model
        self.compute = compute
        self.temperature = temperature
        self._plain_head = self._head_is_plain()
        self._logit_map: LogitMap | None = None  # of a head that is not plain, once it was watched

    def run_head_everywhere(self) -> None:
        """Run the head at every position in one piece, for a tracer that reads it like any other module."""
        self._plain_head = False

    @property
    def packs(self) -> bool:
        """Whether micro-batches may come as one line of sequences, without padding."""
        return is_packed(self.model)

    def token_stats(
        self, batch: MicroBatch, entropy_grad: bool = False, sketch: HeadSketch | None = None
    ) -> TokenStats:
        """Run the model on a micro-batch; gradients flow when grad mode is on.

        Entropy carries a gradient only with `entropy_grad` (an entropy bonus in the loss). With a sketch the
        head's factors come along.
        """
        tokens = batch.response_tokens
        u: Tensor | None
        with self.compute.autocast():
            if self._plain_head:
                hidden = self.model.base_model(
                    input_ids=batch.input_ids, use_cache=False, **batch.arguments
                ).last_hidden_state
                emitting = batch.gather(hidden)
                log_probs, entropy, u = self._through_head(emitting, tokens, entropy_grad, sketch)
            else:
                seen: list[Tensor] = []
                with self._watched_head(seen) if sketch is not None else nullcontext():
                    logits = self.model(input_ids=batch.input_ids, use_cache=False, **batch.arguments).logits
                some = batch.gather(logits)
                log_probs, entropy = token_statistics(some, tokens, self.temperature, entropy_grad)
                u = None
                if sketch is not None:
                    emitting, z = batch.gather(seen[0]), some.detach()
                    if self._logit_map is None:
                        self._logit_map = LogitMap.found(self.model, batch.gather(seen[1]), z)
                    probs = (z.float() / self.temperature).softmax(-1)
                    u = sketch.output_factors(probs, tokens, self.temperature, self._logit_map.slope(z))
            factors = None
            if sketch is not None:
                assert u is not None
                v = sketch.input_factors(emitting)
                factors = HeadFactors(batch.scatter(u), batch.scatter(v))
        return TokenStats(batch.scatter(log_probs), batch.scatter(entropy), factors)

    @contextmanager
    def _watched_head(self, seen: list[Tensor]) -> Iterator[None]:
        """Note what the head is given, and what it makes of it until that is known."""
        head, known = self.model.get_output_embeddings(), self._logit_map is not None

        def note(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            seen.extend([given[0].detach()] if known else [given[0].detach(), made.detach()])

        hook = head.register_forward_hook(note)
        try:
            yield
        finally:
            hook.remove()

    def _through_head(
        self, hidden: Tensor, tokens: Tensor, entropy_grad: bool, sketch: HeadSketch | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        head = self.model.get_output_embeddings()
        if not entropy_grad:
            return head_statistics(head, hidden, tokens, self.temperature, sketch)
        u = None
        if sketch is not None:
            with torch.no_grad():
                _, _, u = head_statistics(head, hidden.detach(), tokens, self.temperature, sketch)
        size = max(1, CHUNK_ELEMENTS // head.weight.shape[0])

        def chunk(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            return token_statistics(head(h), t, self.temperature, entropy_grad)

        parts = [
            checkpoint(chunk, h, t, use_reentrant=False)
            for h, t in zip(hidden.split(size), tokens.split(size), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), u

    @torch.no_grad()
    def _head_is_plain(self) -> bool:
        """Whether logits are head(last hidden state) and nothing else, found by watching a forward pass.

        Some architectures scale or cap their logits; for those the model's own forward is used. The
        comparison is exact: a cap is almost invisible where logits are small, and training makes them grow.
        """
        head = self.model.get_output_embeddings()
        if not isinstance(head, nn.Linear) or self.model.base_model is self.model:
            return False
        seen: list[Tensor] = []
        hooks = (
            self.model.base_model.register_forward_hook(
                lambda _, __, out: seen.append(out.last_hidden_state)
            ),
            head.register_forward_hook(lambda _, inputs, out: seen.extend((inputs[0], out))),
        )
        probe = torch.arange(1, 9, device=self.compute.device)[None] % head.weight.shape[0]
        mixed = len({parameter.dtype for parameter in self.model.parameters()}) > 1  # LoRA's frozen layers
        with self.compute.autocast() if mixed else nullcontext():
            logits = self.model(input_ids=probe, use_cache=False).logits
        for hook in hooks:
            hook.remove()
        if len(seen) != 3:
            return False
        hidden, head_input, head_output = seen
        return torch.equal(hidden, head_input) and torch.equal(head_output.float(), logits.float())


@torch.no_grad()
def token_stats_of(policy: Policy, responses: Responses, budget: int) -> TokenStats:
    """Log-probs and entropies of all responses, [N, L] on the CPU, `budget` tokens at a time."""
    result = TokenStats.zeros(responses.mask.shape)
    for rows in split_by_tokens(total_lengths(responses), range(len(responses)), budget, policy.packs):
        batch = micro_batch(responses, rows, policy.compute.device, policy.packs)
        result.put(batch, policy.token_stats(batch))
    return result
