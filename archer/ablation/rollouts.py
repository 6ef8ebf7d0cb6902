"""The scored tokens of a case, and which of them another case scored too.

Cases of a grid share their seeds. As long as an override changes no sampled token, two cases score the same
responses, and their scores can be compared token by token. That is checked, never assumed: rows are paired by
their place in the rollout batch and must agree in prompt and response, token for token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archer.trace.reader import TraceReader, is_trace
from archer.trace.schema import TraceStep


@dataclass(frozen=True, eq=False)
class ScoredStep:
    """The valid response tokens of one step of one case, responses in the order of the rollout batch."""

    rows: tuple[int, ...]
    """Place of each response in the rollout batch, ascending."""
    tokens: tuple[bytes, ...]
    """Digest of each response's prompt and response tokens."""
    row: NDArray[np.int64]  # [T] place of each token's response
    group: NDArray[np.int64]  # [T] prompt of each token
    scores: NDArray[np.float32]  # [T] NaN where nothing was computed

    @classmethod
    def of(cls, step: TraceStep) -> "ScoredStep":
        """Take what is compared out of a trace."""
        assert step.influence is not None and step.group_id is not None
        order = np.argsort(step.response_index, kind="stable")
        lengths = step.lengths[order]
        places = step.response_index[order].astype(np.int64)
        mask = step.response_mask[order]
        return cls(
            rows=tuple(places.tolist()),
            tokens=tuple(_digest(step, int(row)) for row in order),
            row=np.repeat(places, lengths),
            group=np.repeat(step.group_id[order].astype(np.int64), lengths),
            scores=step.influence[order][mask],
        )


@dataclass(frozen=True, eq=False)
class SharedTokens:
    """Tokens that two cases scored, in the same order."""

    selection: bytes
    """Digest of which tokens these are: where it is equal, the same ranks serve several pairs."""
    scores: tuple[NDArray[np.float32], NDArray[np.float32]]  # [n] each, finite
    group: NDArray[np.int64]  # [n]


def shared_tokens(one: ScoredStep, other: ScoredStep) -> SharedTokens | None:
    """The tokens that both cases scored; None where their rollouts differ or no response is in both."""
    pair = [one, other]
    if one.rows != other.rows:
        common = sorted(set(one.rows) & set(other.rows))
        pair = [_only(step, common) for step in pair]
    if not pair[0].rows or pair[0].tokens != pair[1].tokens:
        return None
    finite = np.isfinite(pair[0].scores) & np.isfinite(pair[1].scores)
    chosen = blake2b(np.array(pair[0].rows).tobytes() + finite.tobytes(), digest_size=16)
    scores = pair[0].scores[finite], pair[1].scores[finite]
    return SharedTokens(chosen.digest(), scores, pair[0].group[finite])


class ScoredRun(Mapping[int, ScoredStep]):
    """The influence trace of a run by step, read when it is asked for; empty where the run has none."""

    def __init__(self, run: Path) -> None:
        folder = run / "influence_trace"
        self._reader = TraceReader(folder) if is_trace(folder) else None
        entries = [] if self._reader is None else self._reader.entries
        self._steps = [entry.step for entry in entries if entry.problem is None]

    def __getitem__(self, step: int) -> ScoredStep:
        if self._reader is None or step not in self._steps:
            raise KeyError(step)
        return ScoredStep.of(self._reader.read(step).arrays)

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def all_scores(self) -> NDArray[np.float32]:
        """The scores of all steps, one after the other, without reading anything else."""
        found = [np.empty(0, np.float32)]
        for step in self._steps:
            assert self._reader is not None
            arrays = self._reader.read_arrays(step, ("influence", "response_mask"))
            found.append(arrays["influence"][arrays["response_mask"]])
        return np.concatenate(found)


def _digest(step: TraceStep, row: int) -> bytes:
    prompt = step.prompt(row)
    digest = blake2b(digest_size=16)
    digest.update(b"" if prompt is None else prompt.tobytes())
    digest.update(b"|")
    digest.update(step.responses[row][step.response_mask[row]].tobytes())
    return digest.digest()


def _only(step: ScoredStep, rows: list[int]) -> ScoredStep:
    wanted = set(rows)
    kept = np.isin(step.row, rows)
    return ScoredStep(
        rows=tuple(rows),
        tokens=tuple(t for r, t in zip(step.rows, step.tokens, strict=True) if r in wanted),
        row=step.row[kept],
        group=step.group[kept],
        scores=step.scores[kept],
    )
