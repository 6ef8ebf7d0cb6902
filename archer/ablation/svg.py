"""The three drawings of a report, as SVG text: bars, spreads, a matrix.

Colours are the page's CSS variables, so that a drawing follows the light or dark theme it is shown in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

ROW, GAP, TOP = 24, 26, 46
CHARACTER = 6.3  # width of one in a label, about


@dataclass(frozen=True)
class Bar:
    """A value with the text that stands beside it and the one that hovering shows."""

    value: float | None
    text: str
    title: str


@dataclass(frozen=True)
class Panel:
    """One column of bars; `mark` is a value that a line is drawn at."""

    title: str
    bars: Sequence[Bar]
    width: int
    mark: float | None = None
    mark_text: str = ""
    largest: float | None = None
    """Value at the right edge; default: the largest bar."""


@dataclass(frozen=True)
class Spread:
    """Five quantiles (5, 25, 50, 75, 95 %) and what hovering shows."""

    quantiles: tuple[float, float, float, float, float]
    title: str


@dataclass(frozen=True)
class SpreadPanel:
    """One column of spreads around zero, from -limit to limit."""

    title: str
    spreads: Sequence[Spread]
    width: int
    limit: float


def rows(labels: Sequence[str], panels: Sequence[Panel | SpreadPanel], description: str) -> str:
    """Rows of labels with columns beside them."""
    x, bottom = _room_for(labels), TOP + ROW * len(labels)
    parts = [_text(x - 12, TOP + ROW * row + 16, label, "label", "end") for row, label in enumerate(labels)]
    for panel in panels:
        parts.append(_text(x, 16, panel.title, "head"))
        parts += _bars(panel, x, bottom) if isinstance(panel, Panel) else _spreads(panel, x, bottom)
        x += panel.width + GAP
    return _drawing(x - GAP, bottom + 6, parts, description)


def _bars(panel: Panel, x: int, bottom: int) -> list[str]:
    """Horizontal bars that begin at zero."""
    parts = []
    known = [bar.value for bar in panel.bars if bar.value is not None]
    largest = panel.largest or max([*known, panel.mark or 0.0, 1e-12])
    room = panel.width - 50  # the numbers stand to the right of the bars
    if panel.mark is not None:
        at = x + room * panel.mark / largest
        parts.append(_line(at, TOP - 8, at, bottom, "mark"))
        parts.append(_text(at, 34, panel.mark_text, "tick", "middle"))
    for row, bar in enumerate(panel.bars):
        y = TOP + ROW * row
        if bar.value is None:
            parts.append(_text(x, y + 16, bar.text, "tick"))
            continue
        width = max(1.0, room * bar.value / largest)
        shape = f'<rect x="{x}" y="{y + 5}" width="{width:.1f}" height="{ROW - 10}" rx="2" class="bar"/>'
        parts.append(_titled(shape, bar.title))
        parts.append(_text(x + width + 6, y + 16, bar.text, "value"))
    return parts


def _spreads(panel: SpreadPanel, x: int, bottom: int) -> list[str]:
    """A thin line from 5 to 95 %, a thick one from 25 to 75 %, a point at the median."""

    def at(value: float) -> float:
        clipped = max(-panel.limit, min(panel.limit, value))
        return x + panel.width / 2 * (1 + clipped / panel.limit)

    parts = []
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
        place = at(share * panel.limit)
        parts.append(_line(place, TOP - 8, place, bottom, "mark" if share == 0 else "grid"))
        parts.append(_text(place, 34, f"{share * panel.limit:+g}" if share else "0", "tick", "middle"))
    for row, spread in enumerate(panel.spreads):
        y = TOP + ROW * row + ROW / 2
        low, lower, median, upper, high = (at(q) for q in spread.quantiles)
        shapes = (
            _line(low, y, high, y, "thin")
            + _line(lower, y, max(upper, lower + 0.5), y, "thick")
            + f'<circle cx="{median:.1f}" cy="{y}" r="3.5" class="median"/>'
        )
        parts.append(_titled(shapes, spread.title))
    return parts


def matrix(
    labels: Sequence[str], cells: Sequence[Sequence[tuple[float | None, str]]], description: str
) -> str:
    """A square of correlations; columns are numbered as the rows. A cell is its value and its hover text."""
    size, top = 40, 28
    left = _room_for(labels) + 16
    parts = []
    for row, label in enumerate(labels):
        y = top + size * row
        parts.append(_text(left - 12, y + size / 2 + 4, f"{label}  {row + 1}", "label", "end"))
        parts.append(_text(left + size * row + size / 2, 18, str(row + 1), "tick", "middle"))
        for column, (value, title) in enumerate(cells[row]):
            x = left + size * column
            place = f'x="{x + 1}" y="{y + 1}" width="{size - 2}" height="{size - 2}" rx="3"'
            if value is None:
                parts.append(f'<rect {place} class="empty"/>')
                continue
            share = round(min(1.0, abs(value)) * 100)
            colour = "positive" if value >= 0 else "negative"
            fill = f"color-mix(in oklab, var(--{colour}) {share}%, var(--raised))"
            shape = f'<rect {place} style="fill: {fill}"/>'
            tone = "strong" if share >= 75 else "cell"
            shape += _text(
                x + size / 2, y + size / 2 + 4, f"{value:+.2f}".replace("0.", ".", 1), tone, "middle"
            )
            parts.append(_titled(shape, title))
    return _drawing(left + size * len(labels) + 4, top + size * len(labels) + 4, parts, description)


def _room_for(labels: Sequence[str]) -> int:
    return round(28 + CHARACTER * max(len(label) for label in labels))


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _titled(shapes: str, title: str) -> str:
    return f"<g><title>{escape(title)}</title>{shapes}</g>"


def _drawing(width: float, height: float, parts: Sequence[str], description: str) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(description)}">\n{inside}\n</svg>'
    )
