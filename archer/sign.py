"""What the sign of an influence score means: told in one sentence, here and nowhere else."""

_WITH = "these gradients carry the advantage's sign already and the contrast applies it a second time"

_MEANINGS = {
    "log_prob": (
        "raising this token's probability also raises that of the accepted responses and lowers that of the "
        "rejected ones it is compared with",
        "",
    ),
    "log_prob_advantage": (
        "the update at this token goes the way of the other responses' updates, accepted and rejected alike",
        f"It does not read 'towards the accepted': {_WITH} (output_function=log_prob reads so).",
    ),
    "log_prob_reward": (
        "this token's gradient agrees more with those of the accepted responses than with those of the "
        "rejected ones, each times its reward",
        "Responses with reward 0 have no gradient and score exactly 0.",
    ),
}
_MEANINGS["training_loss"] = _MEANINGS["log_prob_advantage"]
_UNKNOWN = (
    "this token's gradient agrees more with those of the accepted responses than with those of the rejected "
    "ones it is compared with",
    "",
)


def meaning_of_sign(
    output_function: str | None, positive: str = "Positive", negative: str = "negative"
) -> str:
    """Return how to read scores of an objective (None: not known); `positive` may be a colour."""
    meaning, warning = _UNKNOWN if output_function is None else _MEANINGS.get(output_function, _UNKNOWN)
    return f"{positive}: {meaning}; {negative}: the opposite.{f' {warning}' if warning else ''}"
