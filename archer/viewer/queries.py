"""The viewer's questions to a trace, as plain JSON values and packed arrays."""

from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.sign import meaning_of_sign
from archer.trace.manifest import StepStatistics
from archer.trace.schema import TraceStep
from archer.trace.show import LEAST_BOUND, bound_of
from archer.trace.vocab import Vocab
from archer.viewer.encoding import pack, token_text
from archer.viewer.groups import groups_json
from archer.viewer.metrics import LABELS, ramp_of, spread_of
from archer.viewer.nearest import nearest_pair
from archer.viewer.runs import Library, TracedRun
from archer.viewer.steps import StepData
from archer.viewer.verdicts import response_facts

MAX_TOKENS = 16 * 2**20
"""Most tokens of one packed answer."""
MAX_METADATA = 200
MAX_SAID = 2000  # characters
MAX_FAILED_ROWS = 12


class TooMuchError(ArcherError):
    """The request asks for more than one answer may hold."""


def library_json(library: Library, follow: bool) -> dict[str, Any]:
    """What is open: the runs, and whether new steps should be looked for."""
    return {
        "follow": follow,
        "static": False,
        "runs": [_run_json(number, run) for number, run in enumerate(library.runs)],
    }


def _run_json(number: int, run: TracedRun) -> dict[str, Any]:
    traces = [
        {
            "kind": reader.summary.kind,
            "folder": str(reader.folder),
            "format": reader.summary.format_version,
            "write_every": reader.summary.write_every,
            "created": reader.summary.created,
            "updated": reader.summary.updated,
            "metadata": _flat(reader.summary.metadata),
            "reading": meaning_of_sign(reader.objective, "Red", "blue"),
            "bad_lines": [line.number for line in reader.bad_lines if not line.torn],
        }
        for reader in run.readers
    ]
    return {"run": number, "name": run.name, "own_name": run.own_name, "traces": traces}


def _flat(metadata: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested metadata as dotted names, as text, so that nothing in it can be mistaken for structure."""
    found: dict[str, str] = {}
    for name, value in metadata.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and prefix.count(".") < 4:
            found |= _flat(value, f"{key}.")
        else:
            found[key] = str(value)[:1000]
        if len(found) >= MAX_METADATA:
            break
    return dict(list(found.items())[:MAX_METADATA])


def timeline_json(run: TracedRun) -> dict[str, Any]:
    """Columns over all steps, from the manifests."""
    steps = run.timeline()
    series = {
        field.name: [getattr(entry.statistics, field.name) for entry in steps]
        for field in fields(StepStatistics)
    }
    return {
        "steps": [entry.step for entry in steps],
        "series": {name: column for name, column in series.items() if any(v is not None for v in column)},
        "bytes": [entry.size for entry in steps],
        "seconds": [entry.seconds for entry in steps],
        "time": [entry.time for entry in steps],
        "problems": {entry.step: "; ".join(entry.problems) for entry in steps if entry.problems},
    }


def step_json(run: TracedRun, data: StepData) -> dict[str, Any]:
    """All about a step but its tokens: responses, groups, metrics and their statistics, manifest line."""
    arrays, mask = data.arrays, data.arrays.response_mask
    vocab, vocab_note = run.vocab()
    entry = run.timeline_step(data.step)
    return {
        "step": data.step,
        "version": data.version,
        "notes": [*data.notes, *([vocab_note] if vocab_note else [])],
        "manifest": {
            **entry.statistics.to_json(),
            "bytes": entry.size,
            "seconds": entry.seconds,
            "time": entry.time,
        },
        "rows": {
            "group": data.groups.tolist(),
            "length": arrays.lengths.tolist(),
            "span": data.spans.tolist(),
            "response_index": arrays.response_index.tolist(),
            "reward": None if arrays.reward is None else _numbers(_rewards(arrays.reward, arrays)),
            "accepted": _verdicts(arrays),
            "truncated": None if arrays.truncated is None else arrays.truncated.tolist(),
            "unjudged": None if arrays.unjudged is None else arrays.unjudged.tolist(),
            "said": None if arrays.judgement is None else [_said(arrays, row) for row in range(arrays.rows)],
            "uid": None if arrays.uid is None else [str(uid)[:200] for uid in arrays.uid],
            "sample_index": None if arrays.sample_index is None else arrays.sample_index.tolist(),
            **response_facts(arrays),
        },
        "groups": groups_json(data, vocab),
        "metrics": [
            _metric_json(name, values, mask, arrays) | _failed_json(data, name)
            for name, values in data.metrics.items()
        ],
    }


def _rewards(reward: np.ndarray, arrays: TraceStep) -> np.ndarray:
    """[N]; NaN where there is no judgement."""
    return np.where(arrays.judged, reward, np.float32("nan"))


def _verdicts(arrays: TraceStep) -> list[bool | None] | None:
    """[N]; None where there is no judgement."""
    if arrays.accepted is None:
        return None
    both = zip(arrays.accepted.tolist(), arrays.judged.tolist(), strict=True)
    return [accepted if judged else None for accepted, judged in both]


def _said(arrays: TraceStep, row: int) -> list[list[str]]:
    """What the reward said of a response: names and texts."""
    return [[name[:MAX_SAID], text[:MAX_SAID]] for name, text in arrays.said(row).items()][:MAX_METADATA]


def _metric_json(name: str, values: np.ndarray, mask: NDArray[np.bool_], arrays: TraceStep) -> dict[str, Any]:
    spread = spread_of(values[mask])
    least = LEAST_BOUND.get(name, 0.0)
    parts = {"all": spread}
    if arrays.accepted is not None:
        right = arrays.accepted
        for part, rows in (("accepted", right & arrays.judged), ("rejected", ~right & arrays.judged)):
            parts[part] = spread_of(values[rows][mask[rows]])
    return {
        "name": name,
        "label": LABELS.get(name, name),
        "ramp": ramp_of(name, spread),
        "bound": bound_of(values[mask], least),
        "least": least,
        "spread": parts,
        "row_mean": _numbers(_row_means(values, mask)),
        "row_mean_abs": _numbers(_row_means(np.abs(values), mask)),
    }


def _failed_json(data: StepData, name: str) -> dict[str, Any]:
    """How many values failed to be computed: of each response (None: of none), of all, and the first rows."""
    counts = np.count_nonzero(data.failed(name), axis=1)
    rows = np.flatnonzero(counts)
    return {
        "row_failed": counts.tolist() if rows.size else None,
        "failed": {
            "tokens": int(counts.sum()),
            "responses": len(rows),
            "rows": rows[:MAX_FAILED_ROWS].tolist(),
        },
    }


def pair_json(data: StepData, group: int, row: int | None) -> dict[str, Any]:
    """The two responses to lay side by side."""
    return asdict(nearest_pair(data, group, row))


def _row_means(values: np.ndarray, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    usable = mask & np.isfinite(values)
    sums = np.where(usable, values, 0).sum(axis=1, dtype=np.float64)
    counts = usable.sum(axis=1)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def rows_packed(
    run: TracedRun, data: StepData, rows: NDArray[np.int64], metrics: list[str] | None, *, text: bool
) -> bytes:
    """Tokens of some responses, ragged and one after the other in the order of `rows`.

    Arrays: `mask` uint8, one float32 array per metric (NaN where there is no value), `failed:` uint8 beside
    those that hold NaN or infinities though they were computed, and with `text` the
    `ids`, the `starts` of every token in its response's text, and all texts as UTF-8.
    """
    spans = data.spans[rows]
    total = int(spans.sum())
    if total > MAX_TOKENS:
        raise TooMuchError(
            f"{len(rows)} responses of step {data.step} hold {total:,} tokens, more than the {MAX_TOKENS:,} "
            "of one answer; ask for fewer responses."
        )
    names = list(data.metrics) if metrics is None else metrics
    inside = np.arange(data.arrays.response_mask.shape[1]) < spans[:, None]
    mask = data.arrays.response_mask[rows][inside]
    arrays: dict[str, np.ndarray] = {"mask": mask.astype(np.uint8)}
    for name in names:
        values = data.metric(name)[rows][inside].astype(np.float32)
        values[~(mask & np.isfinite(values))] = np.nan
        arrays[f"metric:{name}"] = values
        failed = data.failed(name, rows)[inside]
        if failed.any():
            arrays[f"failed:{name}"] = failed
    header: dict[str, Any] = {"rows": rows.tolist(), "spans": spans.tolist(), "metrics": names}
    if text:
        vocab, _ = run.vocab()
        header |= _add_texts(arrays, data, rows, vocab)
    return pack(header, arrays)


def _add_texts(
    arrays: dict[str, np.ndarray], data: StepData, rows: NDArray[np.int64], vocab: Vocab | None
) -> dict[str, Any]:
    ids = [data.arrays.responses[row, : data.spans[row]] for row in rows.tolist()]
    decoded = [token_text(vocab, row_ids) for row_ids in ids]
    encoded = [text.text.encode() for text in decoded]
    arrays["ids"] = np.concatenate([np.empty(0, np.int32), *ids])
    arrays["starts"] = np.concatenate([np.empty(0, np.int32), *(text.starts for text in decoded)])
    arrays["text"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    held = [data.arrays.prompt(row) for row in rows.tolist()]
    prompts = [None if prompt is None else token_text(vocab, prompt).text for prompt in held]
    distinct = list(dict.fromkeys(prompts))
    return {
        "text_bytes": [len(text) for text in encoded],
        "prompts": distinct,
        "prompt_of": [distinct.index(prompt) for prompt in prompts],
    }


def _numbers(values: np.ndarray | None) -> list[float | None] | None:
    if values is None:
        return None
    return [float(value) if np.isfinite(value) else None for value in values]
