"""Rewards: the verdict on each response, by rules, in worker processes that bound what judging may cost.

config.py   the settings `reward.*`
scorer.py   a batch of responses in, results out; overlong shaping
rules/      what a rule is; math, code, a user's function and how it is called
combine.py  several functions for one response
telling.py  what a trace keeps of a judgement
extract.py  the final answer or program of a response
pool.py     worker processes;  worker.py: their inside
math/       when two answers are the same;  code/: a problem's tests;  sandbox/: where programs run
"""

from archer.rewards.config import RewardConfig
from archer.rewards.rules import RewardRequest, RewardResult
from archer.rewards.rules.function import register_reward
from archer.rewards.scorer import RewardCounters, RewardScorer, overlong_penalty

__all__ = [
    "RewardConfig",
    "RewardCounters",
    "RewardRequest",
    "RewardResult",
    "RewardScorer",
    "overlong_penalty",
    "register_reward",
]
