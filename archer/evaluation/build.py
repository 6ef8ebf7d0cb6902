"""Loading of what an evaluation needs, the way training loads it."""

from dataclasses import dataclass, replace

from archer.config.root import TrainConfig
from archer.data.prompts import PromptDataset
from archer.engines.local.device import Compute, set_up
from archer.engines.local.judge import Judge
from archer.engines.local.model import load_policy, load_tokenizer, stop_token_ids
from archer.engines.local.requirements import (
    check_cache,
    check_context,
    check_rewards,
    check_vocabulary,
    load_dataset,
    reward_config,
)
from archer.engines.local.rollout import Rollout, RolloutLimits
from archer.engines.local.validation import validation_sampling
from archer.engines.local.weights import narrow
from archer.evaluation.evaluator import Evaluator
from archer.evaluation.plan import EvalPlan
from archer.rewards.scorer import RewardScorer

NO_LIMIT = 10**9


@dataclass(frozen=True)
class Parts:
    """What one evaluation is made of. `close` it."""

    config: TrainConfig
    compute: Compute
    dataset: PromptDataset
    evaluator: Evaluator
    scorer: RewardScorer
    parameters: int

    def close(self) -> None:
        """End the worker processes of the rewards."""
        self.scorer.close()


def build(plan: EvalPlan) -> Parts:
    """Load tokenizer, prompts and model, cheapest first, so that mistakes show early."""
    config = plan.config
    compute = set_up(config.engine)
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    if plan.fit_prompts:
        config = replace(config, data=replace(config.data, max_prompt_length=NO_LIMIT))
    dataset = load_dataset(config, tokenizer, config.data.val_files, config.data.val_max_samples)
    if plan.fit_prompts:
        longest = max(len(prompt.token_ids) for prompt in dataset)
        config = replace(config, data=replace(config.data, max_prompt_length=longest))
    scorer = RewardScorer(reward_config(config))
    check_rewards(scorer, dataset, "--data")

    options = config.actor_rollout_ref
    model = load_policy(replace(options.model, enable_gradient_checkpointing=False), compute)
    narrow(model, compute)
    check_cache(model)
    check_context(model, config)
    check_vocabulary(model, dataset)
    rollout = Rollout(
        model,
        compute,
        RolloutLimits(
            config.data.max_response_length, options.rollout.max_num_seqs, config.data.max_prompt_length
        ),
        stop_token_ids(model, tokenizer),
        tokenizer.pad_token_id,
        config.engine.compile_decoding,
    )
    overlong = config.reward.reward_kwargs.overlong_buffer_cfg
    judge = Judge(scorer, tokenizer, overlong, config.data.max_response_length)
    evaluator = Evaluator(dataset, rollout, judge, validation_sampling(config))
    return Parts(config, compute, dataset, evaluator, scorer, sum(p.numel() for p in model.parameters()))
