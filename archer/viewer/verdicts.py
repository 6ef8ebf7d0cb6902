"""What a trace says of each response beside its score: answers, reasons, where it comes from."""

from typing import Any

import numpy as np

from archer.trace.schema import TraceStep

MAX_TEXT = 2000  # characters
TEXTS = ("ground_truth", "extracted_answer", "reason", "data_source")


def response_facts(arrays: TraceStep) -> dict[str, list[Any] | None]:
    """One list over the responses per fact, None where the trace does not hold it."""
    held = arrays.arrays()
    facts: dict[str, list[Any] | None] = {name: _texts(held.get(name)) for name in TEXTS}
    truncated, seed = held.get("truncated"), held.get("seed")
    facts["truncated"] = None if truncated is None else truncated.tolist()
    facts["seed"] = None if seed is None else [str(value) for value in seed]  # 64 bits; a browser keeps 53
    return facts


def _texts(values: np.ndarray | None) -> list[str] | None:
    return None if values is None else [str(value)[:MAX_TEXT] for value in values]
