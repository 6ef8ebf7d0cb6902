"""Gradients of the wanted objective, out of the real backward or, where that is impossible, a second one.

Every objective is J = sum_t w_t log pi_t. The gradients of a response come from its own terms only, so when
the wanted weights are a multiple of the real ones within each response, w'_t = c_r w_t with w_t = dL/dlog
pi_t, each captured u of response r only has to be multiplied by c_r. That needs every path from the loss to
the model to lead through the log-probs; an entropy bonus, say, is a second path.

A response with no such multiple, for instance one with advantage 0 and so without any real gradient, has its
terms of J run backward on their own; the others of its micro-batch are still rescaled. Only captured
responses are asked about: one that is not traced never costs a backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from archer.errors import ArcherError
from archer.influence.capture import Capture
from archer.influence.config import OutputFunction
from archer.influence.costs import Counters, Stopwatch
from archer.influence.distributed import Exchange
from archer.influence.factors import send
from archer.influence.layout import Layout


def wanted_weights(
    output_function: OutputFunction, log_probs: Tensor, advantages: Tensor | None, rewards: Tensor | None
) -> Tensor:
    """w'_t of the objective, shaped like log_probs; `advantages` and `rewards` may be broadcast ([N, 1])."""
    if output_function == "log_prob":
        return torch.ones_like(log_probs, requires_grad=False)
    given = {"log_prob_advantage": ("advantages", advantages), "log_prob_reward": ("rewards", rewards)}
    name, values = given[output_function]
    if values is None:
        raise ArcherError(f"output_function={output_function} needs {name}: pass {name}=... to tracer.watch")
    return values.detach().to(log_probs).expand_as(log_probs)


def response_multiples(
    real: Tensor, wanted: Tensor, row: Tensor, rows: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """(c [rows], bool [rows]): wanted = c_r * real inside a response, and whether that holds.

    c_r is the least-squares multiple <w', w> / <w, w>; it holds when |w'_t - c_r w_t| <= tolerance * max_t
    |w'_t|. A response whose real weights are all zero has a multiple only if the wanted ones are zero, too.
    Nothing is asked of a device here.

    Args:
        real: [n] dL/dlog pi_t.
        wanted: [n] the objective's weights.
        row: int64 [n] response of each token, numbered from 0 without gaps.
        rows: how many responses there are.
        tolerance: largest relative deviation; 0 accepts nothing.
    """
    real, wanted = real.double(), wanted.double()
    dot = real.new_zeros(rows).index_add_(0, row, real * wanted)
    square = real.new_zeros(rows).index_add_(0, row, real * real)
    multiple = torch.where(square > 0, dot / square.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    deviation = (wanted - multiple[row] * real).abs()
    largest = real.new_zeros(rows).scatter_reduce_(0, row, wanted.abs(), "amax")
    allowed = deviation <= tolerance * largest[row]
    broken = real.new_zeros(rows).index_add_(0, row, (~allowed).to(real))  # NaN is not allowed either
    return multiple, (broken == 0) & (tolerance > 0)


def leads_only_through(loss: Tensor, log_probs: Tensor) -> bool:
    """Whether every path from the loss to a trainable tensor passes through `log_probs`.

    Walks the autograd graph down from the loss and stops at the log-probs; meeting a leaf means another path.
    Where there is no other path the walk sees only the few nodes of the loss itself.
    """
    goal = (log_probs.grad_fn, log_probs.output_nr)
    stack, seen = [(loss.grad_fn, loss.output_nr)], set()
    while stack:
        edge = stack.pop()
        node = edge[0]
        if node is None or edge == goal or edge in seen:
            continue
        seen.add(edge)
        if hasattr(node, "variable"):
            return False
        stack.extend(node.next_functions)
    return True


class Objective:
    """The wanted objective of one capture: how its gradients are obtained, and each token's multiple."""

    def __init__(
        self, log_probs: Tensor, layout: Layout, wanted: Tensor, capture: Capture, tolerance: float
    ) -> None:
        if log_probs.numel() != layout.size:
            raise ArcherError(
                f"{log_probs.numel()} log-probs, but their layout describes {layout.size}; for a [N, width] "
                "tensor of response tokens that is Layout.responses(rows, response_lengths, width)"
            )
        if not log_probs.requires_grad:
            raise ArcherError(
                "the log-probs given to tracer.watch are not part of a graph: pass them undetached"
            )
        self.log_probs, self.capture, self.tolerance = log_probs, capture, tolerance
        unknown = set(capture.lengths) - set(layout.row.unique().tolist())
        if unknown:
            raise ArcherError(
                f"response rows {sorted(unknown)} are captured but have no log-probs in tracer.watch"
            )
        traced = torch.isin(layout.row, torch.tensor(list(capture.lengths), dtype=torch.int64))
        position = traced.nonzero().squeeze(1)
        self.rows, row = torch.unique(layout.row[position], return_inverse=True)
        self.position, self.row = send(position, log_probs.device), send(row, log_probs.device)
        self.wanted = wanted.reshape(-1)[self.position]
        self.real: Tensor | None = None
        self.apart: Tensor | None = None  # bool [rows]: whose gradients come from a backward of their own
        self._handle: RemovableHandle | None = None

    def prepare(
        self, loss: Tensor, model: nn.Module, counters: Counters, stopwatch: Stopwatch, exchange: Exchange
    ) -> None:
        """Before the real backward: listen to the real weights; run backward what they do not give."""
        holds = self._rescalable(loss)  # the one question before the backward
        some = not bool(holds.all())
        if not exchange.any(some):
            counters.debug_rescaled_micro_batches += 1
            self._listen()
            self.capture.anchor = None
            return
        counters.debug_second_backwards += 1
        terms = self.wanted * self.log_probs.reshape(-1)[self.position]
        if bool(holds.any()):
            counters.debug_partly_rescaled_micro_batches += 1
            terms = terms.masked_fill(send(holds, terms.device)[self.row], 0.0)
        with stopwatch.timing("backward"):
            second_backward(terms.sum(), self.capture, model, counters)
        if not bool(holds.any()):
            self.capture.recording = False
            return
        self.apart = ~holds
        layout = self.capture.layout
        share = torch.isin(layout.row, self.rows[holds]).to(self.log_probs.dtype)
        self.capture.real_share = send(share, self.log_probs.device)
        self._listen()

    def scale(self) -> tuple[Tensor, Tensor] | None:
        """After the real backward: c_r of each captured token, [n], and a bool on the device.

        False says that the backward was not that of the loss that was watched. It is asked with the scores,
        when the device is waited for anyway. None after a second backward for all.
        """
        if not self.capture.recording:
            return None
        multiples, holds = self._multiples(self.real)
        if self.apart is not None:
            apart = send(self.apart, multiples.device)
            multiples, holds = multiples.masked_fill(apart, 1.0), holds | apart
        row = self.capture.layout.row[self.capture.kept]
        index = torch.searchsorted(self.rows, row).clamp_(max=len(self.rows) - 1)
        return multiples[send(index, multiples.device)], holds.all()

    def close(self) -> None:
        """Take the hook off the log-probs: they and this object would keep each other and the graph alive."""
        if self._handle is not None:
            self._handle.remove()

    def _listen(self) -> None:
        self._handle = self.log_probs.register_hook(self._read_real_weights)

    def _rescalable(self, loss: Tensor) -> Tensor:
        """For each response whether its real gradients only need a factor: bool [rows] on the CPU."""
        if len(self.position) == 0:
            return torch.ones(0, dtype=torch.bool)
        real = torch.autograd.grad(loss, self.log_probs, retain_graph=True, allow_unused=True)[0]
        if not leads_only_through(loss, self.log_probs):
            return torch.zeros(len(self.rows), dtype=torch.bool)
        return self._multiples(real)[1].cpu()

    def _multiples(self, real: Tensor | None) -> tuple[Tensor, Tensor]:
        weights = torch.zeros_like(self.log_probs) if real is None else real
        chosen = weights.detach().reshape(-1)[self.position]
        return response_multiples(chosen, self.wanted, self.row, len(self.rows), self.tolerance)

    def _read_real_weights(self, gradient: Tensor) -> None:
        self.real = gradient if self.real is None else self.real + gradient


def second_backward(J: Tensor, capture: Capture, model: nn.Module, counters: Counters) -> None:
    """Run J backward through the traced modules, leaving the graph and every `.grad` as they were.

    The gradient is asked for at the input of the first traced module: all others lie between it and J, no
    parameter gradient is computed and none has to be undone. Where that input needs no gradient (adapters on
    frozen embeddings), where a traced module lies beside the path, and under reentrant checkpointing, which
    forbids partial backwards, a full backward runs with the parameters' `.grad` set aside.
    """
    if capture.anchor is not None:
        torch.autograd.grad(J, capture.anchor, retain_graph=True, allow_unused=True)
        capture.anchor = None
        if not capture.missing():
            return
        capture.forget_gradients()
    counters.debug_second_backwards_with_parameters += 1
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        J.backward(retain_graph=True)
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
