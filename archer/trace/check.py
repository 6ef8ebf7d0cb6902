"""Whether a trace is whole: every step read once, damage named, figures counted."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archer.trace.arrays import TraceKind
from archer.trace.files import leftover_temporaries
from archer.trace.npz import DamagedFileError
from archer.trace.reader import LoadedStep, StepEntry, StepProblem, TraceReader, describe_steps
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

EXPECTED_FINITE = ("entropies", "log_probs", "advantage")
"""Values that every valid token has; influence may be NaN where it was not computed."""
MAX_LISTED = 10


@dataclass(frozen=True)
class TraceReport:
    """What `check_trace` found."""

    folder: Path
    kind: TraceKind
    format_version: str
    steps: tuple[int, ...]  # those that could be read
    rows: int
    tokens: int
    influence_tokens: int | None  # with an influence score; None when no step holds influence
    nonfinite: tuple[tuple[str, int], ...]  # NaN or infinite where values are expected, by array
    problems: tuple[str, ...]  # make a trace not whole
    remarks: tuple[str, ...]  # what a kill or an older format leaves

    @property
    def whole(self) -> bool:
        """Nothing is damaged or missing."""
        return not self.problems

    def render(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"{self.folder}: {self.kind} trace, format {self.format_version}",
            f"  {describe_steps(self.steps)}, {self.rows:,} responses, {self.tokens:,} tokens",
        ]
        if self.influence_tokens is not None:
            share = self.influence_tokens / self.tokens if self.tokens else 0.0
            lines.append(f"  influence on {self.influence_tokens:,} tokens ({share:.1%})")
        counts = ", ".join(f"{name} {count:,}" for name, count in self.nonfinite) or "none"
        lines.append(f"  NaN or infinite inside the mask: {counts}")
        lines += _listed("problem", self.problems) + _listed("remark", self.remarks)
        return "\n".join([*lines, "  whole" if self.whole else "  DAMAGED"])


def check_trace(folder: str | Path) -> TraceReport:
    """Read every step of a trace and report; only a folder that is no readable trace at all is an error."""
    reader = TraceReader(folder)
    problems, remarks = _folder_findings(reader)
    vocab = _vocab(reader, problems, remarks)
    steps: list[int] = []
    nonfinite: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    not_computed = [name for name in EXPECTED_FINITE if name in reader.summary.not_computed]
    if not_computed:
        remarks.append(
            f"not computed by the trainer that the trace was imported from: {', '.join(not_computed)}"
        )
    rows = tokens = influence_tokens = 0
    has_influence = False
    for found in reader:
        if isinstance(found, StepProblem):
            problems.append(str(found))
            continue
        arrays = found.arrays
        mask = arrays.response_mask
        steps.append(found.step)
        rows += arrays.rows
        tokens += int(mask.sum())
        if arrays.influence is not None:
            has_influence = True
            influence_tokens += int(np.isfinite(arrays.influence[mask]).sum())
        counts = _nonfinite(arrays, not_computed)
        nonfinite.update(counts)
        faults = [f"{n} values of {name} inside the mask are NaN or infinite" for name, n in counts.items()]
        faults += _faults(arrays, reader.summary.format_major)
        problems += [f"step {found.step}: {fault}" for fault in faults]
        notes.update(found.notes)
        notes.update(
            f"{name}: nothing is known"
            for name, values in arrays.arrays().items()
            if name in EXPECTED_FINITE and _unknown(values, mask)
        )
        remarks += _differences(reader.entry(found.step), found, vocab)
    remarks += [f"{note} ({count} steps)" for note, count in notes.items()]
    return TraceReport(
        folder=Path(folder),
        kind=reader.summary.kind,
        format_version=reader.summary.format_version,
        steps=tuple(steps),
        rows=rows,
        tokens=tokens,
        influence_tokens=influence_tokens if has_influence else None,
        nonfinite=tuple(sorted(nonfinite.items())),
        problems=tuple(problems),
        remarks=tuple(remarks),
    )


def _folder_findings(reader: TraceReader) -> tuple[list[str], list[str]]:
    """Damage and remarks that show without opening a step: the manifest and leftover files."""
    problems: list[str] = []
    remarks: list[str] = []
    for line in reader.bad_lines:
        if line.torn:
            remarks.append(f"the manifest's last line ({line.number}) is cut short, as a kill leaves it")
        else:
            problems.append(f"manifest line {line.number} is not a step")
    remarks += [
        f"temporary file {path.name} of a write under way or killed"
        for path in leftover_temporaries(reader.folder)
    ]
    unlisted = [entry.step for entry in reader.entries if entry.line is None]
    if unlisted:
        remarks.append(f"not in the manifest, read from the step files: {describe_steps(unlisted)}")
    return problems, remarks


def _vocab(reader: TraceReader, problems: list[str], remarks: list[str]) -> Vocab | None:
    try:
        vocab = reader.vocab
    except DamagedFileError as error:
        problems.append(str(error))
        return None
    if vocab is None:
        remarks.append("no vocab.npz: tokens can only be shown with the run's tokenizer")
    return vocab


def _nonfinite(arrays: TraceStep, not_computed: Collection[str]) -> dict[str, int]:
    """Values inside the mask that should be finite and are not; influence may be NaN, but not infinite."""
    held, mask = arrays.arrays(), arrays.response_mask
    given = [
        name
        for name in EXPECTED_FINITE
        if name in held and name not in not_computed and not _unknown(held[name], mask)
    ]
    counts = {name: int((~np.isfinite(held[name][mask])).sum()) for name in given}
    if arrays.influence is not None:
        counts["influence"] = int(np.isinf(arrays.influence[mask]).sum())
    if arrays.reward is not None:
        counts["reward"] = int((~np.isfinite(arrays.reward)).sum())
    return {name: count for name, count in counts.items() if count}


def _unknown(values: np.ndarray, mask: np.ndarray) -> bool:
    """Whether a writer had nothing to write: NaN at every token."""
    return bool(mask.any() and np.isnan(values[mask]).all())


def _faults(arrays: TraceStep, format_major: int) -> list[str]:
    """Where the arrays of a step contradict each other or the contract."""
    faults = []
    mask = arrays.response_mask
    if format_major >= 2 and mask.size and not mask[:, -1].any():
        faults.append(f"the arrays are {mask.shape[1]} wide, longer than the longest valid response")
    if format_major >= 2 and arrays.influence is not None and not np.isnan(arrays.influence[~mask]).all():
        faults.append("influence has values outside the mask")
    if arrays.prompt_length is not None and arrays.prompt_offsets is not None:
        wrong = int((np.diff(arrays.prompt_offsets) != arrays.prompt_length).sum())
        if wrong:
            faults.append(f"prompt_length disagrees with prompt_offsets in {wrong} responses")
    return faults


def _differences(entry: StepEntry, found: LoadedStep, vocab: Vocab | None) -> list[str]:
    """A step replaced just before a kill has its old manifest line; a model's vocabulary may be padded."""
    remarks = []
    statistics = None if entry.line is None else entry.line.statistics
    arrays = found.arrays
    if statistics is not None and statistics.rows is not None:
        real = (arrays.rows, int(arrays.response_mask.sum()))
        if (statistics.rows, statistics.tokens) != real:
            remarks.append(
                f"step {found.step}: the manifest's counts are not those of the step file, which are used"
            )
    ids = arrays.responses[arrays.response_mask]
    if vocab is not None and ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(vocab):
        remarks.append(f"step {found.step}: some token ids are not in vocab.npz")
    return remarks


def _listed(label: str, items: tuple[str, ...]) -> list[str]:
    lines = [f"  {label}: {item}" for item in items[:MAX_LISTED]]
    if len(items) > MAX_LISTED:
        lines.append(f"  ... and {len(items) - MAX_LISTED} more {label}s")
    return lines
