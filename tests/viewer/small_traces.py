"""Small traces whose values the tests know."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab
from archer.trace.writer import TraceWriter

SUM = "∑".encode()
TOKENS = [
    b"The",
    b" answer",
    b" is",
    b" ",
    b"4",
    b"2",
    b"\n",
    b".",
    SUM[:2],
    SUM[2:],
    b" maybe",
    b" so",
    b"<|end|>",
]
VOCAB = Vocab.from_tokens(TOKENS)
TEXT = [0, 1, 2, 3, 4, 5, 6, 11, 8, 9, 10, 7, 0, 1, 12]
"""`The answer is 42⏎ so∑ maybe.The answer<|end|>`, with ∑ over two tokens."""
ROWS, GROUPS = 8, 2


def make_step(seed: int = 0, rows: int = ROWS, **changes: Any) -> TraceStep:
    """Responses of two groups over `TEXT`, cut to different lengths; row 0 is whole and has round values.

    Row 0: entropy 0, 0.25, 0.5, ...; influence from -7 to 7, missing at position 3; position 5 is masked.
    """
    rng = np.random.default_rng(seed)
    width = len(TEXT)
    lengths = np.array([width - row % 4 for row in range(rows)])
    mask = np.arange(width) < lengths[:, None]
    ids = np.tile(np.array(TEXT), (rows, 1))
    entropies = rng.gamma(1.0, 0.5, ids.shape)
    influence = rng.normal(size=ids.shape)
    entropies[0] = np.arange(width) * 0.25
    influence[0] = np.arange(width) - 7.0
    influence[0, 3] = np.nan
    mask[0, 5] = False
    accepted = np.arange(rows) % 2 == 0
    batch: dict[str, Any] = {
        "entropies": entropies,
        "response_mask": mask,
        "responses": ids,
        "response_index": np.arange(rows) + 100,
        "log_probs": -entropies * 0.5,
        "reward": np.where(accepted, 1.0, 0.25),
        "accepted": accepted,
        "group_id": np.arange(rows) // (rows // GROUPS),
        "uid": [f"prompt-{row // (rows // GROUPS)}" for row in range(rows)],
        "prompts": [[0, 1, 2, 3, row // (rows // GROUPS)] for row in range(rows)],
        "sample_index": np.arange(rows) // (rows // GROUPS),
        "influence": influence,
        "advantage": np.where(accepted, 1.0, -1.0)[:, None] * np.ones(ids.shape),
    }
    return TraceStep.from_batch(**(batch | changes))


def write_trace(
    folder: Path, steps: dict[int, TraceStep], kind: Any = "influence", vocab: Vocab | None = VOCAB
) -> Path:
    """A trace folder of one kind."""
    with TraceWriter(folder, kind=kind, metadata={"experiment": folder.parent.name}, vocab=vocab) as writer:
        for step, arrays in steps.items():
            writer.write(step, arrays)
    return folder


def entropy_part(step: TraceStep) -> TraceStep:
    """The same step as the entropy trace has it."""
    held = step.arrays()
    return TraceStep(
        **{name: array for name, array in held.items() if name not in ("influence", "advantage")}
    )


def unpack(buffer: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The inverse of the viewer's `pack`."""
    assert buffer[:4] == b"ARC1"
    (size,) = struct.unpack("<I", buffer[4:8])
    header = json.loads(buffer[8 : 8 + size])
    arrays = {
        name: np.frombuffer(buffer, f"<{code}", count, 8 + size + offset)
        for name, (code, offset, count) in header.pop("arrays").items()
    }
    return header, arrays
