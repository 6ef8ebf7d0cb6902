"""Hooks that read token factors out of one forward and backward.

Per traced module: a forward hook projects the input at once and keeps only v; a tensor hook on the output
projects its gradient at once and keeps only u. No activation is kept alive, so gradient checkpointing keeps
its savings. What recomputation does to the hooks:

- non-reentrant: the first forward belongs to the real graph and is captured; the hook fires again inside the
  backward and is ignored, because v is already known;
- reentrant: the first forward runs without grad and is ignored; the recomputation inside the backward is
  captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from archer.errors import ArcherError
from archer.influence.config import InfluenceConfig
from archer.influence.costs import Counters, Stopwatch
from archer.influence.expert_sites import ExpertsCall, ExpertSite
from archer.influence.factors import ExpertFactors
from archer.influence.layout import Layout
from archer.influence.modules import AnyProjection, NoProjection, TracedModule

KEEP_ALL = 0.7  # share of traced positions from which on the factors of all positions are kept
STORAGE = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


class Site:
    """One traced module during one capture: pieces of v and u, one for each call."""

    def __init__(self, traced: TracedModule) -> None:
        self.traced = traced
        self.seen = 0  # rows of the layout that its calls have covered
        self.without_grad = 0  # rows of calls whose output needed no grad
        self.recomputed = False  # captured inside a backward
        self.v: list[Tensor] = []
        self.u: list[Tensor | None] = []

    @property
    def name(self) -> str:
        """The module's."""
        return self.traced.name


class Capture:
    """The hooks of one micro-batch; `attach` and `detach` bracket their life."""

    def __init__(
        self,
        modules: list[TracedModule],
        layout: Layout,
        config: InfluenceConfig,
        counters: Counters,
        stopwatch: Stopwatch,
        lockstep: bool = False,
    ) -> None:
        self.layout = layout.last_tokens(config.max_tokens_per_response)
        self.lengths = layout.lengths()
        traced = self.layout.row >= 0
        # A few lines too many cost less than a selection in every hook.
        self.selects = float(traced.sum()) < KEEP_ALL * len(traced)
        self.kept = traced.nonzero().squeeze(1) if self.selects else torch.arange(len(traced))
        self.sites = [Site(traced) for traced in modules if traced.fused is None]
        self.experts = ExpertSite.of(modules)
        self._every: list[Site | ExpertSite] = [*self.sites, *self.experts]
        self.real_share: Tensor | None = None  # [layout.size] of 0 and 1: where the real backward counts
        self.recording = True  # whether gradients that pass now are those of the wanted objective
        self.anchor: Tensor | None = None
        self._wants_anchor = config.output_function != "training_loss"
        self._attach_anyway = lockstep and self._wants_anchor
        self._config, self._counters, self._stopwatch = config, counters, stopwatch
        self._handles: list[RemovableHandle] = []
        self._projected: dict[AnyProjection, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        self._index: dict[tuple[int, int, torch.device], Tensor] = {}

    def attach(self) -> None:
        """Install the forward hooks; none when the layout holds no traced token.

        In lockstep they are needed all the same where a second backward may come: it begins at their anchor.
        """
        if len(self.kept) == 0 and not self._attach_anyway:
            return
        for site in self.sites:

            def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor, site: Site = site) -> None:
                begin = self._stopwatch.now()
                self._forward(site, args[0], output)
                self._stopwatch.add("capture", begin)

            self._handles.append(site.traced.module.register_forward_hook(hook))
        for call in ExpertsCall.of(self.experts, self):
            self._handles += call.attach()

    def detach(self) -> None:
        """Remove the forward hooks and let go of everything that belongs to the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.recording = False
        self._projected.clear()
        self.anchor = self.real_share = None

    def missing(self) -> list[str]:
        """Names of modules that lack a gradient for some call."""
        return [site.name for site in self._every if any(u is None for u in site.u) or not site.u]

    def forget_gradients(self) -> None:
        """Drop every u, before a backward that starts over."""
        for site in self._every:
            site.u[:] = [None] * len(site.u)

    def factors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(u, v) per module name, [n, k_out] and [n, k_in]; an error where something was not seen."""
        self._check_complete()
        stored: dict[tuple[int, ...], Tensor] = {}  # a v that modules share stays shared

        def store(pieces: list[Tensor]) -> Tensor:
            key = tuple(id(piece) for piece in pieces)
            if key not in stored:
                stored[key] = self._store(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
            return stored[key]

        u = {site.traced.name: store([u for u in site.u if u is not None]) for site in self.sites}
        v = {site.traced.name: store(site.v) for site in self.sites}
        if self._config.grad_offload_to_cpu and self._stopwatch.device.type == "cuda":
            torch.cuda.synchronize(self._stopwatch.device)  # copies to the CPU run behind the program
        return u, v

    def expert_factors(self) -> dict[str, tuple[ExpertFactors, ExpertFactors]]:
        """(u, v) per name of a fused weight; what `factors` gives of the other modules."""
        kept = self.kept if self.selects else None
        return {site.name: site.factors(self.layout.size, kept, self._store) for site in self.experts}

    def runs(self) -> dict[int, tuple[int, int]] | None:
        """(first line of the factors, number of lines) of each response, where the layout knows its runs."""
        runs = self.layout.runs
        if runs is None or not self.selects:
            return runs
        first = torch.searchsorted(self.kept, torch.tensor([begin for begin, _ in runs.values()]))
        lengths = (length for _, length in runs.values())
        return dict(zip(runs, zip(first.tolist(), lengths, strict=True), strict=True))

    def _forward(self, site: Site, x: Tensor, y: Tensor) -> None:
        self._counters.debug_forward_hook_calls += 1
        if not isinstance(y, Tensor):
            raise ArcherError(
                f"{site.name} returns a {type(y).__name__}, so that its linear map cannot be told from the "
                "rest: name other modules in trainer.influence_trace.module_name_filter"
            )
        rows = x.numel() // x.shape[-1]
        in_backward = torch._C._current_graph_task_id() != -1
        if not y.requires_grad:
            self._counters.debug_forward_without_grad_calls += 1
            site.without_grad += rows
            return
        if in_backward and site.seen == self.layout.size:
            self._counters.debug_forward_recomputed_calls += 1
            if site.recomputed:
                # Reentrant checkpointing run backward again: this graph is new, v is not.
                self._watch_output(site, y, 0, rows)
            return
        begin, end = site.seen, site.seen + rows
        self.check_call(site.name, begin, end, in_backward)
        self.meet(x, in_backward)
        site.seen, site.recomputed = end, in_backward
        site.v.append(self._project_input(site.traced.project_in, x, begin, end))
        site.u.append(None)
        self._counters.debug_forward_set_v_calls += 1
        self._watch_output(site, y, begin, end)

    def meet(self, x: Tensor, in_backward: bool) -> None:
        """Take the input of the first traced module as the place where a second backward may end."""
        if self._wants_anchor and self.anchor is None and not in_backward and x.requires_grad:
            self.anchor = x

    def _watch_output(self, site: Site, y: Tensor, begin: int, end: int) -> None:
        def project(gradient: Tensor) -> Tensor:
            u = self._compress(site.traced.project_out, gradient, begin, end)
            if self.real_share is None:
                return u
            share = self.real_share[begin:end]
            if self.selects:
                share = share.index_select(0, self._kept_between(begin, end, share.device))
            return u * share.to(u).unsqueeze(1)

        self.watch_output(site.u, len(site.u) - 1, y, project)

    def watch_output(
        self, pieces: list[Tensor | None], call: int, y: Tensor, project: Callable[[Tensor], Tensor]
    ) -> None:
        """Add u, projected from the gradient of y, to one of a site's pieces."""

        def hook(gradient: Tensor) -> None:
            self._counters.debug_output_grad_hook_calls += 1
            if not self.recording:
                return
            since = self._stopwatch.now()
            u = project(gradient)
            before = pieces[call]
            # As `.grad` does: a second backward within one capture adds to the first.
            pieces[call] = u if before is None else before + u
            self._counters.debug_output_grad_set_u_calls += 1
            self._stopwatch.add("capture", since)

        y.register_hook(hook)

    def _project_input(self, projection: AnyProjection, x: Tensor, begin: int, end: int) -> Tensor:
        """v, reused when this projection last met this very tensor unchanged (q/k/v, gate/up)."""
        if projection in self._projected:
            owner, version, v = self._projected[projection]
            # An address may be reused; a live object cannot be mistaken for another.
            if owner() is x and version == x._version:
                return v
        v = self._compress(projection, x, begin, end)
        self._counters.debug_input_projections += 1
        self._projected[projection] = (weakref.ref(x), x._version, v)
        return v

    def _compress(self, projection: AnyProjection, tensor: Tensor, begin: int, end: int) -> Tensor:
        """Kept rows of a [..., d] tensor that covers layout rows begin..end, projected and stored: [n, k]."""
        flat = tensor.detach().reshape(-1, tensor.shape[-1])
        if not self.selects:
            return self.project(projection, flat)
        index = self._kept_between(begin, end, flat.device)
        if 3 * len(index) < len(flat) or isinstance(projection, NoProjection):
            return self.project(projection, flat.index_select(0, index))
        # Copying a third of the rows moves as much memory as projecting all of them.
        return self.project(projection, flat).index_select(0, index)

    def project(self, projection: AnyProjection, lines: Tensor) -> Tensor:
        """Lines [n, d] projected, as they are stored: [n, k]."""
        compressed = multiply(projection, lines.to(product_dtype(lines)))
        wanted = self._config.factor_dtype
        return compressed if wanted == "auto" else compressed.to(STORAGE[wanted])

    def _store(self, factors: Tensor) -> Tensor:
        if not self._config.grad_offload_to_cpu or factors.device.type == "cpu":
            return factors
        home = torch.empty(factors.shape, dtype=factors.dtype, pin_memory=True)
        return home.copy_(factors, non_blocking=True)

    def _kept_between(self, begin: int, end: int, device: torch.device) -> Tensor:
        """Positions of kept rows within begin..end, relative to begin."""
        key = (begin, end, device)
        if key not in self._index:
            inside = self.kept[(self.kept >= begin) & (self.kept < end)] - begin
            self._index[key] = inside.to(device)
        return self._index[key]

    def check_call(self, name: str, begin: int, end: int, in_backward: bool) -> None:
        """Refuse a call that does not cover the layout's positions in order."""
        size = self.layout.size
        if begin == size:
            raise ArcherError(
                f"{name} was called again after all {size} positions of the layout: one capture holds one "
                "forward of one micro-batch, and a module shared between layers cannot be traced (name "
                "others in trainer.influence_trace.module_name_filter)"
            )
        if end > size:
            raise ArcherError(
                f"{name} was given {end} positions, the layout describes {size}: they must be the same batch"
            )
        if in_backward and end - begin != size:
            raise ArcherError(
                f"{name} is called in chunks under reentrant checkpointing, which recomputes them in an "
                "order that cannot be known: use use_reentrant=False or leave the module out of "
                "module_name_filter"
            )

    def _check_complete(self) -> None:
        size = self.layout.size
        if not any(site.seen for site in self._every):
            without = sum(site.without_grad for site in self._every)
            raise ArcherError(
                "no traced module ran with gradients inside tracer.capture(layout): the forward belongs "
                "inside it, too"
                + (", and so does the backward of reentrant checkpointing" if without else "")
                + ". Where the forward runs through torch.compile, give the tracer the compiled model: it is "
                "run uncompiled inside captures, since compiled code calls no later hooks"
            )
        for site in self._every:
            if site.seen != size:
                raise ArcherError(
                    f"{site.name} saw {site.seen} of the layout's {size} positions; a module that "
                    "runs on part of the batch (logits of the last positions only, an expert) cannot be "
                    "traced: leave it out of trainer.influence_trace.module_name_filter"
                )
        missing = self.missing()
        if missing:
            raise ArcherError(
                f"no gradient reached {len(missing)} of {len(self._every)} traced modules ({missing[0]}, "
                "...): run backward inside tracer.capture(layout), and leave modules that do not take part "
                "in the loss out of trainer.influence_trace.module_name_filter"
            )


def product_dtype(x: Tensor) -> torch.dtype:
    """What a projection is computed in: as the model's own products, but not in float16.

    Sums of many half-precision products overflow.
    """
    kind = x.device.type
    narrow = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if narrow else x.dtype
    return torch.float32 if dtype == torch.float16 else dtype


def multiply(projection: AnyProjection, x: Tensor) -> Tensor:
    """projection(x) in the format of x, also where autocast would take another."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.get_autocast_dtype(kind):
        with torch.autocast(kind, enabled=False):
            return projection(x)
    return projection(x)
