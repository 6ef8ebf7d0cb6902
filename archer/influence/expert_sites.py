"""Capture of fused experts: their factors by position and expert, out of one forward and backward.

The experts of a layer run on pairs (token, expert), in an order that is the implementation's own. Pieces are
kept in that order and put into the order of the layout's positions at the end, s pairs each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from archer.errors import ArcherError
from archer.influence.experts import ExpertProducts, FusedExperts, Product, takes_every_token
from archer.influence.factors import ExpertFactors
from archer.influence.layout import Layout
from archer.influence.modules import AnyProjection, TracedModule


class Capturing(Protocol):
    """What is used of `capture.Capture`; its methods say more there."""

    layout: Layout
    real_share: Tensor | None

    def check_call(self, name: str, begin: int, end: int, in_backward: bool) -> None:
        """Refuse a call that does not fit the layout."""

    def meet(self, x: Tensor, in_backward: bool) -> None:
        """See the input of a traced module."""

    def project(self, projection: AnyProjection, lines: Tensor) -> Tensor:
        """Project lines to what is stored."""
        ...

    def watch_output(
        self, pieces: list[Tensor | None], call: int, y: Tensor, project: Callable[[Tensor], Tensor]
    ) -> None:
        """Keep the projected gradient of y."""


class ExpertSite:
    """One fused weight during one capture: pieces of v and u, one for each product with it."""

    def __init__(self, fused: FusedExperts, project_in: AnyProjection, project_out: AnyProjection) -> None:
        self.fused, self.project_in, self.project_out = fused, project_in, project_out
        self.seen = 0  # rows of the layout that its module's calls have covered
        self.without_grad = 0
        self.recomputed = False
        self.pairs = 0  # lines of the call under way
        self.call = 0  # products of the call under way, where it is run again
        self.position: list[Tensor] = []  # int64 [P] of each piece
        self.expert: list[Tensor] = []  # int64 [P]
        self.v: list[Tensor] = []
        self.u: list[Tensor | None] = []

    @classmethod
    def of(cls, modules: Sequence[TracedModule]) -> list[ExpertSite]:
        """One for each fused weight among the traced modules."""
        weights = {traced.fused: traced for traced in modules if traced.fused is not None}
        return [cls(fused, traced.project_in, traced.project_out) for fused, traced in weights.items()]

    @property
    def name(self) -> str:
        """The weight's."""
        return self.fused.name

    def factors(
        self, size: int, kept: Tensor | None, store: Callable[[Tensor], Tensor]
    ) -> tuple[ExpertFactors, ExpertFactors]:
        """(u, v) of the kept positions (None: all `size`), each with as many experts as a position met."""
        position, expert = torch.cat(self.position), torch.cat(self.expert)
        order = torch.argsort(position, stable=True)
        slots = len(position) // size
        even = torch.arange(size, device=position.device).repeat_interleave(slots)
        if len(position) != size * slots or not bool((position[order] == even).all()):
            raise ArcherError(
                f"{self.name}: tokens met different numbers of experts ({len(position)} pairs of {size} "
                "positions), which is not traced: name other modules in "
                "trainer.influence_trace.module_name_filter"
            )
        order = order.view(size, slots)
        if kept is not None:
            order = order[kept.to(order.device)]
        chosen = store(expert[order])
        u = torch.cat([piece for piece in self.u if piece is not None])
        return (
            ExpertFactors(store(u[order]), chosen, self.fused.count),
            ExpertFactors(store(torch.cat(self.v)[order]), chosen, self.fused.count),
        )


class ExpertsCall:
    """Watches the calls of one experts' module, for all of its traced weights."""

    def __init__(self, module: nn.Module, sites: list[ExpertSite], capture: Capturing) -> None:
        self.module, self.capture = module, capture
        self.sites = {site.fused.parameter: site for site in sites}
        self._products: ExpertProducts | None = None
        self._begin = 0
        self._again = False

    @classmethod
    def of(cls, sites: Sequence[ExpertSite], capture: Capturing) -> Iterator[ExpertsCall]:
        """One for each module."""
        for module in dict.fromkeys(site.fused.module for site in sites):
            yield cls(module, [site for site in sites if site.fused.module is module], capture)

    def attach(self) -> list[RemovableHandle]:
        """Install the hooks around the module's forward."""
        before = self.module.register_forward_pre_hook(self._before, with_kwargs=True)
        return [before, self.module.register_forward_hook(self._after, always_call=True)]

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = hidden.numel() // hidden.shape[-1]
        sites, in_backward = list(self.sites.values()), torch._C._current_graph_task_id() != -1
        if takes_every_token(module):
            rows //= sites[0].fused.count
        if not torch.is_grad_enabled():
            for site in sites:
                site.without_grad += rows
            return
        self._again = in_backward and sites[0].seen == self.capture.layout.size
        if self._again and not sites[0].recomputed:
            return
        self._begin = 0 if self._again else sites[0].seen
        for site in sites:
            site.call = site.pairs = 0
            if not self._again:
                self.capture.check_call(site.name, self._begin, self._begin + rows, in_backward)
                site.seen, site.recomputed = self._begin + rows, in_backward
        if not self._again:
            self.capture.meet(hidden, in_backward)
        self._products = ExpertProducts(module, list(self.sites), hidden, self._product)
        self._products.__enter__()

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._products is None:
            return
        self._products.__exit__(None, None, None)
        self._products = None
        unseen = [site.name for site in self.sites.values() if site.pairs == 0]
        if unseen and output is not None:
            raise ArcherError(
                f"no product with {unseen[0]} was seen: its experts run in a kernel that cannot be watched. "
                "Load the model with experts_implementation=grouped_mm, batched_mm or eager, or name other "
                "modules in trainer.influence_trace.module_name_filter"
            )

    def _product(self, product: Product) -> None:
        site, capture = self.sites[product.parameter], self.capture
        site.pairs += len(product.token)
        if not self._again:
            site.position.append(product.token + self._begin)
            site.expert.append(product.expert)
            site.v.append(capture.project(site.project_in, product.x.detach()))
            site.u.append(None)
        call = site.call if self._again else len(site.u) - 1
        site.call += 1
        position, lines = site.position[call], product.lines  # not the product, which holds the activations

        def project(gradient: Tensor) -> Tensor:
            u = capture.project(site.project_out, lines(gradient.detach()))
            if capture.real_share is None:
                return u
            return u * capture.real_share[position].to(u).unsqueeze(1)

        capture.watch_output(site.u, call, product.y, project)
