"""What a trace keeps of a judgement: its texts, each cut to a length that a row can afford."""

import json
from collections.abc import Sequence
from typing import Any

from archer.rewards.rules import RewardResult

MAX_TEXT = 1000  # characters of each text that a reward says of a response
MAX_EXTRAS = 32
MAX_SHOWN = 200  # characters of a ground truth, an answer or a reason


def told(
    results: Sequence[RewardResult],  # N
    ground_truths: Sequence[Any],  # N, as in the data
    data_sources: Sequence[str],  # N
) -> dict[str, list[str] | None]:
    """Return the texts of N judgements by their names in a trace; None where nobody said anything."""
    said = [judgement(result) for result in results]
    reasons = [_reason(result) for result in results]
    return {
        "judgement": said if any(said) else None,
        "data_source": [shortened(source) for source in data_sources],
        "ground_truth": [shortened(truth_text(truth)) for truth in ground_truths],
        "extracted_answer": [shortened(result.extracted or "") for result in results],
        "reason": [shortened(reason) for reason in reasons] if any(reasons) else None,
    }


def _reason(result: RewardResult) -> str:
    return result.reason or (f"not judged: {result.failure}" if result.failure else result.detail or "")


def judgement(result: RewardResult) -> str:
    """What a reward said of a response beside its score, as JSON; empty where it said nothing."""
    extra = {
        name: value[:MAX_TEXT] if isinstance(value, str) else value
        for name, value in list(result.extra.items())[:MAX_EXTRAS]
    }
    said = {
        "failure": (result.failure or "")[:MAX_TEXT],
        "detail": (result.detail or "")[:MAX_TEXT],
        "extra": extra,
    }
    said = {name: value for name, value in said.items() if value}
    return json.dumps(said) if said else ""


def truth_text(ground_truth: Any) -> str:
    """The ground truth as text: itself, or the JSON of numbers, lists and records."""
    if isinstance(ground_truth, str):
        return ground_truth
    return "" if ground_truth is None else json.dumps(ground_truth, ensure_ascii=False, default=str)


def shortened(text: str, limit: int = MAX_SHOWN) -> str:
    """A text of at most `limit` characters that any file takes: cut with an ellipsis, no lone surrogates.

    A zero at the end would be lost: that is how NumPy pads texts.
    """
    clean = text.encode(errors="replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"
