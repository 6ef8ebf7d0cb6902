"""verl's workers with Archer's loss, and with influence read out of their backward."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import archer.engines.verl.plugin  # noqa: F401  (registers the engine in this process)
from archer.engines.verl.algorithms import RankLoss
from archer.engines.verl.cluster import join_process_group
from archer.engines.verl.credit import sum_of_log_probs
from archer.engines.verl.influence import RankTrace, TracePlan
from archer.engines.verl.settings import archer_config
from archer.engines.verl.traced_update import TracedUpdate
from archer.engines.verl.translate import threads
from archer.influence import Group
from archer.training.credit import TokenCredit


@dataclass(frozen=True)
class RankUpdate:
    """What one rank reports of a step's update."""

    sums: dict[str, tuple[float, float]]  # metric -> (sum of values, tokens)
    terms: dict[str, float]  # loss term -> sum over its micro-batches
    skipped: int  # optimizer steps left out, their gradient not being finite
    trace: RankTrace
    log_probs: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    """Row -> the log-probs that its first loss saw, where a trace asks."""


class ArcherWorker(ActorRolloutRefWorker):
    """Actor, rollout and reference of one rank."""

    def __init__(self, config: Any, role: str, **options: Any) -> None:
        super().__init__(config, role, **options)
        self.settings = archer_config(config)
        if get_device_name() == "cpu":
            torch.set_num_threads(threads(self.settings))
        join_process_group()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the models; the actor's loss is Archer's."""
        super().init_model()
        actor = self.settings.actor_rollout_ref.actor
        self.loss = RankLoss(actor, actor.loss_scale_factor or self.settings.data.max_response_length)
        self.actor.set_loss_fn(self.loss)
        trainer = self.settings.trainer
        self.engine.skip_optimizer_step = (
            trainer.skip_optimizer_step or trainer.influence_trace.skip_optimizer_step
        )
        if trainer.influence_trace.enable:
            self.engine.trace(trainer.influence_trace)
        rollout = self.settings.actor_rollout_ref.rollout
        credit = TokenCredit(self.settings.algorithm.token_credit, rollout.seed)
        self.engine.read_for(credit, rollout.temperature)

    @property
    def engine(self) -> TracedUpdate:
        """The actor's training engine."""
        assert self.actor is not None
        return self.actor.engine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe_model(self) -> tuple[int, str]:
        """Return the number of parameters, and what is traced."""
        recorder = self.engine.recorder
        parameters = sum(parameter.numel() for parameter in self.engine.module.parameters())
        if recorder is None:
            return parameters, ""
        computes_in = self.engine._autocast_dtype
        with torch.autocast(get_device_name(), computes_in, enabled=computes_in != torch.float32):
            return parameters, recorder.tracer.describe(self.settings.actor_rollout_ref.rollout.n)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_update(self, plan: TracePlan, keeps: bool = False) -> None:
        """Before `update_actor`: start the step's sums, and say which responses are traced.

        `keeps`: some trace is written of the step, and will ask for what its losses saw.
        """
        self.loss.begin(keeps)
        self.engine.skipped_updates = 0
        if self.engine.recorder is not None:
            self.engine.recorder.begin(plan)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_update(self) -> RankUpdate:
        """After `update_actor`: what this rank saw."""
        recorder = self.engine.recorder
        trace = RankTrace({}, {}) if recorder is None else recorder.finish()
        return RankUpdate(
            self.loss.sums.read(),
            {name: float(value) for name, value in self.loss.terms.items()},
            self.engine.skipped_updates,
            trace,
            self.loss.log_probs(),
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_head(self, rows: frozenset[int]) -> None:
        """Before `compute_log_prob`: read the head's factors of these rows out of its forward."""
        assert self.engine.head is not None
        self.engine.head.begin(rows)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def score_head(self, groups: tuple[Group, ...]) -> dict[int, NDArray[np.float32]]:
        """After `compute_log_prob`: the head's influence of the rows that this rank read."""
        assert self.engine.head is not None
        return self.engine.head.scores(groups)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_credit(self, plan: TracePlan) -> None:
        """Before `update_actor`: it is no update, but a pass that influence is read from."""
        assert self.actor is not None
        self.actor.set_loss_fn(sum_of_log_probs)
        self.engine.begin_credit(plan)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_credit(self) -> RankTrace:
        """After it: the scores of the rows that this rank read."""
        assert self.actor is not None
        self.actor.set_loss_fn(self.loss)
        return self.engine.finish_credit()


class ArcherCriticWorker(TrainingWorker):
    """The critic of one rank; it may be the first in its process to need the process group."""

    def __init__(self, config: Any) -> None:
        join_process_group()
        super().__init__(config)
