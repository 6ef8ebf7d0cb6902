"""What one traced step holds: array names, dtypes, shapes and the checks that keep them in agreement.

N is the number of responses of the step, L its longest valid response (not the configured maximum).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archer.errors import ArcherError

FORMAT_MAJOR = 2
"""Major 1 is the format of the first Archer traces: no vocabulary, no log-probs, prompts as object arrays."""
FORMAT_VERSION = f"{FORMAT_MAJOR}.0"

TraceKind = Literal["entropy", "influence"]
TRACE_KINDS: tuple[TraceKind, ...] = ("entropy", "influence")

Layout = Literal["token", "row", "flat", "offsets"]
"""Shape of an array: token [N, L], row [N], flat [sum of prompt lengths], offsets [N + 1]."""


@dataclass(frozen=True)
class ArraySpec:
    """Contract of one array in a step file."""

    name: str
    dtype: str  # NumPy dtype, `U` for unicode of any width
    layout: Layout
    required_in: tuple[TraceKind, ...] = TRACE_KINDS  # the traces that a writer must give this array to

    def castable_from(self, dtype: np.dtype) -> bool:
        """Whether values stored as `dtype` may be read as this array without changing their meaning."""
        accepted = {"f": "fiu", "b": "biu", "i": "iu", "U": "U"}[np.dtype(self.dtype).kind]
        return dtype.kind in accepted


ARRAYS: tuple[ArraySpec, ...] = (
    ArraySpec("entropies", "float16", "token"),
    ArraySpec("response_mask", "bool", "token"),
    ArraySpec("responses", "int32", "token"),
    ArraySpec("response_index", "int32", "row"),
    ArraySpec("log_probs", "float16", "token"),
    ArraySpec("reward", "float32", "row"),
    ArraySpec("accepted", "bool", "row"),
    ArraySpec("group_id", "int32", "row"),
    ArraySpec("uid", "U", "row"),
    ArraySpec("prompt_ids", "int32", "flat"),
    ArraySpec("prompt_offsets", "int64", "offsets"),
    ArraySpec("prompt_length", "int32", "row", required_in=()),
    ArraySpec("sample_index", "int32", "row", required_in=()),
    ArraySpec("unjudged", "bool", "row", required_in=()),
    ArraySpec("judgement", "U", "row", required_in=()),
    ArraySpec("influence", "float32", "token", required_in=("influence",)),
    ArraySpec("advantage", "float32", "token", required_in=("influence",)),
)
SPECS: dict[str, ArraySpec] = {spec.name: spec for spec in ARRAYS}
ALWAYS = ("entropies", "response_mask", "responses", "response_index")
"""The arrays that every trace ever written holds."""
OUTSIDE_MASK = {"entropies": 0.0, "log_probs": 0.0, "influence": float("nan"), "advantage": 0.0}
"""What the per-token values are where the mask is off."""


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
            _check_offsets(self.prompt_offsets, self.prompt_ids.size)

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

        def per_row(name: str, value: ArrayLike) -> np.ndarray:
            return np.array(value, dtype=SPECS[name].dtype)

        lengths = np.array([np.size(prompt) for prompt in prompts], dtype=np.int64)
        flat = [np.asarray(prompt, dtype=np.int32).reshape(-1) for prompt in prompts]
        return cls(
            entropies=per_token("entropies", entropies),
            response_mask=kept,
            responses=per_token("responses", responses),
            response_index=per_row("response_index", response_index),
            log_probs=per_token("log_probs", log_probs),
            reward=per_row("reward", reward),
            accepted=per_row("accepted", accepted),
            group_id=per_row("group_id", group_id),
            uid=np.array(list(uid), dtype=np.str_),
            prompt_ids=np.concatenate([np.empty(0, np.int32), *flat]),
            prompt_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            prompt_length=lengths.astype(np.int32),
            sample_index=None if sample_index is None else per_row("sample_index", sample_index),
            unjudged=None if unjudged is None else per_row("unjudged", unjudged),
            judgement=None if judgement is None else np.array(list(judgement), dtype=np.str_),
            influence=None if influence is None else per_token("influence", influence),
            advantage=None if advantage is None else per_token("advantage", advantage),
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


def check_dtype(spec: ArraySpec, dtype: np.dtype) -> None:
    """Refuse an array that does not have its contract dtype."""
    expected = np.dtype(spec.dtype)
    if not (dtype.kind == "U" if expected.kind == "U" else dtype == expected):
        raise ArcherError(f"{spec.name} is {dtype}, expected {spec.dtype}.")


def check_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse shapes that disagree with the [N, L] of `response_mask`, before any data is read."""
    mask = shapes["response_mask"]
    if len(mask) != 2:
        raise ArcherError(f"response_mask must be [N, L], got shape {mask}.")
    rows = mask[0]
    for name, shape in shapes.items():
        layout = SPECS[name].layout
        if layout == "flat":
            agrees, expected = len(shape) == 1, "[any]"
        else:
            wanted = {"token": mask, "row": (rows,), "offsets": (rows + 1,)}[layout]
            agrees, expected = shape == wanted, str(list(wanted))
        if not agrees:
            raise ArcherError(f"{name} has shape {list(shape)}, expected {expected}.")


def _check_offsets(offsets: NDArray[np.int64], total: int) -> None:
    if offsets[0] != 0 or offsets[-1] != total or bool((np.diff(offsets) < 0).any()):
        raise ArcherError(
            f"prompt_offsets must rise from 0 to the {total} tokens of prompt_ids; "
            f"they go from {int(offsets[0])} to {int(offsets[-1])}."
        )
