"""A traced response in the terminal: its tokens coloured by a metric, and the most extreme ones.

Everything that comes out of a trace is untrusted and passes through `visible` before it is printed.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from archer.errors import ArcherError, visible
from archer.sign import meaning_of_sign
from archer.trace.reader import LoadedStep, TraceReader
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

Metric = Literal["entropy", "influence", "paid", "credit", "credit_score"]
METRICS: tuple[Metric, ...] = get_args(Metric)
UNSIGNED: tuple[Metric, ...] = ("entropy", "credit")
"""Coloured from zero upwards; the others have two signs."""
LEAST_BOUND = {"credit": 1.0}
"""Full colour is never below this: a step whose tokens are all paid a tenth must not look paid in full."""

Rgb = tuple[float, float, float]
SEQUENTIAL: tuple[Rgb, ...] = ((0, 32, 76), (64, 77, 107), (124, 123, 120), (187, 174, 107), (255, 233, 69))
"""Dark blue over grey to yellow: even steps of lightness, the same for colour-blind readers."""
DIVERGING: tuple[Rgb, ...] = (
    (33, 102, 172),
    (146, 197, 222),
    (247, 247, 247),
    (244, 165, 130),
    (178, 24, 43),
)
"""Blue for negative, white for zero, red for positive."""
NO_VALUE = Style(dim=True, underline=True)
OUTSIDE = Style(dim=True, italic=True)
PROMPT_CHARACTERS = 2000
MOST_LISTED = 32


def render_step(
    console: Console,
    reader: TraceReader,
    step: int,
    *,
    metric: Metric,
    response: int | None = None,
    group: int | None = None,
    top: int = 10,
) -> None:
    """Print one response of a step: its facts, prompt, coloured tokens, top and bottom tokens.

    `response` is its number in the step, the same in both traces and in the viewer. Without it the first is
    shown, or the first of `group`, whose responses are then listed too.
    """
    if top < 0:
        raise ArcherError(f"top is {top}, expected 0 or more.")
    loaded = reader.read(step)
    arrays, values = loaded.arrays, _values(loaded, metric)
    rows = _rows(arrays, step, group)
    row = rows[0] if response is None else _row(arrays, step, group, rows, response)
    for note in loaded.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    if group is not None:
        console.print(_group_table(arrays, values, rows, metric, group))
    console.print(Text(" · ".join([f"step {step}", *_facts(arrays, row)]), style="bold"))
    if arrays.reason is not None and arrays.reason[row]:
        console.print(Text(f"reason: {visible(str(arrays.reason[row]))}", style="cyan"))
    for name, said in arrays.said(row).items():
        console.print(Text(f"{visible(name)}: {visible(said)}", style="cyan"))
    prompt = arrays.prompt(row)
    if prompt is not None:
        text = "".join(token_texts(reader.vocab, prompt))
        cut = " [...] " if len(text) > PROMPT_CHARACTERS else ""
        console.print(Text(cut + _lines(text[-PROMPT_CHARACTERS:]), style="dim"))
    mask = arrays.response_mask[row]
    length = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    tokens = token_texts(reader.vocab, arrays.responses[row, :length])
    bound = bound_of(values[row][mask], LEAST_BOUND.get(metric, 0.0))
    console.print(_coloured(tokens, values[row, :length], mask[:length], metric, bound))
    console.print(_legend(metric, bound, bool(np.isfinite(values[row][mask]).all())))
    if metric == "influence":
        console.print(Text(meaning_of_sign(reader.objective, "Red", "blue"), style="dim"))
    if top:
        console.print(_extremes(tokens, values[row], arrays, row, metric, top))


def token_texts(vocab: Vocab | None, token_ids: np.ndarray) -> list[str]:
    """The text of each token, raw; without a vocabulary the ids themselves."""
    if vocab is None:
        return [f"⟨{token_id}⟩" for token_id in token_ids]
    return vocab.decode(token_ids).tokens()


def colour(value: float, bound: float, metric: Metric) -> Style:
    """Background of a value: entropy from 0 to `bound`, influence from -`bound` to `bound`, white at 0."""
    ramp = SEQUENTIAL if metric in UNSIGNED else DIVERGING
    share = value / bound if metric in UNSIGNED else (value / bound + 1) / 2
    position = min(max(share, 0.0), 1.0) * (len(ramp) - 1)
    low = min(int(position), len(ramp) - 2)
    weight = position - low
    red, green, blue = (round(a + (b - a) * weight) for a, b in zip(ramp[low], ramp[low + 1], strict=True))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140
    return Style.parse(f"{'white' if dark else 'black'} on rgb({red},{green},{blue})")


def _values(loaded: LoadedStep, metric: Metric) -> np.ndarray:
    if metric not in METRICS:
        raise ArcherError(f"metric is {metric!r}, expected one of {', '.join(METRICS)}.")
    arrays = loaded.arrays
    held: dict[Metric, np.ndarray | None] = {
        "entropy": arrays.entropies,
        "influence": arrays.influence,
        "paid": arrays.paid,
        "credit": arrays.credit,
        "credit_score": arrays.credit_score,
    }
    values = held[metric]
    if values is None:
        raise ArcherError(f"step {loaded.step} of this trace holds no {metric}; show --metric entropy.")
    return values.astype(np.float64) + 0.0  # a negative advantage times no credit is 0, not -0


def _rows(arrays: TraceStep, step: int, group: int | None) -> list[int]:
    if group is None:
        rows = list(range(arrays.rows))
    elif arrays.group_id is None:
        raise ArcherError(f"step {step} of this trace has no groups; choose a response instead.")
    else:
        rows = np.flatnonzero(arrays.group_id == group).tolist()
    if not rows:
        wanted = "no responses" if group is None else f"no group {group}"
        raise ArcherError(f"step {step} has {wanted}.")
    return rows


def _row(arrays: TraceStep, step: int, group: int | None, rows: list[int], response: int) -> int:
    """The row of a response: an influence trace holds some of a step's responses only."""
    numbers = arrays.response_index[rows].tolist()
    if response not in numbers:
        listed = "" if group is None else f"group {group}: "
        among = (
            ", ".join(map(str, numbers)) if len(numbers) <= MOST_LISTED else f"{numbers[0]} to {numbers[-1]}"
        )
        raise ArcherError(
            f"step {step} has no response {response}; expected one of {listed}responses {among}."
        )
    return rows[numbers.index(response)]


def bound_of(values: np.ndarray, least: float = 0.0) -> float:
    """99th percentile of |value|, so that one outlier does not bleach the rest; 1 where all are zero.

    Never below `least`.
    """
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    bound = float(np.percentile(finite, 99)) if finite.size else 0.0
    return max(bound, least) if bound > 0 else 1.0


def _facts(arrays: TraceStep, row: int) -> list[str]:
    facts = [f"response {arrays.response_index[row]}"]
    if arrays.group_id is not None:
        facts.append(f"group {arrays.group_id[row]}")
    if arrays.accepted is not None:
        facts.append(arrays.verdict(row))
    if arrays.reward is not None:
        facts.append(f"reward {arrays.reward[row]:g}")
    facts.append(f"{arrays.lengths[row]} tokens")
    if arrays.uid is not None:
        facts.append(f"uid {visible(str(arrays.uid[row]))}")
    return facts


def _coloured(tokens: list[str], values: np.ndarray, mask: np.ndarray, metric: Metric, bound: float) -> Text:
    """The tokens; those outside the mask italic, those without a value underlined."""
    text = Text()
    for token, value, valid in zip(tokens, values, mask, strict=True):
        style = OUTSIDE if not valid else NO_VALUE if not np.isfinite(value) else colour(value, bound, metric)
        text.append(_lines(token), style=style)
    return text


def _lines(text: str) -> str:
    """Visible text that keeps its line breaks."""
    return visible(text).replace("␊", "␊\n")


def _legend(metric: Metric, bound: float, all_have_values: bool) -> Text:
    low = 0.0 if metric in UNSIGNED else -bound
    text = Text(f"{metric} {low:.3g} ")
    for value in np.linspace(low, bound, 15):
        text.append(" ", style=colour(float(value), bound, metric))
    lacking = "" if all_have_values else "; underlined: no value"
    return text.append(f" {bound:.3g}   99th percentile of this response{lacking}")


def _extremes(
    tokens: list[str], values: np.ndarray, arrays: TraceStep, row: int, metric: Metric, top: int
) -> Table:
    table = Table(title=f"top and bottom tokens by {metric}")
    for column in ("", "position", "id", "token", metric):
        table.add_column(column, justify="right" if column in ("position", "id") else "left")
    usable = np.flatnonzero(arrays.response_mask[row] & np.isfinite(values))
    order = usable[np.argsort(values[usable], kind="stable")]
    ends = {"top": order[::-1][:top], "bottom": order[:top]}
    numbers = iter(_aligned([values[position] for chosen in ends.values() for position in chosen]))
    for label, chosen in ends.items():
        for position in chosen:
            cells = (label, str(position), str(arrays.responses[row, position]))
            table.add_row(*cells, Text(visible(tokens[position]).replace(" ", "␣")), next(numbers))
        table.add_section()
    return table


def _group_table(arrays: TraceStep, values: np.ndarray, rows: list[int], metric: Metric, group: int) -> Table:
    """One line a response; what the trace does not hold has no column."""
    table = Table(title=f"responses of group {group}")
    columns: dict[str, list[str]] = {"response": [str(number) for number in arrays.response_index[rows]]}
    if arrays.accepted is not None:
        columns["verdict"] = [arrays.verdict(row) for row in rows]
    if arrays.reward is not None:
        columns["reward"] = [f"{arrays.reward[row]:g}" for row in rows]
    columns["tokens"] = [str(arrays.lengths[row]) for row in rows]
    name = f"mean {metric if metric in UNSIGNED else f'|{metric}|'}"
    columns[name] = _aligned([_mean_size(values[row][arrays.response_mask[row]]) for row in rows])
    for column in columns:
        table.add_column(column, justify="left" if column in ("verdict", name) else "right")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _mean_size(values: np.ndarray) -> float:
    """Mean of |value| where there is one."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.mean()) if finite.size else float("nan")


def _aligned(values: Sequence[float]) -> list[str]:
    """Four digits each, and the points below each other in a column that is flush left."""
    texts = [f"{value:#.4g}" if np.isfinite(value) else "-" for value in values]
    before = [len(text.partition(".")[0]) for text in texts]
    return [" " * (max(before) - own) + text for text, own in zip(texts, before, strict=True)]
