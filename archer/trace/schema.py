"""What one traced step holds, checked, and how a batch becomes one.

N is the number of responses of the step, L its longest valid response (not the configured maximum).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archer.errors import ArcherError
from archer.trace.arrays import (
    ALWAYS,
    ARRAYS,
    OUTSIDE_MASK,
    SPECS,
    TraceKind,
    check_dtype,
    check_offsets,
    check_shapes,
)


@dataclass(frozen=True, eq=False)
class TraceStep:
    """The arrays of one step, checked: contract dtypes, shapes that agree, prompt offsets that are offsets.

    Build one from a batch with `from_batch`, which copies. A step handed to a writer belongs to the writer:
    its arrays must not be changed afterwards. Only the first four arrays are in every trace ever written; a
    field is None where the trace does not hold it.
    """

    entropies: NDArray[np.float16]  # [N, L] nats, full distribution at the sampling temperature
    response_mask: NDArray[np.bool_]  # [N, L]
    responses: NDArray[np.int32]  # [N, L] token ids
    response_index: NDArray[np.int32]  # [N] row in the rollout batch
    log_probs: NDArray[np.float16] | None = None  # [N, L]
    reward: NDArray[np.float32] | None = None  # [N]
    accepted: NDArray[np.bool_] | None = None  # [N]
    group_id: NDArray[np.int32] | None = None  # [N]
    uid: NDArray[np.str_] | None = None  # [N]
    prompt_ids: NDArray[np.int32] | None = None  # flat, prompts one after the other
    prompt_offsets: NDArray[np.int64] | None = None  # [N + 1] into prompt_ids
    prompt_length: NDArray[np.int32] | None = None  # [N]
    sample_index: NDArray[np.int32] | None = None  # [N]
    unjudged: NDArray[np.bool_] | None = None  # [N] True: no verdict, `accepted` and `reward` mean nothing
    judgement: NDArray[np.str_] | None = None  # [N] JSON: failure, detail, extra; empty: nothing was said
    data_source: NDArray[np.str_] | None = None  # [N]
    ground_truth: NDArray[np.str_] | None = None  # [N] the answer that the verifier compares with, cut
    extracted_answer: NDArray[np.str_] | None = None  # [N] what it found in the response; empty: nothing
    reason: NDArray[np.str_] | None = None  # [N] why the verdict is what it is
    truncated: NDArray[np.bool_] | None = None  # [N] True: the response hit the length limit
    seed: NDArray[np.int64] | None = None  # [N] the response's sampling seed; -1: none
    rollout_log_probs: NDArray[np.float16] | None = None  # [N, L] as the token was sampled
    ratio: NDArray[np.float16] | None = None  # [N, L] importance ratio of the update's first pass
    clipped: NDArray[np.int8] | None = None  # [N, L] -1: at the low side, 0: not, +1: at the high side
    loss_weight: NDArray[np.float16] | None = None  # [N, L] what multiplies the token's term in the loss
    credit: NDArray[np.float16] | None = None  # [N, L] weight of the token's share in the advantage
    credit_score: NDArray[np.float32] | None = None  # [N, L] what the weight was made from, NaN: no score
    paid: NDArray[np.float16] | None = None  # [N, L] advantage times credit
    influence: NDArray[np.float32] | None = None  # [N, L] NaN outside the mask or where not computed
    advantage: NDArray[np.float32] | None = None  # [N, L]

    def __post_init__(self) -> None:
        held = self.arrays()
        for name in ALWAYS:
            if name not in held:
                raise ArcherError(f"{name} is missing; every step needs it.")
        for name, array in held.items():
            check_dtype(SPECS[name], array.dtype)
        check_shapes({name: array.shape for name, array in held.items()})
        if self.prompt_ids is not None and self.prompt_offsets is not None:
            check_offsets(self.prompt_offsets, self.prompt_ids.size)

    @classmethod
    def from_batch(
        cls,
        *,
        entropies: ArrayLike,  # [N, L']
        response_mask: ArrayLike,  # [N, L']
        responses: ArrayLike,  # [N, L']
        response_index: ArrayLike,  # [N]
        log_probs: ArrayLike,  # [N, L']
        reward: ArrayLike,  # [N]
        accepted: ArrayLike,  # [N]
        group_id: ArrayLike,  # [N]
        uid: Sequence[str],  # N
        prompts: Sequence[ArrayLike],  # N prompts of token ids, no padding
        sample_index: ArrayLike | None = None,  # [N]
        unjudged: ArrayLike | None = None,  # [N]
        judgement: Sequence[str] | None = None,  # N
        data_source: Sequence[str] | None = None,  # N
        ground_truth: Sequence[str] | None = None,  # N
        extracted_answer: Sequence[str] | None = None,  # N
        reason: Sequence[str] | None = None,  # N
        truncated: ArrayLike | None = None,  # [N]
        seed: ArrayLike | None = None,  # [N]
        rollout_log_probs: ArrayLike | None = None,  # [N, L']
        ratio: ArrayLike | None = None,  # [N, L']
        clipped: ArrayLike | None = None,  # [N, L']
        loss_weight: ArrayLike | None = None,  # [N, L']
        credit: ArrayLike | None = None,  # [N, L']
        credit_score: ArrayLike | None = None,  # [N, L']
        paid: ArrayLike | None = None,  # [N, L']
        influence: ArrayLike | None = None,  # [N, L']
        advantage: ArrayLike | None = None,  # [N, L']
    ) -> "TraceStep":
        """Copy a batch of any padded width L' into contract dtypes, cut to the longest valid response.

        Per-token values outside the mask are set to 0 (influence: NaN), so that padding compresses to
        nothing. The caller keeps its buffers.
        """
        mask = np.array(response_mask, dtype=np.bool_)
        if mask.ndim != 2:
            raise ArcherError(f"trace step: response_mask must be [N, L], got shape {mask.shape}.")
        width = int(np.flatnonzero(mask.any(axis=0))[-1]) + 1 if mask.any() else 0
        kept = np.ascontiguousarray(mask[:, :width])

        def per_token(name: str, value: ArrayLike) -> np.ndarray:
            array = np.asarray(value)
            if array.shape != mask.shape:
                raise ArcherError(f"trace step: {name} has shape {array.shape}, response_mask {mask.shape}.")
            with np.errstate(over="ignore"):  # a log-prob below float16's range is written as -inf
                copy = np.array(array[:, :width], dtype=SPECS[name].dtype, order="C")
            if name in OUTSIDE_MASK:
                np.copyto(copy, np.array(OUTSIDE_MASK[name], dtype=copy.dtype), where=~kept)
            return copy

        def per_row(name: str, value: ArrayLike | Sequence[str]) -> np.ndarray:
            if SPECS[name].dtype == "U":  # a list of no texts would be an array of numbers
                return np.array(list(value), dtype=np.str_)  # type: ignore[arg-type]
            return np.array(value, dtype=SPECS[name].dtype)

        lengths = np.array([np.size(prompt) for prompt in prompts], dtype=np.int64)
        flat = [np.asarray(prompt, dtype=np.int32).reshape(-1) for prompt in prompts]
        given: dict[str, Any] = {
            "entropies": entropies,
            "responses": responses,
            "response_index": response_index,
            "log_probs": log_probs,
            "reward": reward,
            "accepted": accepted,
            "group_id": group_id,
            "uid": uid,
            "sample_index": sample_index,
            "unjudged": unjudged,
            "judgement": judgement,
            "data_source": data_source,
            "ground_truth": ground_truth,
            "extracted_answer": extracted_answer,
            "reason": reason,
            "truncated": truncated,
            "seed": seed,
            "rollout_log_probs": rollout_log_probs,
            "ratio": ratio,
            "clipped": clipped,
            "loss_weight": loss_weight,
            "credit": credit,
            "credit_score": credit_score,
            "paid": paid,
            "influence": influence,
            "advantage": advantage,
        }
        taken = {
            name: (per_token if SPECS[name].layout == "token" else per_row)(name, value)
            for name, value in given.items()
            if value is not None
        }
        return cls(
            response_mask=kept,
            prompt_ids=np.concatenate([np.empty(0, np.int32), *flat]),
            prompt_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            prompt_length=lengths.astype(np.int32),
            **taken,
        )

    @property
    def rows(self) -> int:
        """N, the number of responses."""
        return self.response_mask.shape[0]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Valid tokens of each response, [N]."""
        return self.response_mask.sum(axis=1, dtype=np.int64)

    @property
    def judged(self) -> NDArray[np.bool_]:
        """The responses that have a verdict, [N]; all, where the trace does not say."""
        return np.ones(self.rows, dtype=np.bool_) if self.unjudged is None else ~self.unjudged

    def verdict(self, row: int) -> str:
        """`accepted`, `rejected` or `unjudged`; empty where the trace holds no verdicts."""
        if self.accepted is None:
            return ""
        return "unjudged" if not self.judged[row] else "accepted" if self.accepted[row] else "rejected"

    def said(self, row: int) -> dict[str, str]:
        """What the reward said of a response beside its score, by name; nothing where it cannot be read."""
        try:
            told = json.loads(str(self.judgement[row])) if self.judgement is not None else None
        except (ValueError, RecursionError):
            return {}
        if not isinstance(told, dict):
            return {}
        extra = told.pop("extra", None)
        parts: dict[Any, Any] = told | (extra if isinstance(extra, dict) else {})
        return {name: _shown(value) for name, value in parts.items() if isinstance(value, str | int | float)}

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are there, by their name in the step file."""
        values = {field.name: self.__dict__[field.name] for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def prompt(self, row: int) -> NDArray[np.int32] | None:
        """Token ids of a response's prompt, or None where the trace holds no prompts."""
        if self.prompt_ids is None or self.prompt_offsets is None:
            return None
        return self.prompt_ids[self.prompt_offsets[row] : self.prompt_offsets[row + 1]]


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def check_complete(step: TraceStep, kind: TraceKind) -> None:
    """Refuse a step that lacks an array which a trace of this kind must hold."""
    held = step.arrays()
    missing = [spec.name for spec in ARRAYS if kind in spec.required_in and spec.name not in held]
    if missing:
        raise ArcherError(f"{kind} trace: the step lacks {', '.join(missing)}; pass them to from_batch.")
