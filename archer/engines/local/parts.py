"""Everything a training run is made of, put together from its configuration."""

from dataclasses import dataclass, replace
from typing import Any

from archer.config.root import TrainConfig
from archer.data.prompts import PromptDataset
from archer.data.sampler import PromptSampler
from archer.engines.local.checkpoint import Checkpoint
from archer.engines.local.collect import Collector
from archer.engines.local.device import Compute, set_up
from archer.engines.local.judge import Judge
from archer.engines.local.model import load_policy, load_reference, load_tokenizer, stop_token_ids
from archer.engines.local.policy import Policy
from archer.engines.local.requirements import (
    check_cache,
    check_context,
    check_rewards,
    check_vocabulary,
    load_dataset,
    reward_config,
)
from archer.engines.local.rollout import Rollout, RolloutLimits
from archer.engines.local.validation import Validator
from archer.engines.local.weights import SamplingWeights
from archer.rewards.scorer import RewardScorer


@dataclass(frozen=True)
class Parts:
    """The objects of one run."""

    config: TrainConfig
    compute: Compute
    tokenizer: Any
    policy: Policy
    reference: Policy | None
    sampling_weights: SamplingWeights
    scorer: RewardScorer
    collector: Collector
    validator: Validator | None
    total_steps: int


def build(config: TrainConfig, start: Checkpoint | None) -> Parts:
    """Load data, model and rewards. `start` replaces the policy's weights, never the reference's."""
    compute = set_up(config.engine)
    options = config.actor_rollout_ref
    tokenizer = load_tokenizer(options.model)
    train, val = _datasets(config, tokenizer)
    scorer = RewardScorer(reward_config(config))
    check_rewards(scorer, train, "data.train_files")
    check_rewards(scorer, val or (), "data.val_files")

    source = options.model if start is None else replace(options.model, path=str(start.path.resolve()))
    model = load_policy(source, compute)
    policy = Policy(model, compute, options.rollout.temperature)
    reference = None
    if config.needs_reference:
        reference = Policy(load_reference(options.model, compute), compute, options.rollout.temperature)
    sampling_weights = SamplingWeights(model, compute)
    rollout = Rollout(
        sampling_weights.model,
        compute,
        RolloutLimits(
            config.data.max_response_length, options.rollout.max_num_seqs, config.data.max_prompt_length
        ),
        stop_token_ids(model, tokenizer),
        tokenizer.pad_token_id,
        config.engine.compile_decoding,
    )
    check_cache(model)
    check_context(model, config)
    check_vocabulary(model, (*train, *(val or ())))
    overlong = config.reward.reward_kwargs.overlong_buffer_cfg
    judge = Judge(scorer, tokenizer, overlong, config.data.max_response_length)
    sampler = PromptSampler(len(train), config.data.train_batch_size, config.data.shuffle, config.data.seed)
    collector = Collector(config, train, sampler, rollout, judge)
    validator = Validator(config, val, rollout, judge) if val else None
    total = config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch
    return Parts(
        config,
        compute,
        tokenizer,
        policy,
        reference,
        sampling_weights,
        scorer,
        collector,
        validator,
        total,
    )


def _datasets(config: TrainConfig, tokenizer: Any) -> tuple[PromptDataset, PromptDataset | None]:
    data = config.data
    val = load_dataset(config, tokenizer, data.val_files, data.val_max_samples) if data.val_files else None
    if not data.train_files:
        assert val is not None, "the configuration rules ask for one of the two"
        return val, val
    return load_dataset(config, tokenizer, data.train_files, data.train_max_samples), val
