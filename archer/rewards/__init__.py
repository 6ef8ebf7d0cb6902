"""Rewards: math verification, custom functions, the worker pool that bounds them, overlong shaping."""

from archer.rewards.overlong import overlong_penalty
from archer.rewards.registry import register_reward
from archer.rewards.scorer import RewardConfig, RewardCounters, RewardScorer
from archer.rewards.types import RewardRequest, RewardResult

__all__ = [
    "RewardConfig",
    "RewardCounters",
    "RewardRequest",
    "RewardResult",
    "RewardScorer",
    "overlong_penalty",
    "register_reward",
]
