"""The factors of the output head's influence, out of a forward that another trainer runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.influence.head import HeadSketch
from archer.influence.logits import LogitMap

CHUNK_ELEMENTS = 2**26  # logits that are made at a time


class HeadReader:
    """Watches a causal language model's last hidden states; its logits need not exist as a whole."""

    def __init__(self, model: Any, sketch: HeadSketch, temperature: float) -> None:
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's wrapper
        self.head, self.sketch, self.temperature = model.get_output_embeddings(), sketch, temperature
        self.backbone = model.base_model
        self.logit_map = self._probe(model)
        self._seen: list[Tensor] = []

    @torch.no_grad()
    def _probe(self, model: Any) -> LogitMap:
        """Whether the head is given the last hidden states, and what is made of its output."""
        seen: list[Tensor] = []
        hooks = (
            self.backbone.register_forward_hook(lambda _, __, out: seen.append(out.last_hidden_state)),
            self.head.register_forward_hook(lambda _, given, out: seen.extend((given[0], out))),
        )
        trained = model.training
        model.eval()
        try:
            some = torch.arange(1, 9, device=self.head.weight.device)[None] % self.head.weight.shape[0]
            logits = model(input_ids=some, use_cache=False).logits
        finally:
            model.train(trained)
            for hook in hooks:
                hook.remove()
        if len(seen) != 3 or not torch.equal(seen[0], seen[1]):
            raise ArcherError(
                f"token credit reads the influence of the head, and {type(model).__name__} gives its head "
                "something else than its last hidden states: choose another algorithm.token_credit.mode, "
                "influence for example"
            )
        return LogitMap.found(model, seen[2][0], logits[0])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Surrounds a forward, or several of consecutive rows."""
        self._seen.clear()
        hook = self.backbone.register_forward_hook(
            lambda _, __, out: self._seen.append(out.last_hidden_state.detach())
        )
        try:
            yield
        finally:
            hook.remove()

    @torch.no_grad()
    def factors(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(u [n, C, k_out], v [n, C, k_in]) of the last C tokens [n, C] of the rows that were watched."""
        width = tokens.shape[1]
        hidden = torch.cat([states[:, -width - 1 : -1] for states in self._seen])
        self._seen.clear()
        if hidden.shape[:2] != tokens.shape:
            raise ArcherError(
                f"the model's hidden states are those of {tuple(hidden.shape[:2])} tokens, not "
                f"{tuple(tokens.shape)}: token credit cannot read the head of this trainer's forward"
            )
        flat, sampled = hidden.flatten(0, 1), tokens.flatten()
        step = max(1, CHUNK_ELEMENTS // self.head.weight.shape[0])
        u = [self._pulls(*part) for part in zip(flat.split(step), sampled.split(step), strict=True)]
        v = self.sketch.input_factors(flat)
        return torch.cat(u).view(*tokens.shape, -1), v.view(*tokens.shape, -1)

    def _pulls(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        z = self.logit_map.logits(self.head(hidden.to(self.head.weight.dtype)).float())
        probs = (z / self.temperature).softmax(-1)
        return self.sketch.output_factors(probs, tokens, self.temperature, self.logit_map.slope(z))
