"""Tokens of a whole step: two metrics against each other, and the tokens of a range in order."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.trace.vocab import Vocab, decode_bytes
from archer.viewer.encoding import pack
from archer.viewer.runs import TracedRun
from archer.viewer.steps import StepData

MAX_POINTS = 20_000
"""Points of one plot; of more tokens the extremes and a sample are shown."""
EXTREMES = 500
"""Tokens at each end of each axis that a sample always holds."""
MAX_LISTED = 500
AROUND = 12
"""Tokens of context at each side."""
MAX_CONTEXT = 60  # characters at each side

Order = Literal["ascending", "descending", "size", "position"]


@dataclass(frozen=True)
class Window:
    """A rectangle over two metrics; an open side is infinite."""

    x: str
    y: str
    low: tuple[float, float] = (-np.inf, -np.inf)
    high: tuple[float, float] = (np.inf, np.inf)


def points_packed(data: StepData, x: str, y: str) -> bytes:
    """Tokens that have both metrics: arrays `x`, `y` float32 and `row`, `position` int32.

    Of more than MAX_POINTS the EXTREMES lowest and highest of both axes are kept and the rest is a uniform
    sample, the same one for the same step. The header says how many there are, how many are shown and how
    many valid tokens lack a value.
    """
    across, up = data.metric(x), data.metric(y)
    mask = data.arrays.response_mask
    usable = mask & np.isfinite(across) & np.isfinite(up)
    rows, positions = np.nonzero(usable)
    xs, ys = across[usable].astype(np.float32), up[usable].astype(np.float32)
    chosen = _sample(xs, ys, np.random.default_rng(data.step))
    arrays = {"x": xs, "y": ys, "row": rows.astype(np.int32), "position": positions.astype(np.int32)}
    header = {"total": len(xs), "shown": len(chosen), "without": int(mask.sum()) - len(xs)}
    return pack(header, {name: array[chosen] for name, array in arrays.items()})


def _sample(xs: np.ndarray, ys: np.ndarray, rng: np.random.Generator) -> NDArray[np.int64]:
    if len(xs) <= MAX_POINTS:
        return np.arange(len(xs))
    ends = [order[part] for order in (np.argsort(xs), np.argsort(ys)) for part in _ENDS]
    kept = np.unique(np.concatenate(ends))
    others = np.setdiff1d(np.arange(len(xs)), kept, assume_unique=True)
    return np.sort(np.concatenate([kept, rng.choice(others, MAX_POINTS - len(kept), replace=False)]))


_ENDS = (slice(None, EXTREMES), slice(-EXTREMES, None))


def tokens_json(
    run: TracedRun, data: StepData, metric: str, order: Order, limit: int, window: Window | None = None
) -> dict[str, Any]:
    """Valid tokens with a finite `metric` inside `window`: how many, and the first `limit` in this order."""
    values = data.metric(metric)
    usable = data.arrays.response_mask & np.isfinite(values)
    if window is not None:
        for name, low, high in zip((window.x, window.y), window.low, window.high, strict=True):
            usable &= (data.metric(name) >= low) & (data.metric(name) <= high)
    rows, positions = np.nonzero(usable)
    found = values[usable].astype(np.float64)
    keys = {
        "ascending": found,
        "descending": -found,
        "size": -np.abs(found),
        "position": np.zeros(len(found)),
    }
    if order not in keys:
        raise ArcherError(f"order is {order[:40]!r}, expected {', '.join(keys)}.")
    first = np.argsort(keys[order], kind="stable")[: min(max(limit, 0), MAX_LISTED)]
    vocab, _ = run.vocab()
    listed = [token_json(data, vocab, int(rows[at]), int(positions[at])) for at in first]
    return {"metric": metric, "order": order, "total": len(found), "tokens": listed}


def token_json(
    data: StepData, vocab: Vocab | None, row: int, position: int, end: int | None = None
) -> dict[str, Any]:
    """A token, or those up to `end`, its context and all its metrics (None: no finite value)."""
    end = position + 1 if end is None else end
    span = int(data.spans[row])
    first, last = max(position - AROUND, 0), min(end + AROUND, span)
    ids = data.arrays.responses[row, first:last].tolist()
    pieces = [f"⟨{token}⟩".encode() if vocab is None else vocab.token(token) for token in ids]
    words = decode_bytes(pieces)
    edges = [*words.starts.tolist(), len(words.text)]
    at, to = edges[position - first], edges[end - first]
    metrics = {name: float(array[row, position]) for name, array in data.metrics.items()}
    return {
        "row": row,
        "group": int(data.groups[row]),
        "position": position,
        "id": ids[position - first],
        "verdict": data.arrays.verdict(row) or None,
        "before": words.text[max(at - MAX_CONTEXT, 0) : at],
        "text": words.text[at:to],
        "after": words.text[to : to + MAX_CONTEXT],
        "values": {name: value if np.isfinite(value) else None for name, value in metrics.items()},
    }
