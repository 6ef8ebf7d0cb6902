"""Log-probabilities and entropies at the output head, without ever holding all logits in float32.

The head (hidden size x vocabulary) runs a chunk of tokens at a time in the format of the products. Of a
chunk's logits only two passes are made: one for the statistics of each token, one, in the backward, that
turns the logits into their gradient. Chunks that fit are kept for the backward, others computed again.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from archer.influence.head import HeadSketch

CHUNK_ELEMENTS = 2**27  # logits of a chunk on a CPU: 512 MiB of float32
CUDA_CHUNK_ELEMENTS = 2**29  # on CUDA, 1 GiB of bfloat16: large products, and no float32 copy
KEPT_BYTES = 2**26  # logits of a micro-batch that are kept for its backward
CUDA_KEPT_SHARE = 0.03  # on CUDA a share of the device's memory


def token_log_probs(
    logits: Tensor,  # [T, V]
    tokens: Tensor,  # [T]
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:  # [T], [T], [T, V]
    """Return log pi(token) = z_a - logsumexp(z), the logsumexp, and z = logits / temperature, in float32."""
    z = logits.float()
    if temperature != 1:
        z = z / temperature
    normaliser = z.logsumexp(-1)
    return z.gather(-1, tokens[:, None])[:, 0] - normaliser, normaliser, z


def token_statistics(
    logits: Tensor,  # [T, V]
    tokens: Tensor,  # [T]
    temperature: float,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:  # [T], [T]
    """Return log pi(token) and the entropy of pi = softmax(logits / temperature), in float32.

    log pi(a) = z_a - logsumexp(z),   H = -sum_v pi_v log pi_v,   z = logits / temperature.

    Every term of H is at least 0 but for rounding, and their sum never below: written as logsumexp(z) -
    sum_v pi_v z_v it would be the difference of two large numbers.
    """
    log_probs, normaliser, z = token_log_probs(logits, tokens, temperature)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
        entropy = _entropy(z, normaliser)
    return log_probs, entropy


def entropy_of(logits: Tensor) -> Tensor:  # [T, V] -> [T]
    """The entropy of softmax(logits) in nats, in float32 or wider, never below 0."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return _entropy(z, z.logsumexp(-1))


def _entropy(z: Tensor, normaliser: Tensor) -> Tensor:
    surprise = normaliser[:, None] - z
    probs = (-surprise).exp()
    # A logit of -inf has probability 0 and adds nothing, but 0 * inf would be NaN.
    return (probs * surprise.masked_fill(probs == 0, 0.0)).sum(-1).clamp(min=0)


def _summary(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(log pi(token), entropy, logsumexp), each [T]."""
    log_probs, normaliser, z = token_log_probs(logits, tokens, temperature)
    return log_probs, _entropy(z, normaliser), normaliser


def _probabilities(logits: Tensor, normaliser: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in the format of the logits. [T, V], [T] -> [T, V]."""
    return (logits.float() / temperature - normaliser[:, None]).exp().to(logits.dtype)


def _logits_gradient(
    logits: Tensor,  # [T, V]
    tokens: Tensor,  # [T]
    normaliser: Tensor,  # [T]
    gradient: Tensor,  # [T] of log pi(token)
    temperature: float,
) -> Tensor:  # [T, V]
    """d log pi(a) / d logits = (1[v = a] - pi_v) / temperature, times the gradient of each token."""
    probs = (logits.float() / temperature - normaliser[:, None]).exp()
    chosen = torch.arange(logits.shape[-1], device=logits.device) == tokens[:, None]
    return ((chosen.float() - probs) * (gradient / temperature)[:, None]).to(logits.dtype)


@functools.cache
def kept_bytes(device: torch.device) -> int:
    """How large the logits of a micro-batch may be to be kept from the forward to the backward."""
    if device.type != "cuda":
        return KEPT_BYTES
    return int(CUDA_KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory)


@functools.cache
def _on(device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or on CUDA one kernel for all of it: otherwise each step of it is a pass."""
    if device != "cuda":
        return function
    compiled = torch.compile(function)

    def call(logits: Tensor, *others: Any) -> Any:
        for given in (logits, *others):
            if isinstance(given, Tensor):
                torch._dynamo.maybe_mark_dynamic(given, 0)  # one kernel for any number of tokens
        return compiled(logits, *others)

    return call


class _Head(torch.autograd.Function):
    """Log-probs (with a gradient) and entropies (without) of tokens, from hidden states and head weights."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [T, h]
        weight: Tensor,  # [V, h]
        bias: Tensor | None,  # [V]
        tokens: Tensor,  # [T]
        temperature: float,
        dtype: torch.dtype,
        sketch: HeadSketch | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # [T], [T], [T, k_out]
        kind = hidden.device.type
        elements = CUDA_CHUNK_ELEMENTS if kind == "cuda" else CHUNK_ELEMENTS
        size = max(1, elements // weight.shape[0])
        narrow, h = weight.to(dtype), hidden.to(dtype)
        b = None if bias is None else bias.to(dtype)
        logits_bytes = len(h) * weight.shape[0] * dtype.itemsize
        keeps = any(ctx.needs_input_grad) and logits_bytes <= kept_bytes(h.device)
        parts, kept, pulls = [], [], []
        with torch.autocast(kind, enabled=False):
            for some, chosen in zip(h.split(size), tokens.split(size), strict=True):
                logits = F.linear(some, narrow, b)
                parts.append(_on(kind, _summary)(logits, chosen, temperature))
                if sketch is not None:
                    probs = _on(kind, _probabilities)(logits, parts[-1][2], temperature)
                    pulls.append(sketch.output_factors(probs, chosen, temperature))
                if keeps:
                    kept.append(logits)
        log_probs, entropy, normaliser = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(h, weight, bias, tokens, normaliser)
        ctx.kept, ctx.size, ctx.temperature = kept, size, temperature
        ctx.wide = hidden.dtype
        u = torch.cat(pulls) if pulls else None
        ctx.mark_non_differentiable(entropy, *([] if u is None else [u]))
        return log_probs, entropy, u

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        h, weight, bias, tokens, normaliser = ctx.saved_tensors
        if not any(ctx.needs_input_grad):
            return None, None, None, None, None, None, None
        kind, dtype = h.device.type, h.dtype
        narrow = weight.to(dtype)
        b = None if bias is None else bias.to(dtype)
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        into_hidden = []
        pieces = [x.split(ctx.size) for x in (h, tokens, normaliser, gradient)]
        with torch.autocast(kind, enabled=False):
            for number, (some, chosen, normal, g) in enumerate(zip(*pieces, strict=True)):
                logits = ctx.kept[number] if ctx.kept else None
                if logits is None:  # not kept, or used by a backward before this one
                    logits = F.linear(some, narrow, b)
                else:
                    ctx.kept[number] = None
                d = _on(kind, _logits_gradient)(logits, chosen, normal, g, ctx.temperature)
                del logits
                into_hidden.append(d @ narrow)
                if weight_grad is not None:
                    _add_product(weight_grad, d, some)
                if bias_grad is not None:
                    bias_grad += d.sum(0, dtype=bias_grad.dtype)
        hidden_grad = torch.cat(into_hidden).to(ctx.wide)
        return hidden_grad, weight_grad, bias_grad, None, None, None, None


def _add_product(total: Tensor, d: Tensor, h: Tensor) -> None:
    """total += d^T h; sums of 16-bit products are float32 all the way."""
    if d.dtype == total.dtype:
        total.addmm_(d.T, h)
    elif d.is_cuda and total.dtype == torch.float32:
        total += torch.mm(d.T, h, out_dtype=torch.float32)
    else:
        total += d.T.to(total.dtype) @ h.to(total.dtype)


def head_statistics(
    head: torch.nn.Linear,
    hidden: Tensor,  # [T, h] where tokens are emitted
    tokens: Tensor,  # [T]
    temperature: float,
    sketch: HeadSketch | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # [T], [T], [T, k_out]
    """Log-probs and entropies of tokens, as `token_statistics(head(hidden), ...)`; entropy has no gradient.

    Under autocast the products are in its format. With a sketch, the output factors of the head's influence
    come out of the same logits.
    """
    kind = hidden.device.type
    narrow = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if narrow else torch.promote_types(hidden.dtype, head.weight.dtype)
    return _Head.apply(hidden, head.weight, head.bias, tokens, temperature, dtype, sketch)
