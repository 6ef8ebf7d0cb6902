"""The best and worst responses of a step, as the console and the trackers show them.

Chosen by the reward that was trained on. Rewards are often 0 or 1, so that many responses tie: of equal ones
those of prompts not yet shown come first, and then the first of the step. Only the chosen few are decoded.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from archer.errors import masked
from archer.tracking import StepResponse
from archer.training.traces import StepRecord


def best_and_worst(record: StepRecord, count: int, tokenizer: Any) -> list[StepResponse]:
    """Return `count` of each, the best ones from the top and the worst from the bottom; no response twice.

    Responses without a verdict have no reward to be ranked by and are left out.
    """
    scores = record.scores.tolist()
    judged = [row for row, unjudged in enumerate(record.unjudged.tolist()) if not unjudged]
    best = _leading(judged, [-score for score in scores], record.groups, count)
    left = sorted(set(judged) - set(best))
    worst = _leading(left, scores, record.groups, count)
    rows = best + worst
    if not rows:
        return []
    arrays = record.trace_step(rows, None)

    def text(token_ids: np.ndarray | None) -> str:
        return "" if token_ids is None else masked(tokenizer.decode(token_ids, skip_special_tokens=True))

    responses = []
    for place in range(len(rows)):
        valid = arrays.response_mask[place]
        entropy = arrays.entropies[place][valid].astype(np.float64)
        mean = float(entropy.mean()) if entropy.size and np.isfinite(entropy).all() else None
        told = arrays.said(place)
        reason = None if arrays.reason is None else str(arrays.reason[place])
        truth = None if arrays.ground_truth is None else str(arrays.ground_truth[place])
        responses.append(
            StepResponse(
                step=record.step,
                rank="best" if place < len(best) else "worst",
                prompt=text(arrays.prompt(place)),
                response=text(arrays.responses[place][valid]),
                reward=scores[rows[place]],
                verdict=arrays.verdict(place),
                length=int(valid.sum()),
                mean_entropy=mean,
                ground_truth=_known(truth),
                reason=_known(reason or told.get("detail")),
            )
        )
    return responses


def _leading(rows: Sequence[int], keys: Sequence[float], groups: Sequence[int], count: int) -> list[int]:
    """The `count` rows with the lowest keys [N]; of equal ones, those of groups not yet chosen first."""
    seen: dict[tuple[float, int], int] = {}
    order = []
    for row in rows:
        tie = (keys[row], groups[row])
        order.append((keys[row], seen.get(tie, 0), row))
        seen[tie] = seen.get(tie, 0) + 1
    return [row for _, _, row in sorted(order)[:count]]


def _known(text: str | None) -> str | None:
    return masked(text) if text else None
