"""`archer data show`: samples of a prompt file and its statistics, with the kinds of its answers."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from archer.data.files import Row, read_rows
from archer.data.prompts import messages_of, tokenize, truth_of
from archer.errors import ArcherError, visible

MAX_SHOWN = 2000  # characters of a message or a ground truth
Figure = tuple[str, str, str]

_KINDS = (
    ("integer", re.compile(r"[+-]?[0-9][0-9,]*")),
    ("decimal", re.compile(r"[+-]?[0-9,]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")),
    ("fraction", re.compile(r"[+-]?(?:[0-9]+/[0-9]+|\\[dt]?frac\{?[0-9]+\}?\{?[0-9]+\}?)")),
    ("tuple, set or interval", re.compile(r"(?:\\left)?\s*(?:[(\[]|\\\{).*,.*(?:[)\]]|\\\})", re.DOTALL)),
    ("list", re.compile(r"[^{}]*,.*", re.DOTALL)),
    ("choice", re.compile(r"\(?[A-E]\)?")),
    ("text", re.compile(r"(?:\\text\{[^{}]*\}|[A-Za-z][A-Za-z .'-]+)")),
)


def show(
    console: Console,
    file: str,
    n: int,
    index: int | None = None,
    source: str | None = None,
    tokenizer: Any = None,
) -> None:
    """Print the statistics of a file, or of its rows of one data source, and samples.

    The sample is row `index`, else `n` rows spread evenly over the file: neighbours are often alike. Prompts
    are measured in tokens, as `data.max_prompt_length` counts them, or without a tokenizer in characters.
    """
    rows = list(enumerate(read_rows(file)))
    if not rows:
        raise ArcherError(f"{file}: there are no rows.")
    if source is not None:
        sources = sorted({str(row.values.get("data_source")) for _, row in rows})
        rows = [(number, row) for number, row in rows if row.values.get("data_source") == source]
        if not rows:
            raise ArcherError(f"{file}: no row has data_source {source!r}; there are: {', '.join(sources)}.")
    count = min(n, len(rows))
    chosen = [rows[i * len(rows) // count] for i in range(count)]
    if index is not None:
        chosen = [(number, row) for number, row in rows if number == index]
        if not chosen:
            raise ArcherError(f"{file}: there is no row {index} (rows count from 0).")
    for number, row in chosen:
        console.print(_panel(number, row))
    console.print(figure_table(_statistics([row for _, row in rows], tokenizer)))


def _panel(index: int, row: Row) -> Panel:
    parts: list[Text] = []
    for message in messages_of(row, "prompt"):
        parts.append(Text(visible(message["role"]), style="bold cyan"))
        parts.append(_shown(message["content"]))
    parts += [Text("ground truth", style="bold green"), _shown(_as_text(truth_of(row)))]
    stored = row.values.get("extra_info") or {}
    if extra := {key: value for key, value in stored.items() if key != "question"}:
        parts += [Text("extra_info", style="bold dim"), _shown(_as_text(extra), 300)]
    title = Text(f"row {index}  {visible(str(row.values.get('data_source')))}")
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _shown(text: str, limit: int = MAX_SHOWN) -> Text:
    """Text of a stranger's file: control characters made visible, and no markup."""
    cut = text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit:,} more characters"
    return Text("\n".join(visible(line) for line in cut.split("\n")))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _statistics(rows: Sequence[Row], tokenizer: Any) -> Iterable[Figure]:
    yield "rows", f"{len(rows):,}", ""
    yield from counted("sources", Counter(str(row.values.get("data_source")) for row in rows))
    yield from counted("answers", Counter(answer_kind(truth_of(row)) for row in rows))
    prompts = [(row, messages_of(row, "prompt")) for row in rows]
    if tokenizer is None:
        unit, lengths = (
            "characters",
            sorted(sum(len(m["content"]) for m in messages) for _, messages in prompts),
        )
    else:
        unit, lengths = "tokens", sorted(len(tokenize(row, messages, tokenizer)) for row, messages in prompts)
    mean = sum(lengths) / len(lengths)
    yield f"prompt {unit}", f"{mean:,.0f}", f"mean, {lengths[0]:,} to {lengths[-1]:,}"
    for label, share in (("median", 0.5), ("95 %", 0.95)):
        yield "", f"{lengths[int(share * len(lengths))]:,}", label


def counted(label: str, counter: Counter[str]) -> Iterable[Figure]:
    """How often each key was met, the most frequent first; only the first line has the label."""
    for number, (key, count) in enumerate(counter.most_common()):
        yield label if number == 0 else "", f"{count:,}", key


def figure_table(figures: Iterable[Figure]) -> Table:
    """Lines of a label, a number and a remark, which may be a stranger's text."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for label, number, remark in figures:
        table.add_row(label, number, Text(visible(remark)))
    return table


def answer_kind(ground_truth: Any) -> str:
    """The kind of a ground truth: integer, fraction, expression, stdin tests, ..."""
    if isinstance(ground_truth, list):
        return "several answers"
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, int | float | str):
        return "other"
    if not isinstance(ground_truth, str):
        return "integer" if float(ground_truth).is_integer() else "decimal"
    text = ground_truth.strip()
    if text.startswith("{") and (tests := _tests_kind(text)) is not None:
        return tests
    text = text.strip("$").strip()
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(text)), "expression")


def _tests_kind(text: str) -> str | None:
    try:
        tests = json.loads(text)
    except json.JSONDecodeError:
        return None
    if "functional" in tests or "test" in tests:
        return "asserts"
    if "inputs" in tests:
        return "function tests" if tests.get("fn_name") else "stdin tests"
    return None
