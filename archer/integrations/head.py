"""The factors of the output head's influence, out of a forward that another trainer runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from archer.errors import ArcherError
from archer.influence.head import HeadSketch

CHUNK_ELEMENTS = 2**26  # logits that are made at a time
LOGIT_SETTINGS = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)
"""What a model's config may say of its logits beside the head's product."""


class HeadReader:
    """Watches a causal language model's last hidden states; its logits need not exist as a whole."""

    def __init__(self, model: Any, sketch: HeadSketch, temperature: float) -> None:
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's wrapper
        self.head, self.sketch, self.temperature = model.get_output_embeddings(), sketch, temperature
        self.backbone = model.base_model
        settings = model.config.get_text_config().to_dict()
        odd = [name for name in LOGIT_SETTINGS if settings.get(name) not in (None, 1, 1.0)]
        if odd or not isinstance(self.head, nn.Linear) or self.backbone is model:
            raise ArcherError(
                f"token credit reads the influence of the head, and {type(model).__name__} "
                + (f"changes its logits after it ({odd[0]})" if odd else "has no plain linear head")
                + ": choose another algorithm.token_credit.mode, influence for example"
            )
        self._seen: list[Tensor] = []

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
        u = [
            self.sketch.output_factors(
                (self.head(part.to(self.head.weight.dtype)).float() / self.temperature).softmax(-1),
                chosen,
                self.temperature,
            )
            for part, chosen in zip(flat.split(step), sampled.split(step), strict=True)
        ]
        v = self.sketch.input_factors(flat)
        return torch.cat(u).view(*tokens.shape, -1), v.view(*tokens.shape, -1)
