"""All rules, one file a family. A new rule is a function there and its line in that file's RULES."""

from archer.diagnosis.rules import entropy, prompts, responses, rewards, sampler, update
from archer.diagnosis.rules.base import DiagnosisRule

RULES: tuple[DiagnosisRule, ...] = (
    *entropy.RULES,
    *sampler.RULES,
    *responses.RULES,
    *prompts.RULES,
    *rewards.RULES,
    *update.RULES,
)
