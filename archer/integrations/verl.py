"""Traces and token influence in a verl trainer of your own; rewards, losses and settings stay verl's.

    from archer.integrations.verl import ArcherVerlMixin, Tracing, run_main

    class Traced(ArcherVerlMixin, MyTrainer):       # MyTrainer: any subclass of verl's PPOTrainerSync
        archer = Tracing(output_dir="runs/mine")

    run_main(Traced)                                # verl's own `main_ppo`, with its overrides

The driver orders responses (whole prompts in each mini-batch, like shares for all ranks), numbers them and
writes both traces; the actor's workers read influence out of verl's real backward, on one rank or many.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.engine_workers import ActorRolloutRefWorker

import archer.engines.verl.plugin  # noqa: F401  (puts the traced engine in the place of verl's, in this process)
from archer.engines.verl.buffer import group_of
from archer.engines.verl.cluster import join_process_group
from archer.engines.verl.influence import RankTrace, TracePlan
from archer.engines.verl.metrics import LARGEST
from archer.engines.verl.order import Order, order_rows
from archer.engines.verl.traced_update import ROW_ID
from archer.engines.verl.versions import check_internals, check_versions
from archer.errors import ArcherError
from archer.influence import InfluenceConfig, Selection, groups_from, select_groups
from archer.integrations.folder import TraceFolder
from archer.integrations.options import READING, Tracing
from archer.integrations.verl_rows import VerlStep, verl_step

__all__ = ["READING", "ArcherActorWorker", "ArcherVerlMixin", "ArcherWorkerMixin", "Tracing", "run_main"]


class ArcherWorkerMixin:
    """To be put before verl's ActorRolloutRefWorker, or yours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        join_process_group()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def archer_trace(self, config: InfluenceConfig) -> str:
        """Capture influence from now on; says what is traced."""
        recorder = self.actor.engine.trace(config)  # type: ignore[attr-defined]
        return recorder.tracer.describe()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def archer_begin(self, plan: TracePlan) -> None:
        """Before `update_actor`: which responses are traced."""
        self.actor.engine.recorder.begin(plan)  # type: ignore[attr-defined]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def archer_finish(self) -> RankTrace:
        """After `update_actor`: the scores of the rows that were captured here."""
        return self.actor.engine.recorder.finish()  # type: ignore[attr-defined]


class ArcherActorWorker(ArcherWorkerMixin, ActorRolloutRefWorker):
    """verl's worker of the actor, traced."""


class ArcherVerlMixin:
    """To be put before a subclass of verl's PPOTrainerSync.

    `archer` says what is traced, `archer_worker` is the worker of the actor: with one of your own,
    `class MyTraced(ArcherWorkerMixin, MyWorker)`.
    """

    archer: ClassVar[Tracing] = Tracing()
    archer_worker: ClassVar[type] = ArcherActorWorker

    def __init__(self, config: Any) -> None:
        if self.archer.credit.mode != "none":
            raise ArcherError(
                "token credit multiplies advantages inside a loss, and this one is verl's: leave credit out"
            )
        check_internals(check_versions(str(config.actor_rollout_ref.rollout.name))["verl"])
        super().__init__(config)  # type: ignore[call-arg]
        self._order = Order([], [], frozenset())
        self._step_rows: VerlStep | None = None
        self._folder: TraceFolder | None = None

    def archer_verdicts(self, scores: Sequence[float], infos: Sequence[dict[str, Any]]) -> list[bool | None]:
        """Which responses are right: `acc` of the reward's extra information, or a score above the threshold.

        Override it where your reward says it in another way; None is a response without a verdict.
        """
        above = self.archer.accepted_above
        return [
            bool(info["acc"]) if "acc" in info else score > above
            for score, info in zip(scores, infos, strict=True)
        ]

    def on_train_begin(self) -> None:
        """Say what is traced, and open the traces."""
        super().on_train_begin()  # type: ignore[misc]
        options, config = self.archer, self.config  # type: ignore[attr-defined]
        if options.influence is not None:
            print(self.actor_rollout_wg.archer_trace(options.influence)[0], flush=True)  # type: ignore[attr-defined]
        folder = options.output_dir or config.trainer.default_local_dir
        self._folder = TraceFolder(
            Path(folder),
            options.write_every if options.entropy_trace else 0,
            options.influence,
            self.tokenizer,  # type: ignore[attr-defined]
            {
                "project": str(config.trainer.project_name),
                "experiment": str(config.trainer.experiment_name),
                "model": str(config.actor_rollout_ref.model.path),
                "temperature": float(config.actor_rollout_ref.rollout.temperature),
                "trainer": "verl",
            },
            max(0, self.global_steps - 1),  # type: ignore[attr-defined]
        )

    def on_train_end(self) -> None:
        """Write what is in flight."""
        super().on_train_end()  # type: ignore[misc]
        if self._folder is not None:
            self._folder.close()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # type: ignore[misc]
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:  # type: ignore[attr-defined]
                self.role_worker_mapping[role] = ray.remote(self.archer_worker)  # type: ignore[attr-defined]

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **_: Any) -> KVBatchMeta:
        """Order and number the responses: verl's own order splits prompts over mini-batches."""
        worker_group = self.actor_rollout_wg  # type: ignore[attr-defined]
        if "actor" not in worker_group._dispatch_info:
            worker_group._dispatch_info["actor"] = worker_group._query_dispatch_info("actor")
        devices = max(worker_group._dispatch_info["actor"]) + 1
        settings = self.config.actor_rollout_ref  # type: ignore[attr-defined]
        if settings.actor.shuffle:
            raise ArcherError(
                "actor_rollout_ref.actor.shuffle=True deals the responses of a prompt to different optimizer "
                "steps, in which they cannot be compared: set it to False"
            )
        multiple = self._get_required_batch_multiple(devices)  # type: ignore[attr-defined]
        batch = upsample_batch_to_divisible_size(batch, multiple, self.tokenizer.eos_token_id)  # type: ignore[attr-defined]
        groups = [group_of(key) for key in batch.keys]
        lengths = [tag["seq_len"] for tag in batch.tags]
        rows = settings.actor.ppo_mini_batch_size * settings.rollout.n
        self._order = order_rows(groups, lengths, rows, devices, _balance)
        self._step_rows = VerlStep(tuple(batch.keys), tuple(batch.tags), batch.partition_id)
        batch.reorder(self._order.rows)
        fields = TensorDict({ROW_ID: torch.tensor(self._order.rows)}, batch_size=len(batch.keys))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        rows, folder, influence = self._step_rows, self._folder, self.archer.influence
        assert rows is not None and folder is not None
        step = self.global_steps  # type: ignore[attr-defined]
        if not folder.entropy.wants(step) and not folder.influence.wants(step):
            return super()._update_actor(batch, metrics)  # type: ignore[misc]
        rows = rows.judged(self.archer_verdicts)
        selection = Selection((), 0, 0, 0)
        traces: list[RankTrace] = []
        if influence is not None and folder.influence.wants(step):
            known = [row for row in range(len(rows.keys)) if rows.accepted[row] is not None]
            groups = groups_from(
                [group_of(rows.keys[row]) for row in known], [rows.accepted[row] for row in known], known
            )
            whole = [group for group in groups if group.uid not in self._order.split]
            selection = select_groups(whole, influence.max_prompts_per_step)
            plan = TracePlan.of(self._order.mini_batches, selection.groups, dict(enumerate(rows.scores)))
            self.actor_rollout_wg.archer_begin(plan)  # type: ignore[attr-defined]
        batch = super()._update_actor(batch, metrics)  # type: ignore[misc]
        if influence is not None and folder.influence.wants(step):
            traces = self.actor_rollout_wg.archer_finish()  # type: ignore[attr-defined]
            metrics.update(_over_ranks(traces, selection))
        scores = {row: line for trace in traces for row, line in trace.scores.items()}
        longest, eos = self.config.data.max_response_length, self.tokenizer.eos_token_id  # type: ignore[attr-defined]
        folder.write(verl_step(step, rows, scores, selection.rows, longest, eos))
        return batch


def run_main(trainer: type) -> None:
    """verl's own `main_ppo`, reading the command line as ever, with this trainer in the place of `sync`."""
    from verl.trainer import main_ppo

    stock: Any = main_ppo.TaskRunnerV1
    base: Any = stock.__ray_metadata__.modified_class

    class Runner(base):
        def run(self, config: Any) -> None:
            from verl.trainer.ppo.v1 import trainer_base

            trainer_base.TRAINER_REGISTRY["sync"] = trainer
            super().run(config)

    main_ppo.TaskRunnerV1 = ray.remote(Runner)
    main_ppo.main()


def _balance(lengths: Sequence[int], parts: int) -> list[list[int]]:
    workload = calculate_workload(torch.tensor(lengths, dtype=torch.int64))
    return get_seqlen_balanced_partitions(workload, k_partitions=parts, equal_size=True)


def _over_ranks(traces: Sequence[RankTrace], selection: Selection) -> dict[str, float]:
    """Counts of all ranks together, times of the slowest."""
    found: dict[str, float] = {}
    for trace in traces:
        for name, value in trace.metrics.items():
            before = found.get(name, 0.0)
            found[name] = max(before, value) if name.startswith(LARGEST) else before + value
    return found | {
        "influence_trace/selected_prompts": float(len(selection.groups)),
        "influence_trace/selected_responses": float(len(selection.rows)),
    }
