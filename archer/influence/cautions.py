"""Knobs whose values make scores trivial or hard to compare, each with a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from archer.influence.config import PREFIX, InfluenceConfig


def cautions(config: InfluenceConfig, responses: int | None = None) -> Iterator[str]:
    """Yield what to know of scores made with these knobs.

    Args:
        config: the knobs.
        responses: sampled for each prompt, where that is known.
    """
    if responses == 1 and config.accepted_rejected_scope == "per_prompt":
        yield (
            "one response a prompt: no prompt has both accepted and rejected responses, so nothing will be "
            "scored: sample more"
        )
    if config.output_function == "log_prob_reward":
        yield (
            f"{PREFIX}.output_function=log_prob_reward: a response with reward 0 has no gradient, so with "
            "rewards of 0 and 1 every rejected token scores exactly 0 and the contrast has one side; "
            "log_prob compares both"
        )
    if not config.exclude_self_response:
        yield (
            f"{PREFIX}.exclude_self_response=False: a token's own response, and so its verdict, is part of "
            "its score, which separates accepted from rejected tokens even where verdicts are random; set it "
            "to True before judging what scores find"
        )
    elif responses == 2:
        yield (
            f"{PREFIX}.exclude_self_response=True with two responses a prompt: each token is compared with "
            "the other verdict only"
        )
    if config.hessian_mode == "identity" and config.output_function == "training_loss":
        yield (
            f"{PREFIX}.hessian_mode=identity with output_function=training_loss: scores grow with the square "
            "of the loss (its normalisation, gradient accumulation, a loss scaler's factor) and compare only "
            "within a step"
        )
