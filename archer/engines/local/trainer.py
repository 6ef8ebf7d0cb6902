"""A training step of the local engine: rollout, rewards, advantages, update."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs, bound_advantage, judged_advantages
from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.kl import KLController, kl_estimator
from archer.algorithms.masked import penalised_rewards, place_scores
from archer.algorithms.rollout_correction import Threshold, rollout_is_weights
from archer.config.root import TrainConfig
from archer.engines.local.batching import mini_batches
from archer.engines.local.collect import Collected, Collector
from archer.engines.local.credit import LocalCredit
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater, lr_factor
from archer.errors import ArcherError
from archer.generation.batch import Responses, total_lengths
from archer.generation.judge import Judged
from archer.generation.policy import Policy, TokenStats, token_stats_of
from archer.generation.sampling import seed_everything
from archer.runs.checkpoint import Checkpoint
from archer.runs.integrity import refuse_not_finite
from archer.trace.vocab import vocab_from_tokenizer
from archer.tracking import StepResponse
from archer.training.credit import Credit, TokenCredit
from archer.training.loop import StepReport
from archer.training.metrics import Timings, response_metrics, rollout_difference, sampling_metrics, spread
from archer.training.portions import token_budget
from archer.training.responses import best_and_worst
from archer.training.traces import StepRecord, Traces
from archer.training.update_marks import MarkMaker, UpdateView


class Trainer:
    """Runs training steps and holds the state that a checkpoint saves."""

    traces: Traces  # opened once everything else is loaded
    newest: Callable[[], Checkpoint | None] = staticmethod(lambda: None)  # checkpoint that a failure leaves

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        reference: Policy | None,
        collector: Collector,
        total_steps: int,
    ) -> None:
        self.config = config
        self.policy, self.reference, self.collector = policy, reference, collector
        self.step = 0
        self._learnt = False  # whether an update was applied
        self._responses: Sequence[StepResponse] = ()  # of the step under way, those to be shown
        actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
        self._advantage = bound_advantage(algorithm.adv_estimator, algorithm)
        self._kl_control = KLController(algorithm.kl_ctrl)
        self._kl_in_reward = kl_estimator(algorithm.kl_penalty, "algorithm.kl_penalty")
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=actor.optim.lr,
            betas=(actor.optim.betas[0], actor.optim.betas[1]),
            weight_decay=actor.optim.weight_decay,
            fused=True,
        )
        self._lr_factor = lr_factor(actor.optim, total_steps)
        self._marks = MarkMaker(actor, config.data.max_response_length)
        credit = TokenCredit(algorithm.token_credit, config.actor_rollout_ref.rollout.seed)
        vocab = vocab_from_tokenizer(collector.generation.tokenizer) if credit.needs_mistakes else None
        self.credit = LocalCredit(credit, policy, actor, vocab)
        self.recorder = InfluenceRecorder(policy.model, config.trainer.influence_trace)
        if self.recorder.traces(policy.model.get_output_embeddings()):
            policy.run_head_everywhere()
        skips = config.trainer.skip_optimizer_step or config.trainer.influence_trace.skip_optimizer_step
        self._updater = Updater(
            policy,
            self.optimizer,
            actor,
            config.data.max_response_length,
            skips,
            self.recorder,
            config.trainer.max_skipped_updates,
        )
        self.total_steps = total_steps

    def train_step(self) -> StepReport:
        """Run one step: rollout, rewards, advantages, update."""
        self.step += 1
        self._responses = ()
        seed_everything(self.config.actor_rollout_ref.rollout.seed, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.actor_rollout_ref.actor.optim.lr * self._lr_factor(self.step - 1)
        timings = Timings()
        with timings("step"):
            with timings("gen"):
                collected = self.collector.collect(self.step)
                self.collector.generation.rollout.rest()
            metrics = self._learn(collected, timings) if len(collected.judged.responses) else {}
            refuse_not_finite(self.policy.model, self.step, self.newest())
            self._refuse_nothing_learnt(metrics)
            self.collector.generation.rollout.refresh()
        metrics |= sampling_metrics(collected.sampled)
        metrics |= timings.metrics() | self._performance(collected, timings)
        return StepReport(metrics, _warning(collected, metrics), self._responses)

    def state_dict(self) -> dict[str, Any]:
        """Everything besides the weights that the next step depends on."""
        return {
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "data": self.collector.sampler.state_dict(),
            "kl_control": self._kl_control.state_dict(),
            "skipped_in_a_row": self._updater.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint; the weights are loaded with the model."""
        self.step = state["step"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.collector.sampler.load_state_dict(state["data"])
        self._kl_control.load_state_dict(state["kl_control"])
        self._updater.skipped_in_a_row = state.get("skipped_in_a_row", 0)  # older checkpoints have none

    def _refuse_nothing_learnt(self, metrics: dict[str, float]) -> None:
        """Stop at the last step of a run all of whose updates were skipped, rather than call it finished."""
        if "actor/skipped_updates" in metrics and self._updater.skipped_in_a_row == 0:
            self._learnt = True
        if self.step == self.total_steps and not self._learnt and self._updater.skipped_in_a_row:
            raise ArcherError(
                f"No update of this run could be applied: the gradients of all "
                f"{self._updater.skipped_in_a_row} were not finite. Nothing was learnt; lower "
                "actor_rollout_ref.actor.optim.lr, or look at the rewards and the loss for values not finite."
            )

    def _learn(self, collected: Collected, timings: Timings) -> dict[str, float]:
        judged, responses = collected.judged, collected.judged.responses
        actor, algorithm = self.config.actor_rollout_ref.actor, self.config.algorithm
        groups = len(judged.groups.unique())
        on_policy = actor.ppo_epochs == 1 and groups <= actor.ppo_mini_batch_size
        credit = self.credit.step(judged, self.step)
        old: TokenStats | None = None
        corrected = algorithm.rollout_correction.rollout_is is not None
        if not on_policy or algorithm.use_kl_in_reward or corrected:
            with timings("old_log_prob"):
                old = self._forward(self.policy, responses) if credit is None else credit.forward()
        read: TokenStats | None = old  # what credit is made from before the update
        if credit is not None and (self.credit.recorder is not None or not credit.fits_in_update()):
            with timings("credit"):
                if self.credit.recorder is not None:
                    alone = credit.pass_of_its_own()
                    read = alone if old is None else old
                elif old is None:
                    read = credit.forward()
        reference: TokenStats | None = None
        if self.reference is not None:
            with timings("ref"):
                reference = self._forward(self.reference, responses)

        metrics: dict[str, float] = {}
        with timings("adv"):
            token_rewards = place_scores(judged.scores, responses.mask)
            if algorithm.use_kl_in_reward:
                assert old is not None and reference is not None
                token_rewards = self._penalise(token_rewards, responses.mask, old, reference, metrics)
            inputs = AdvantageInputs(token_rewards, responses.mask, judged.groups)
            advantages = judged_advantages(self._advantage, inputs, ~judged.unjudged)
        if credit is not None and read is not None:
            with timings("credit"):
                credit.make_ahead(read, advantages)
        experience = Experience(
            judged=judged,
            advantages=advantages,
            old_log_probs=None if old is None or on_policy else old.log_probs,
            ref_log_probs=reference.log_probs if reference is not None and actor.use_kl_loss else None,
            old_entropy=None if old is None or on_policy else old.entropy,
            rollout_is_weights=self._rollout_weights(judged, old, metrics),
        )
        traced = self.traces.influence.wants(self.step)
        with timings("update_actor"):
            result = self._updater.update(experience, self.step, traced, credit)
        first_pass = TokenStats(result.log_probs, result.entropy)
        seen = first_pass if old is None else old
        with timings("influence_write" if traced else "trace_write"):
            record = None
            shown = self.config.trainer.log_step_responses
            if self.traces.wants(self.step) or shown:
                weighed = None if credit is None else credit.result()
                record = self._record(experience, seen, first_pass, weighed)
                self.traces.write(record, self.recorder.influence, self.recorder.selection.rows)
        if record is not None and shown:
            with timings("step_responses"):
                self._responses = best_and_worst(record, shown, self.collector.generation.tokenizer)
        if traced:
            metrics |= self.recorder.tracer.metrics()
        if credit is not None:
            metrics |= credit.metrics()
        return (
            metrics
            | response_metrics(
                judged.scores,
                token_rewards.sum(-1),
                responses.lengths,
                responses.finished,
                judged.correct,
                ~judged.unjudged,
            )
            | spread("critic/advantages", advantages[judged.loss_mask])
            | spread("prompt_length", torch.tensor([float(len(p.token_ids)) for p in responses.prompts]))
            | result.metrics
            | rollout_difference(responses.log_probs, seen.log_probs, responses.mask)
        )

    def _record(
        self, experience: Experience, seen: TokenStats, first_pass: TokenStats, credit: Credit | None
    ) -> StepRecord:
        judged, responses = experience.judged, experience.responses
        old_entropy, advantages = experience.old_entropy, experience.advantages
        view = UpdateView(
            log_probs=first_pass.log_probs,
            old_log_probs=experience.old_log_probs,
            entropy=first_pass.entropy if old_entropy is None else old_entropy,
            advantages=advantages if credit is None else advantages * credit.weights,
            mask=experience.loss_mask,
            rollout_is_weights=experience.rollout_is_weights,
        )
        actor = self.config.actor_rollout_ref.actor
        marks = self._marks(view, mini_batches(judged.groups, actor, epoch=0, step=self.step))
        return StepRecord(
            step=self.step,
            prompts=[prompt.token_ids for prompt in responses.prompts],
            sample_index=[prompt.index for prompt in responses.prompts],
            groups=judged.groups.tolist(),
            tokens=responses.tokens,
            mask=responses.mask,
            entropy=seen.entropy,
            log_probs=seen.log_probs,
            advantages=advantages,
            scores=judged.scores,
            correct=judged.correct,
            unjudged=judged.unjudged,
            results=judged.results,
            data_sources=[prompt.data_source for prompt in responses.prompts],
            ground_truths=[prompt.ground_truth for prompt in responses.prompts],
            finished=responses.finished,
            seeds=responses.seeds,
            rollout_log_probs=responses.log_probs,
            marks=marks,
            credit=credit,
        )

    def _penalise(
        self,
        token_rewards: Tensor,  # [N, L]
        mask: Tensor,  # [N, L]
        old: TokenStats,
        reference: TokenStats,
        metrics: dict[str, float],
    ) -> Tensor:  # [N, L]
        """Subtract the KL to the reference from the rewards and steer its coefficient."""
        kl = self._kl_in_reward(old.log_probs, reference.log_probs)
        penalised = penalised_rewards(token_rewards, kl, mask, self._kl_control.value)
        current = float(aggregate(kl, mask, "seq-mean-token-mean", LossTotals.of(mask)))
        metrics["actor/reward_kl_penalty"] = current
        metrics["actor/reward_kl_penalty_coeff"] = self._kl_control.value
        self._kl_control.update(current, len(mask))
        return penalised

    def _rollout_weights(
        self, judged: Judged, old: TokenStats | None, metrics: dict[str, float]
    ) -> Tensor | None:  # [N, L]
        """Importance weights for the mismatch of sampler and training, where they are asked for."""
        options = self.config.algorithm.rollout_correction
        if options.rollout_is is None:
            return None
        assert old is not None
        correction = rollout_is_weights(
            old.log_probs,
            judged.responses.log_probs,
            judged.loss_mask,
            options.rollout_is,
            Threshold.parse(options.rollout_is_threshold),
            options.rollout_is_batch_normalize,
        )
        metrics |= {f"rollout_corr/{name}": value for name, value in correction.metrics.items()}
        return correction.weights

    def _forward(self, policy: Policy, responses: Responses) -> TokenStats:
        """Log-probs and entropies of all responses, [N, L] on the CPU."""
        options = self.config.actor_rollout_ref
        budget = options.rollout.log_prob_max_token_len_per_gpu or token_budget(options.actor)
        return token_stats_of(policy, responses, budget)

    def _performance(self, collected: Collected, timings: Timings) -> dict[str, float]:
        responses = collected.judged.responses
        tokens = sum(total_lengths(responses)) if len(responses) else 0
        seconds = timings.seconds["step"]
        return {
            "perf/total_num_tokens": float(tokens),
            "perf/sampled_tokens": float(collected.sampled.tokens),
            "perf/time_per_step": seconds,
            "perf/throughput": collected.sampled.tokens / seconds,
            "perf/max_memory_allocated_gb": self.policy.compute.peak_memory_gb(),
        }


def _warning(collected: Collected, metrics: dict[str, float]) -> str | None:
    skipped = int(metrics.get("actor/skipped_updates", 0))
    notes = collected.sampled.notes
    if skipped:
        notes.append(f"{skipped} updates had a gradient that is not finite and were skipped")
    return "; ".join(notes) or None
