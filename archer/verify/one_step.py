"""One optimizer step from one state on one batch, once for each mode of token credit.

What a mode is worth to a single update, with all else equal: the same weights, the same moments of the
optimizer, the same responses. The local engine's own training step is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from archer.algorithms.token_credit.config import TokenCreditConfig, token_credit_config
from archer.config.compose import compose
from archer.engines.local.collect import Collected, Collector
from archer.engines.local.credit import LocalCredit
from archer.engines.local.engine import LocalEngine
from archer.evaluation.exact import ExactAccuracy
from archer.trace.vocab import vocab_from_tokenizer
from archer.training.credit import PREFIX, TokenCredit
from archer.training.traces import Traces

PLAIN = "none"
MODES: dict[str, TokenCreditConfig] = {
    PLAIN: token_credit_config(mode="none"),
    "spare_confident": token_credit_config(mode="spare_confident"),
    "spare_confident, permuted": token_credit_config(mode="spare_confident", permute=True),
    "nthr": token_credit_config(mode="nthr"),
    "nthr, permuted": token_credit_config(mode="nthr", permute=True),
    "nthr, identity": token_credit_config(mode="nthr", hessian_mode="identity"),
    "influence": token_credit_config(mode="influence"),
    "oracle": token_credit_config(mode="oracle"),
    "delta": token_credit_config(mode="delta"),
    "entropy_top": token_credit_config(mode="entropy_top"),
    "neg_log_prob": token_credit_config(mode="neg_log_prob"),
}


@dataclass(frozen=True)
class Stepped:
    """What one step did."""

    change: float
    """Of exact accuracy, after less before."""
    weight: float
    """Mean weight of the tokens of rejected responses; 1 without credit, NaN where there are none."""


class Replayed(Collector):
    """Samples the responses of a step once, and gives the same ones when the step is run again."""

    _kept: tuple[int, Collected] | None = None

    def collect(self, step: int) -> Collected:
        """The judged responses of a step."""
        if self._kept is None or self._kept[0] != step:
            self._kept = step, super().collect(step)
        return self._kept[1]


class OneStep:
    """A run of the embedded default that steps from one state again and again. A context manager."""

    def __init__(self, prompts: int, responses: int, seed: int, warmup: int) -> None:
        """`warmup` plain steps lead to the state: the optimizer's first moments are not those of a run."""
        self._closing = ExitStack()
        config = compose(
            [
                f"data.train_batch_size={prompts}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
                f"actor_rollout_ref.rollout.n={responses}",
                f"actor_rollout_ref.rollout.seed={seed}",
                f"data.seed={seed}",
                "data.val_max_samples=-1",
                "trainer.total_training_steps=1000000",  # the rate stays constant
                "trainer.entropy_trace.enable=False",
                "trainer.influence_trace.enable=False",
                f"trainer.default_local_dir='{Path('nothing-is-written').absolute()}'",
                "engine.device=cpu",
                "engine.threads=1",
            ]
        )
        engine = LocalEngine(config)
        engine.start(None, self._closing)
        engine.traces = Traces(config, engine.tokenizer, 0)
        self._closing.callback(engine.traces.close)
        assert engine.exact is not None
        self.exact: ExactAccuracy = engine.exact
        self.trainer = engine.trainer
        old = self.trainer.collector
        self.trainer.collector = Replayed(old.config, old.dataset, old.sampler, old.generation)
        self._vocab = vocab_from_tokenizer(engine.tokenizer)
        self._actor = self.trainer.config.actor_rollout_ref.actor
        for _ in range(warmup):
            self.trainer.train_step()
        self._step = self.trainer.step
        self._weights = [p.detach().clone() for p in self.trainer.parameters]
        self._optimizer = deepcopy(self.trainer.optimizer.state_dict())
        self._position = self.trainer.collector.sampler.state_dict()
        self.accuracy = self._accuracy()

    def __enter__(self) -> OneStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def weights_after(self, batch: int, credit: TokenCreditConfig) -> tuple[Tensor, float]:
        """All weights after the step on a batch, as one vector, and the mean weight of rejected tokens."""
        self._restore(batch)
        trainer = self.trainer
        trainer.step = self._step + batch
        mode = TokenCredit(credit, trainer.config.actor_rollout_ref.rollout.seed)
        trainer.credit = LocalCredit(mode, trainer.policy, self._actor, self._vocab)
        metrics = trainer.train_step().metrics
        weight = 1.0 if credit.mode == PLAIN else metrics.get(f"{PREFIX}weight_rejected", float("nan"))
        return torch.cat([p.detach().flatten() for p in trainer.parameters]), weight

    def stepped(self, batch: int, credit: TokenCreditConfig) -> Stepped:
        """What the step on a batch does to exact accuracy."""
        _, weight = self.weights_after(batch, credit)
        return Stepped(self._accuracy() - self.accuracy, weight)

    def table(self, batches: int, modes: Mapping[str, TokenCreditConfig]) -> dict[str, Sequence[Stepped]]:
        """Every mode on each of the batches; the responses of a batch are sampled from the state itself."""
        found: dict[str, list[Stepped]] = {name: [] for name in modes}
        for batch in range(batches):  # one after the other: the responses of the last one are kept
            for name, credit in modes.items():
                found[name].append(self.stepped(batch, credit))
        return dict(found)

    def _accuracy(self) -> float:
        return float(self.exact.probabilities().mean())

    @torch.no_grad()
    def _restore(self, batch: int) -> None:
        """Go back to the state, before the prompts of a batch."""
        for parameter, weight in zip(self.trainer.parameters, self._weights, strict=True):
            parameter.copy_(weight)
        self.trainer.optimizer.load_state_dict(deepcopy(self._optimizer))
        collector = self.trainer.collector
        collector.generation.rollout.refresh()
        collector.sampler.load_state_dict(self._position)
        for _ in range(batch):
            collector.sampler.next_batch(collector.config.data.train_batch_size)
