"""The arrays that a step file may hold: names, dtypes, shapes, and the checks of one against the others.

N is the number of responses of the step, L its longest valid response (not the configured maximum).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError

FORMAT_MAJOR = 2
"""Major 1 is the format of the first Archer traces: no vocabulary, no log-probs, prompts as object arrays."""
FORMAT_VERSION = f"{FORMAT_MAJOR}.1"
"""2.1 adds arrays, and influence traces that take those of the entropy trace beside them."""

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
    ArraySpec("data_source", "U", "row", required_in=()),
    ArraySpec("ground_truth", "U", "row", required_in=()),
    ArraySpec("extracted_answer", "U", "row", required_in=()),
    ArraySpec("reason", "U", "row", required_in=()),
    ArraySpec("truncated", "bool", "row", required_in=()),
    ArraySpec("seed", "int64", "row", required_in=()),
    ArraySpec("rollout_log_probs", "float16", "token", required_in=()),
    ArraySpec("ratio", "float16", "token", required_in=()),
    ArraySpec("clipped", "int8", "token", required_in=()),
    ArraySpec("loss_weight", "float16", "token", required_in=()),
    ArraySpec("credit", "float16", "token", required_in=()),
    ArraySpec("credit_score", "float32", "token", required_in=()),
    ArraySpec("paid", "float16", "token", required_in=()),
    ArraySpec("influence", "float32", "token", required_in=("influence",)),
    ArraySpec("advantage", "float32", "token", required_in=("influence",)),
)
SPECS: dict[str, ArraySpec] = {spec.name: spec for spec in ARRAYS}
ALWAYS = ("entropies", "response_mask", "responses", "response_index")
"""The arrays that every trace ever written holds."""
OUTSIDE_MASK = {
    "entropies": 0.0,
    "log_probs": 0.0,
    "rollout_log_probs": 0.0,
    "ratio": 0.0,
    "clipped": 0.0,
    "loss_weight": 0.0,
    "credit": 0.0,
    "credit_score": float("nan"),
    "paid": 0.0,
    "influence": float("nan"),
    "advantage": 0.0,
}
"""What the per-token values are where the mask is off."""


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


def check_offsets(offsets: NDArray[np.int64], total: int) -> None:
    """Refuse prompt offsets that do not rise from 0 to the number of prompt tokens."""
    if offsets[0] != 0 or offsets[-1] != total or bool((np.diff(offsets) < 0).any()):
        raise ArcherError(
            f"prompt_offsets must rise from 0 to the {total} tokens of prompt_ids; "
            f"they go from {int(offsets[0])} to {int(offsets[-1])}."
        )
