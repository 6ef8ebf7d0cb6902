"""Traces, token influence and token credit in TRL's GRPOTrainer.

    from archer.integrations.trl import ArcherGRPOTrainer, Tracing

    trainer = ArcherGRPOTrainer(..., archer=Tracing())      # in the place of GRPOTrainer(...)

A trainer of your own: `class Mine(ArcherGRPOMixin, MyGRPOTrainer)`. Generation (with vLLM or
without), rewards, losses and distribution stay TRL's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from archer.integrations.grpo import GRPOTracing
from archer.integrations.options import READING, Tracing
from archer.integrations.trl_rows import (
    accepting,
    check_credit,
    check_distribution,
    credit_ahead,
    generation_of,
    run_facts,
    verdicts_of,
)
from archer.integrations.trl_versions import check_trl, installed_trl, misfit

__all__ = ["READING", "ArcherGRPOMixin", "ArcherGRPOTrainer", "Tracing"]

installed_trl()  # says what to install

from trl import GRPOTrainer  # noqa: E402

ROW = "archer_row"
"""Among TRL's inputs: the names of the responses, which TRL shuffles and splits with everything else."""


class ArcherGRPOMixin:
    """To be put before a GRPOTrainer; `archer` says what is traced."""

    archer: GRPOTracing

    def __init__(self, *args: Any, archer: Tracing | None = None, **options: Any) -> None:
        check_trl(type(self))
        self.archer = GRPOTracing(archer or Tracing())
        super().__init__(*args, **options)
        self._rewards_seen: Tensor | None = None
        self._passes_seen: list[tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]] | None = None
        check_distribution(self)
        accepting(self)
        check_credit(self)
        self.add_callback(_Beginning(self))  # type: ignore[attr-defined]

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        """TRL generates in here, computes the loss and runs its backward."""
        self._loss_seen = False
        try:
            loss = super().training_step(*args, **options)  # type: ignore[misc]
        except BaseException:
            self.archer.abandon()
            raise
        if not self._loss_seen:
            raise misfit(
                "computes its loss without _compute_loss, as with use_liger_kernel=True: set it to False"
            )
        self.archer.after_backward(self.accelerator.sync_gradients)  # type: ignore[attr-defined]
        return loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """TRL's metrics and Archer's."""
        if self.model.training:  # type: ignore[attr-defined]
            logs.update(self.archer.metrics())
        super().log(logs, *args, **options)  # type: ignore[misc]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids)  # type: ignore[misc]
        self._rewards_seen = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:  # type: ignore[attr-defined]
            return super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        self._rewards_seen, self._passes_seen = None, []
        try:
            output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
            passes = self._passes_seen
        finally:
            self._passes_seen = None
        rewards = self._rewards_seen
        if rewards is None or not {"prompt_ids", "completion_ids", "advantages"} <= output.keys():
            raise misfit("does not judge and pad completions as the adapter expects")
        verdicts = verdicts_of(self, rewards, output)
        step = self.state.global_step + 1
        generation = self.archer.sampled(
            step,
            lambda offset, selected: generation_of(self, inputs, output, verdicts, step, offset, selected),
            verdicts,
        )
        if self.archer.weighs(generation):
            old = output.get("old_per_token_logps")
            credit_ahead(self, generation, output, next((p for p in passes if p[0] is old), None))
        return {**output, ROW: torch.tensor(generation.names)}

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
        credit = self.archer.credit
        reader = None if credit is None else credit.reader
        if self._passes_seen is not None and model is self.model:  # type: ignore[attr-defined]
            options["compute_entropy"] = True
            found, factors = self._read(reader, model, args, options)
            self._passes_seen.append((found[0], found[1], factors))
            return found
        step = self.archer.loss_pass
        if step is None:
            return super()._get_per_token_logps_and_entropies(model, *args, **options)  # type: ignore[misc]
        reads = reader is not None and not step.generation.known and self.archer.weighs(step.generation)
        options["compute_entropy"] = True
        if reads:
            assert reader is not None
            with reader.watching():
                found = super()._get_per_token_logps_and_entropies(model, *args, **options)  # type: ignore[misc]
        else:
            found = super()._get_per_token_logps_and_entropies(model, *args, **options)  # type: ignore[misc]
        weighted = self.archer.forward(found[0], found[1])
        if weighted is not None:
            step.inputs["advantages"] = weighted
        return found

    def _read(self, reader: Any, model: Any, args: Any, options: Any) -> Any:
        """A forward, and the head's factors of its tokens where there is a reader."""
        compute: Callable[..., Any] = super()._get_per_token_logps_and_entropies  # type: ignore[misc]
        if reader is None:
            return compute(model, *args, **options), None
        with reader.watching():
            found = compute(model, *args, **options)
        ids, keep = args[0], args[2]
        return found, reader.factors(ids[:, -keep:])

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._loss_seen = True
        if ROW not in inputs or not torch.is_grad_enabled():
            plain = {name: value for name, value in inputs.items() if name != ROW}
            return super()._compute_loss(model, plain)  # type: ignore[misc]
        given = dict(inputs)
        names = given.pop(ROW).tolist()
        with self.archer.loss(names, given) as step:
            loss = super()._compute_loss(model, given)  # type: ignore[misc]
            if step.log_probs is None:
                raise misfit("computes its loss without _get_per_token_logps_and_entropies")
            self.archer.watch(step, loss)
        return loss


class ArcherGRPOTrainer(ArcherGRPOMixin, GRPOTrainer):
    """TRL's GRPOTrainer with `archer=Tracing(...)`."""


class _Beginning(TrainerCallback):
    """Begins when the trainer does, and leaves whole files at its checkpoints and its end."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        said = self.trainer.archer.begin(run_facts(self.trainer))
        if state.is_world_process_zero:
            print(said, flush=True)

    def on_save(self, *_: Any, **__: Any) -> None:
        self.trainer.archer.flush()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.trainer.archer.flush()
