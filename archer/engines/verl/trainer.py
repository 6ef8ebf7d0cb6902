"""verl's synchronous trainer with both traces: what is sampled, captured and written in a step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from numpy.typing import NDArray
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role, need_critic, need_reference_policy
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, register_trainer
from verl.utils.config import validate_config
from verl.utils.debug import marked_timer
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from archer.algorithms.dynamic_sampling import DynamicSampling
from archer.engines.verl.algorithms import register_estimator
from archer.engines.verl.buffer import StepBuffer, group_of
from archer.engines.verl.credit import WEIGHTS, weigh_step
from archer.engines.verl.influence import TracePlan
from archer.engines.verl.metrics import influence_metrics, update_metrics
from archer.engines.verl.order import Order, PortionSize, order_rows
from archer.engines.verl.rows import StepRows
from archer.engines.verl.settings import archer_config
from archer.engines.verl.traced_update import ROW_ID
from archer.engines.verl.translate import TRAINER_MODE, data_parallel_size, generation_size
from archer.engines.verl.validating import ValidatingTrainer
from archer.engines.verl.worker import ArcherCriticWorker, ArcherWorker, RankUpdate
from archer.errors import ArcherError
from archer.generation.sampling import stream
from archer.influence import Group, Selection, select_groups
from archer.trace.vocab import vocab_from_tokenizer
from archer.tracking import StepResponse
from archer.training.credit import Credit, TokenCredit
from archer.training.metrics import sampling_metrics
from archer.training.responses import best_and_worst
from archer.training.traces import prompt_groups
from archer.training.update_marks import MarkMaker

NOTHING = Selection((), 0, 0, 0)


def build_trainer(settings: DictConfig) -> "ArcherTrainer":
    """Check verl's settings by verl's own rules and start every worker."""
    try:
        validate_config(settings, need_reference_policy(settings), need_critic(settings))
    except (AssertionError, ValueError) as error:
        raise ArcherError(f"verl refuses the configuration: {error}") from error
    trainer = ArcherTrainer(settings)
    trainer.init()
    trainer.agent_loop_manager = AgentLoopManagerTQ.create(
        config=settings,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )
    return trainer


@register_trainer(TRAINER_MODE)
class ArcherTrainer(ValidatingTrainer):
    """Runs on the driver: orders responses, plans captures, gathers scores and writes both traces."""

    def __init__(self, config: DictConfig) -> None:
        register_estimator(archer_config(config.trainer))
        super().__init__(config)
        actor, data = self.settings.actor_rollout_ref.actor, self.settings.data
        self._marks = MarkMaker(actor, data.max_response_length)
        self.rows = StepRows((), (), ())
        self.order = Order([], [], frozenset())
        self.selection = NOTHING
        self.updates: Sequence[RankUpdate] = ()
        self.responses: list[StepResponse] = []  # of the last step, those to be shown
        seed = self.settings.actor_rollout_ref.rollout.seed
        self.credit = TokenCredit(self.settings.algorithm.token_credit, seed)
        self.weighed: Credit | None = None  # of the step under way
        self._scores: dict[int, NDArray[np.float32]] | None = None  # influence that the weights are made from
        self.prev_step_profile = self.curr_step_profile = self.next_step_profile = False

    def check_workers(self) -> None:
        """Raise Ray's error when some worker process is dead."""
        actors = [
            *self.actor_rollout_wg.workers,
            *self.agent_loop_manager.agent_loop_workers,
            *self.reward_loop_manager.reward_loop_workers,
            *(server for replica in self.llm_server_manager.get_replicas() for server in replica.servers),
        ]
        done, _ = ray.wait(
            [actor.__ray_ready__.remote() for actor in actors], num_returns=len(actors), timeout=2.0
        )
        ray.get(done)

    def train_step(self) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Run one step up to the update of the weights; the rollout still has the old ones."""
        self.timing_raw: dict[str, float] = {}
        metrics: dict[str, Any] = {}
        self._start_profiling()
        batch = self.step(metrics, self.timing_raw)
        self._stop_profiling()
        return batch, metrics

    def finish_step(self, batch: KVBatchMeta, metrics: dict[str, Any], seconds: float) -> dict[str, float]:
        """Give the rollout the new weights and return the step's remaining metrics."""
        self.on_step_end()
        self.timing_raw["step"] = seconds
        found: dict[str, Any] = dict(metrics)
        epoch = (self.global_steps - 1) // max(1, self.steps_per_epoch)
        self._compute_metrics(batch, found, self.timing_raw, self.global_steps, epoch)
        step_metrics = self.rows.metrics(
            self.rows.rewards() if self.settings.algorithm.use_kl_in_reward else None
        )
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        # some of verl's names have other meanings there: responses cut off are those as long as the longest
        found |= step_metrics
        found["perf/sampled_tokens"] = self.replay_buffer.sampled.tokens
        found["perf/max_memory_allocated_gb"] = found.get("actor/perf/max_memory_allocated_gb", 0.0)
        return {name: float(value) for name, value in found.items()}

    @property
    def warning(self) -> str | None:
        """What the user should know about the step."""
        failed = len(set(self.rows.groups)) * self.settings.actor_rollout_ref.rollout.n - len(self.rows)
        notes = self.replay_buffer.sampled.notes
        if failed:
            notes.append(f"{failed} responses could not be sampled and are missing")
        skipped = max((update.skipped for update in self.updates), default=0)
        if skipped:
            notes.append(f"{skipped} updates had a gradient that is not finite and were skipped")
        return "; ".join(notes) or None

    def _build_replay_buffer(self) -> StepBuffer:
        self.trainer_mode = "sync"  # verl takes any name that it does not know for an asynchronous trainer
        sampler = self.config.trainer.v1.sampler
        filtering = self.settings.algorithm.filter_groups
        wanted = self.settings.data.train_batch_size
        return StepBuffer(
            filtering=DynamicSampling(wanted, filtering.max_num_gen_batches) if filtering.enable else None,
            generation_size=generation_size(self.settings),
            check=self.check_workers,
            reward=self.settings.reward,
            trainer_mode=self.trainer_mode,
            trainer_config=self.config.trainer.v1.sync,
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
            refill_fn=self._add_prompts_to_generate,
        )

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(ArcherWorker)
        if Role.Critic in self.role_worker_mapping:
            self.role_worker_mapping[Role.Critic] = ray.remote(ArcherCriticWorker)

    def prepare_step(self) -> dict[str, Any]:
        """Hand out the step's first prompts."""
        self._add_prompts_to_generate(generation_size(self.settings))
        return {}

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **_: Any) -> KVBatchMeta:
        """Order the step's responses: whole groups in each mini-batch, like shares for all that train.

        verl deals a batch out to data-parallel ranks: with Ulysses several devices are one of them.
        """
        devices = data_parallel_size(self.settings)
        actor = self.settings.actor_rollout_ref.actor
        rows = actor.ppo_mini_batch_size * self.settings.actor_rollout_ref.rollout.n
        batch = upsample_batch_to_divisible_size(
            batch, self._get_required_batch_multiple(devices), self.tokenizer.eos_token_id
        )
        self.rows = StepRows.of(batch, self.replay_buffer.judged).leave_out_unjudged()
        numbers = self.rows.numbers(batch)
        batch.reorder(sorted(range(len(numbers)), key=numbers.__getitem__))
        groups = [group_of(key) for key in batch.keys]
        lengths = [tag["seq_len"] for tag in batch.tags]
        shuffle = self._permutation if actor.shuffle else None
        portion = self._portion_size(lengths)
        self.order = order_rows(groups, lengths, rows, devices, _balance, shuffle, portion)
        batch.reorder(self.order.rows)
        fields = TensorDict({ROW_ID: torch.tensor(self.order.rows)}, batch_size=len(batch.keys))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute log-probs and entropies; the head's influence comes out of the same forward."""
        self.weighed, self._scores = None, None
        if self._credit_by != "head":
            return super()._compute_old_log_prob(batch, metrics=metrics)
        groups = self._whole_groups()
        self.actor_rollout_wg.begin_head(frozenset(row for group in groups for row in group.rows))
        batch = super()._compute_old_log_prob(batch, metrics=metrics)
        self._scores = _merged(self.actor_rollout_wg.score_head(groups))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute advantages and, where tokens are weighed, what multiplies them."""
        batch = super()._compute_advantage(batch, metrics=metrics)
        if self.credit.acts_at(self.global_steps):
            with marked_timer("credit", self.timing_raw):
                if self._credit_by == "modules":
                    self._scores = self._influence_for_credit(batch)
                metrics.update(self._weigh(batch))
        return batch

    @property
    def _credit_by(self) -> str:
        """What the influence is that this step's weights are made from: head, modules, or none."""
        scores = self.credit.scores
        return scores.of if scores is not None and self.credit.acts_at(self.global_steps) else ""

    def _whole_groups(self) -> tuple[Group, ...]:
        """The groups with both verdicts, but for those that did not fit into one mini-batch."""
        split = self.order.split
        whole = [g for g in self._prompt_groups() if not split & {self._uid(g.rows[0])}]
        return select_groups(whole, 0).groups

    def _influence_for_credit(self, batch: KVBatchMeta) -> dict[int, NDArray[np.float32]]:
        """Have the workers run an update that is none, once over all responses."""
        self.actor_rollout_wg.begin_credit(TracePlan.of(self.order.mini_batches, self._whole_groups(), {}))
        actor = self.config.actor_rollout_ref.actor
        epochs, actor.ppo_epochs = actor.ppo_epochs, 1
        try:
            super()._update_actor(batch, metrics={})
        finally:
            actor.ppo_epochs = epochs
        return _merged([trace.scores for trace in self.actor_rollout_wg.finish_credit()])

    def _weigh(self, batch: KVBatchMeta) -> dict[str, float]:
        """Make the weights and hand them to the queue; rows that fill up a batch weigh nothing."""
        weighed, metrics = weigh_step(
            self.credit,
            self.global_steps,
            self.rows.credit_data(),
            torch.tensor(self.rows.correct),
            torch.tensor(self.rows.unjudged),
            self._scores,
            self._mistakes() if self.credit.needs_mistakes else None,
        )
        self.weighed = weighed
        lengths = (
            tq.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"]
            )["response_mask"]
            .offsets()
            .diff()
        )
        number = {key: row for row, key in enumerate(self.rows.keys)}
        lines = [
            weighed.weights[number[key], :length] if key in number else torch.zeros(length)
            for key, length in zip(batch.keys, lengths.tolist(), strict=True)
        ]
        fields = {WEIGHTS: torch.nested.as_nested_tensor(lines, layout=torch.jagged)}
        tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(fields, batch_size=len(batch.keys)),
        )
        return metrics

    def _mistakes(self) -> torch.Tensor:
        prompts = {prompt.index: prompt for prompt in self.train_dataset.prompts}
        return self.rows.first_mistakes(prompts, vocab_from_tokenizer(self.tokenizer))

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.actor_rollout_wg.begin_update(self._plan(), self.traces.wants(self.global_steps))
        batch = super()._update_actor(batch, metrics=metrics)
        self.updates = self.actor_rollout_wg.finish_update()
        epochs = self.settings.actor_rollout_ref.actor.ppo_epochs
        metrics.update(update_metrics(self.updates, epochs * len(self.order.mini_batches)))
        if self.selection is not NOTHING:
            metrics.update(influence_metrics(self.updates, self.selection))
            metrics["influence_trace/debug_split_groups"] = float(len(self.order.split))
        return batch

    def _step_once(
        self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int
    ) -> KVBatchMeta:
        self.updates, self.selection = (), NOTHING
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        metrics.update(sampling_metrics(self.replay_buffer.sampled))
        wanted = self.settings.actor_rollout_ref.rollout.n * len(set(self.rows.groups))
        metrics["rollout/failed_responses"] = float(wanted - len(self.rows))
        with marked_timer("influence_write" if self.selection is not NOTHING else "trace_write", timing_raw):
            self._write_traces()
        return batch

    def _plan(self) -> TracePlan:
        """Choose the groups whose influence is traced in this step."""
        knobs = self.settings.trainer.influence_trace
        if not self._traces_influence:
            return TracePlan()
        split = self.order.split
        whole = [g for g in self._prompt_groups() if not split & {self._uid(g.rows[0])}]
        self.selection = select_groups(whole, knobs.max_prompts_per_step)
        rewards = {row: judged.score for row, judged in enumerate(self.rows.judged)}
        return TracePlan.of(self.order.mini_batches, self.selection.groups, rewards)

    def _prompt_groups(self) -> list[Group]:
        return prompt_groups(self.rows.groups, self.rows.correct, self.rows.unjudged)

    @property
    def _traces_influence(self) -> bool:
        return self.traces.influence.wants(self.global_steps)

    def _portion_size(self, lengths: list[int]) -> PortionSize | None:
        """None where nothing is captured in a backward, or all groups are compared with each other."""
        knobs = self.settings.trainer.influence_trace
        credited = self._credit_by == "modules"
        if not self._traces_influence and not credited:
            return None
        if self._traces_influence and knobs.accepted_rejected_scope != "per_prompt":
            return None
        most = 0 if credited else knobs.max_prompts_per_step
        traced = frozenset(select_groups(self._prompt_groups(), most).rows)
        actor = self.settings.actor_rollout_ref.actor
        return PortionSize.of(actor, data_parallel_size(self.settings), lengths, traced)

    def _write_traces(self) -> None:
        step, traced = self.global_steps, self.selection is not NOTHING
        shown = self.settings.trainer.log_step_responses
        self.responses = []
        if not self.traces.wants(step) and not traced and not shown:
            return
        record = self.rows.record(step, self.updates, self.order.mini_batches, self._marks, self.weighed)
        if shown:
            with marked_timer("step_responses", self.timing_raw):
                self.responses = best_and_worst(record, shown, self.tokenizer)
        influence = torch.full(record.mask.shape, torch.nan)
        for update in self.updates:
            for row, scores in update.trace.scores.items():
                influence[row, : len(scores)] = torch.tensor(scores)
        self.traces.write(record, influence if traced else None, self.selection.rows)

    def _uid(self, row: int) -> str:
        return group_of(self.rows.keys[row])

    def _permutation(self, size: int) -> list[int]:
        seed = self.settings.actor_rollout_ref.actor.data_loader_seed
        generator = stream(torch.device("cpu"), seed, "mini-batches", self.global_steps)
        return torch.randperm(size, generator=generator).tolist()


def _merged(found: Sequence[Mapping[int, NDArray[np.float32]]]) -> dict[int, NDArray[np.float32]]:
    """The scores of all ranks; each has those of its own rows."""
    return {row: values for scores in found for row, values in scores.items()}


def _balance(lengths: Sequence[int], parts: int) -> list[list[int]]:
    workload = calculate_workload(torch.tensor(lengths, dtype=torch.int64))
    return get_seqlen_balanced_partitions(workload, k_partitions=parts, equal_size=True)
