"""Cases out of a trace on disk: rejected responses with a false equation, and the values the trace holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.trace.reader import TRACE_FOLDERS, LoadedStep, StepProblem, TraceReader, find_traces
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab
from archer.verify.equations import numbers
from archer.verify.localisation import MistakeCase, label_of


@dataclass(frozen=True)
class TracedCases:
    """The cases of a trace and what they were found among."""

    cases: tuple[MistakeCase, ...]
    folder: Path
    steps: int
    responses: int
    rejected: int
    false: int
    """Rejected responses with a false equation; those without scores are no cases."""
    problems: tuple[str, ...]


def cases_of_trace(path: Path, seed: int) -> TracedCases:
    """Every rejected response with a false equation.

    path: a trace, or a run's folder, whose influence trace is taken where it has one
    """
    folder = _folder(path)
    reader = TraceReader(folder)
    vocab = reader.vocab
    if vocab is None:
        raise ArcherError(
            f"{folder} has no vocab.npz: without it, its tokens are no text that could be read."
        )
    generator = torch.Generator().manual_seed(seed)
    cases: list[MistakeCase] = []
    problems: list[str] = []
    steps = responses = rejected = false = 0
    for loaded in reader:
        if isinstance(loaded, StepProblem):
            problems.append(str(loaded))
            continue
        verdicts = _rejected(loaded, folder)
        steps, responses, rejected = steps + 1, responses + len(verdicts), rejected + int(verdicts.sum())
        written = _Written(loaded.arrays, vocab)
        for row in np.flatnonzero(verdicts).tolist():
            case, found = _case(loaded.arrays, row, vocab, written, generator)
            false += found
            cases += [case] if case is not None else []
    if not steps:
        raise ArcherError(f"{folder} has no step that can be read: {'; '.join(problems) or 'it is empty'}.")
    return TracedCases(tuple(cases), folder, steps, responses, rejected, false, tuple(problems))


def _folder(path: Path) -> Path:
    found = find_traces(path)
    for folder in reversed(found):  # a run's influence trace stands behind its entropy trace
        if folder.name == TRACE_FOLDERS[1]:
            return folder
    return found[0]


def _rejected(loaded: LoadedStep, folder: Path) -> np.ndarray:
    arrays = loaded.arrays
    if arrays.accepted is None:
        raise ArcherError(f"{folder}, step {loaded.step}: the trace holds no verdicts (`accepted`).")
    judged = np.ones_like(arrays.accepted) if arrays.unjudged is None else ~arrays.unjudged
    return ~arrays.accepted & judged


def _case(
    arrays: TraceStep, row: int, vocab: Vocab, written: _Written, generator: torch.Generator
) -> tuple[MistakeCase | None, bool]:
    """The case of a row, if it is one, and whether it holds a false equation."""
    mask = arrays.response_mask[row]
    tokens = arrays.responses[row][mask].tolist()
    label = label_of(vocab.decode(tokens), len(tokens))
    if label is None:
        return None, False
    entropy = _line(arrays.entropies, row, mask)
    values: dict[str, Tensor] = {}
    if arrays.influence is not None:
        influence = _line(arrays.influence, row, mask)
        if not bool(influence.isfinite().all()):
            return None, True
        values |= {"-influence": -influence, "|influence|": influence.abs()}
    values["entropy"] = entropy
    if arrays.log_probs is not None:
        values["-log-prob"] = -_line(arrays.log_probs, row, mask)
    values["random"] = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    answered = written.any_of(label.true, row)
    return MistakeCase(_prompt(arrays, row), label, entropy, values, answered=answered), True


class _Written:
    """The numbers in the accepted responses of each group of a step."""

    def __init__(self, arrays: TraceStep, vocab: Vocab) -> None:
        self._arrays, self._vocab = arrays, vocab
        self._found: dict[int, frozenset[Fraction]] = {}

    def any_of(self, values: Collection[Fraction], row: int) -> bool | None:
        """Whether one of the values stands in an accepted response of a row's group; None: no groups."""
        if self._arrays.group_id is None:
            return None
        group = int(self._arrays.group_id[row])
        if group not in self._found:
            self._found[group] = frozenset().union(*map(numbers, self._accepted(group)))
        return not self._found[group].isdisjoint(values)

    def _accepted(self, group: int) -> Iterator[str]:
        arrays = self._arrays
        assert arrays.accepted is not None and arrays.group_id is not None
        for row in np.flatnonzero(arrays.accepted & (arrays.group_id == group)).tolist():
            yield self._vocab.decode(arrays.responses[row][arrays.response_mask[row]].tolist()).text


def _line(array: np.ndarray, row: int, mask: np.ndarray) -> Tensor:
    return torch.from_numpy(array[row][mask].astype(np.float64))


def _prompt(arrays: TraceStep, row: int) -> str:
    if arrays.prompt_ids is None or arrays.prompt_offsets is None:
        return str(row)
    begin, end = arrays.prompt_offsets[row : row + 2].tolist()
    return " ".join(map(str, arrays.prompt_ids[begin:end].tolist()))
