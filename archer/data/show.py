"""`archer data show`: samples of a prompt file and its statistics."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from archer.data.answers import answer_kind
from archer.data.files import Row, read_rows
from archer.data.prompts import messages_of, truth_of
from archer.errors import ArcherError
from archer.trace.visible import visible

MAX_SHOWN = 2000  # characters of a message or a ground truth
Measure = Callable[[list[dict[str, str]]], int]


@dataclass(frozen=True)
class ShowRequest:
    """Which rows to show."""

    file: str
    n: int = 3
    index: int | None = None  # this row, counted from 0
    source: str | None = None  # only rows of this data source


def show(console: Console, request: ShowRequest, measure: Measure, unit: str) -> None:
    """Print samples and statistics; `measure` gives a prompt's length in `unit`s."""
    rows = list(enumerate(read_rows(request.file)))
    if not rows:
        raise ArcherError(f"{request.file}: there are no rows.")
    if request.source is not None:
        sources = sorted({str(row.values.get("data_source")) for _, row in rows})
        rows = [(i, row) for i, row in rows if row.values.get("data_source") == request.source]
        if not rows:
            raise ArcherError(
                f"{request.file}: no row has data_source {request.source!r}; there are: {', '.join(sources)}."
            )
    for index, row in _chosen(rows, request):
        console.print(_panel(index, row))
    console.print(_statistics([row for _, row in rows], measure, unit))


def _chosen(rows: list[tuple[int, Row]], request: ShowRequest) -> Sequence[tuple[int, Row]]:
    """The row asked for, else `n` rows spread evenly over the file: neighbours are often alike."""
    if request.index is not None:
        found = [(index, row) for index, row in rows if index == request.index]
        if not found:
            raise ArcherError(f"{request.file}: there is no row {request.index} (rows count from 0).")
        return found
    count = min(request.n, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def _panel(index: int, row: Row) -> Panel:
    parts: list[Text] = []
    for message in messages_of(row, "prompt"):
        parts.append(Text(visible(message["role"]), style="bold cyan"))
        parts.append(_shown(message["content"]))
    parts += [Text("ground truth", style="bold green"), _shown(_as_text(truth_of(row)))]
    stored = row.values.get("extra_info")
    extra = {key: value for key, value in stored.items() if key != "question"} if stored else None
    if extra:
        parts += [Text("extra_info", style="bold dim"), _shown(_as_text(extra), 300)]
    title = Text(f"row {index}  {visible(str(row.values.get('data_source')))}")
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _shown(text: str, limit: int = MAX_SHOWN) -> Text:
    """Text of a stranger's file: control characters made visible, and no markup."""
    cut = text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit:,} more characters"
    return Text("\n".join(visible(line) for line in cut.split("\n")))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _statistics(rows: Sequence[Row], measure: Measure, unit: str) -> Table:
    sources = Counter(str(row.values.get("data_source")) for row in rows)
    kinds = Counter(answer_kind(truth_of(row)) for row in rows)
    lengths = sorted(measure(messages_of(row, "prompt")) for row in rows)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("rows", f"{len(rows):,}", "")
    for name, counter in (("sources", sources), ("answers", kinds)):
        for number, (key, count) in enumerate(counter.most_common()):
            table.add_row(name if number == 0 else "", f"{count:,}", Text(visible(key)))
    mean = sum(lengths) / len(lengths)
    table.add_row(f"prompt {unit}", f"{mean:,.0f}", f"mean, {lengths[0]:,} to {lengths[-1]:,}")
    for label, share in (("median", 0.5), ("95 %", 0.95)):
        at = lengths[min(len(lengths) - 1, int(share * len(lengths)))]
        table.add_row("", f"{at:,}", label)
    return table
