"""Token credit on Ray: the driver makes the weights; influence that a mode reads is read out by the workers.

Influence of the head comes out of the forward that gives the old log-probs, influence of any modules out of a
pass of its own that runs like an update whose optimizer does not step.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor, nn
from verl.workers.utils.padding import no_padding_2_padding

from archer.algorithms.token_credit.base import CreditInputs
from archer.engines.verl.influence import TracedRows
from archer.influence import Group, InfluenceTracer, Layout, Selection
from archer.influence.factors import TokenFactors, send
from archer.influence.logits import LogitMap
from archer.influence.modules import NoProjection, TracedModule
from archer.training.credit import Credit, TokenCredit, credit_metrics, credit_sums
from archer.training.metrics import TokenSums

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

WEIGHTS = "credit_weights"
"""Field of the queue that the loss multiplies advantages by."""

CHUNK_ELEMENTS = 2**27  # probabilities that are made at a time
HEAD = "head"
PROBE = 8  # lines that show how the model makes logits of its head's output


class HeadRecorder:
    """Reads the head's factors out of the forward of one rank, in closed form, and scores with all ranks."""

    def __init__(
        self, model: nn.Module, credit: TokenCredit, temperature: float, process_group: "ProcessGroup | None"
    ) -> None:
        self.model = model
        self.head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self.sketch = credit.sketch(self.head)
        self.temperature = temperature
        self.tracer = InfluenceTracer(model, credit.tracer_config(), process_group)
        # the factors are given, projected and scaled: nothing is left for a tracer's own modules to do
        k_in, k_out = self.sketch.project_in.k, self.sketch.project_out.k
        self.tracer.modules = [TracedModule(HEAD, self.head, NoProjection(k_in), NoProjection(k_out))]
        self._logit_map: LogitMap | None = None  # of this model, once a forward was read
        self._rows: frozenset[int] = frozenset()
        self._captured: list[TokenFactors] = []

    def begin(self, rows: frozenset[int]) -> None:
        """Read the factors of these rows from here to `scores`."""
        self._rows, self._captured = rows, []

    @property
    def active(self) -> bool:
        """Whether forwards are read now."""
        return bool(self._rows)

    def row(self, number: int) -> int:
        """The row as layouts name it: -1 when it is not read."""
        return number if number in self._rows else -1

    @contextmanager
    def reading(self, rows: TracedRows, layout: Layout, tokens: Tensor) -> Iterator[None]:
        """Surround one forward. tokens: all response tokens of the micro-batch, response by response."""
        places = (layout.row >= 0).nonzero().squeeze(1)
        if not len(places):
            yield
            return
        row, token = layout.row[places], layout.token[places]
        lengths = torch.tensor(rows.response_lengths)
        begins = dict(zip(rows.rows, (lengths.cumsum(0) - lengths).tolist(), strict=True))
        where = torch.tensor([begins[r] for r in row.tolist()]) + token
        sampled = tokens.index_select(0, send(where, tokens.device))
        index = send(places, tokens.device)

        seen: list[Tensor] = []

        def of_head(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            seen.append(self.sketch.input_factors(given[0].flatten(0, -2)[index]))
            if self._logit_map is None:
                seen.append(made.detach().flatten(0, -2)[index[:PROBE]].clone())

        def of_model(_: nn.Module, __: Any, output: Any) -> None:
            z = output.logits.detach().flatten(0, -2)
            if self._logit_map is None:
                self._logit_map = LogitMap.found(self.model, seen[1], z[index[:PROBE]])
            size = max(1, CHUNK_ELEMENTS // z.shape[-1])
            parts = zip(index.split(size), sampled.split(size), strict=True)
            u = torch.cat([self._pulls(z[some], chosen) for some, chosen in parts])
            self._captured.append(
                TokenFactors(row, token, {HEAD: u}, {HEAD: seen[0]}, None, layout.lengths(), 0)
            )

        handles = [self.head.register_forward_hook(of_head), self.model.register_forward_hook(of_model)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def scores(self, groups: Sequence[Group]) -> dict[int, NDArray[np.float32]]:
        """Score with all ranks; {row: [length]} of the rows that this rank read."""
        self.tracer.take(self._captured)
        found = self.tracer.scores(Selection(tuple(groups), 0, 0, 0))
        self.tracer.metrics()  # counts of the credit are no metrics of the trace
        self.begin(frozenset())
        return {row: values.numpy() for row, values in found.items()}

    def _pulls(self, logits: Tensor, tokens: Tensor) -> Tensor:
        assert self._logit_map is not None
        probs = (logits.float() / self.temperature).softmax(-1).to(logits.dtype)
        return self.sketch.output_factors(probs, tokens, self.temperature, self._logit_map.slope(logits))


def sum_of_log_probs(
    model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """The loss of the pass that influence of any modules is read from: sum_t log π(y_t)."""
    mask = data["response_mask"].to_padded_tensor(0).bool()
    log_probs = no_padding_2_padding(model_output["log_probs"], data)
    return torch.where(mask, log_probs, 0.0).sum(), {}


def weigh_step(
    credit: TokenCredit,
    step: int,
    data: Mapping[str, Tensor],  # log_probs, entropy, advantages [N, L] and mask [N, L] bool
    correct: Tensor,  # [N] bool
    unjudged: Tensor,  # [N] bool
    scores: Mapping[int, NDArray[np.float32]] | None,
    mistakes: Tensor | None,
) -> tuple[Credit, dict[str, float]]:
    """The weights of all responses of a step, and what is measured of them."""
    mask = data["mask"]
    known: Tensor | None = None
    if scores is not None:
        known = torch.full(mask.shape, torch.nan)
        for row, values in scores.items():
            known[row, : len(values)] = torch.tensor(values)
    inputs = CreditInputs(
        log_probs=data["log_probs"],
        entropy=data["entropy"],
        advantages=data["advantages"],
        mask=mask,
        accepted=correct & ~unjudged,
        judged=~unjudged,
        scores=known,
        mistakes=mistakes,
    )
    found = credit.weigh(inputs, step, range(len(mask)))
    sums = TokenSums()
    credit_sums(inputs, found.weights, inputs.of_side(credit.side), sums)
    return found, credit_metrics(sums, credit.strength(step))
