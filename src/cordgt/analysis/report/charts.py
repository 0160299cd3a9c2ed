"""Plots as inline SVG: drawn for the width of a phone, so that their words stay readable there and grow elsewhere.

Colours are the page's (`cordgt.analysis.report.html.STYLE`), so a plot follows the reader's scheme. Every plot says in words
what it shows, and every point has its value as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cordgt.analysis.report.html import Html, join, text

WIDTH = 360.0  # of the drawing, in its own units: about a phone's
DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 3", "10 4", "3 5")
COLOURS = 8
MOST_POINTS = 400  # of a line; more cannot be told apart


@dataclass(frozen=True)
class Line:
    """A series: points from left to right. NaN leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    marks: bool = True  # a dot at each point


@dataclass(frozen=True)
class Dot:
    """A row of a dot plot: its value, whiskers if there are any, and words to the right; ``series`` sets the colour."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    series: int = 0


@dataclass(frozen=True)
class Axis:
    """What an axis is called, where it reaches, and which ticks stand there (found where none are given)."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = field(default=())

    @property
    def marked(self) -> Sequence[tuple[float, str]]:
        return self.ticks or [(v, number(v)) for v in nice_ticks(self.low, self.high)]

    def place(self, value: float, start: float, stop: float) -> float:
        """Where a value stands between two ends of the drawing."""
        share = 0.5 if self.high <= self.low else (value - self.low) / (self.high - self.low)
        return start + (stop - start) * min(max(share, 0.0), 1.0)


def nice_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round values between two others, ``low`` and ``high`` included where they are round."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def reach(
    values: Sequence[float], *, least: float = 0.0, within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Ends of an axis that hold all values with a little room, at least ``least`` apart, ``within`` what can be."""
    sound = [v for v in values if math.isfinite(v)]
    if not sound:
        return within or (0.0, 1.0)
    low, high = min(sound), max(sound)
    room = max(0.08 * (high - low), (least - (high - low)) / 2, 1e-9)
    low, high = low - room, high + room
    return (low, high) if within is None else (max(low, within[0]), min(high, within[1]))


def number(value: float) -> str:
    """A number on an axis, short."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= unit:
                return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def line_chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    says: str,
    mark: tuple[float, str] | None = None,
    level: float | None = None,
) -> Html:
    """Lines over a common axis, with a legend where there are several.

    ``mark`` is a vertical line with words, ``level`` a horizontal one (what guessing reaches).
    """
    left, right, top, bottom = 46.0, WIDTH - 10, 20.0, 190.0
    parts = [_grid(x, y, left, right, top, bottom)]
    if level is not None and y.low <= level <= y.high:
        at = y.place(level, bottom, top)
        parts.append(Html(f'<line class="mark" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'))
    if mark is not None:
        at = x.place(mark[0], left, right)
        side, shift = ("end", -4) if at > (left + right) / 2 else ("start", 4)
        parts.append(Html(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>'))
        low = _is_low(lines, mark[0], y)  # the words stand where the lines do not
        parts.append(_words(at + shift, top + 11 if low else bottom - 6, mark[1], side))
    for i, line in enumerate(lines):
        parts.append(_drawn(i, _thinned(line), x, y, (left, right, top, bottom)))
    height = bottom + 36
    if len(lines) > 1:
        legend, height = _legend([line.name for line in lines], height + 4)
        parts.append(legend)
    return _svg(height, says, parts)


def _is_low(lines: Sequence[Line], at: float, y: Axis) -> bool:
    """Whether the lines run through the lower half of a chart near ``at``."""
    near = [min(zip(line.x, line.y, strict=True), key=lambda p: abs(p[0] - at))[1] for line in lines if line.x]
    sound = [v for v in near if math.isfinite(v)]
    return bool(sound) and sum(sound) / len(sound) < (y.low + y.high) / 2


def dot_plot(dots: Sequence[Dot], axis: Axis, *, says: str, level: float | None = None) -> Html:
    """A row a value, its name above it: names may be long, and phones are narrow."""
    left, right, row = 8.0, WIDTH - 8, 38.0
    bottom = 8 + row * len(dots)
    parts: list[Html] = []

    def upright(kind: str, value: float) -> None:
        """A line beside the marks of every row, with a gap where the row's words stand: none is crossed."""
        at = axis.place(value, left, right)
        path = "".join(f"M{at:.1f} {8 + row * i + 17:g}v{row - 19:g}" for i in range(len(dots)))
        parts.append(Html(f'<path class="{kind}" d="{path}"/>'))

    for value, name in axis.marked:
        upright("grid", value)
        at = axis.place(value, left, right)
        parts.append(_words(at, bottom + 13, name, _anchor(at, left, right)))
    if level is not None and axis.low <= level <= axis.high:
        upright("mark", level)
    for i, dot in enumerate(dots):
        parts.append(_row(dot, axis, left, right, 8 + row * i))
    parts.append(_words((left + right) / 2, bottom + 28, axis.label, "middle"))
    return _svg(bottom + 34, says, parts)


def heatmap(
    values: Sequence[Sequence[float]],
    notes: Sequence[Sequence[str]],
    across: tuple[str, Sequence[str]],
    down: tuple[str, Sequence[str]],
    *,
    says: str,
) -> Html:
    """Cells coloured by sign and size, with their value in them; NaN leaves a cell blank. ``notes`` are tooltips.

    ``across`` and ``down`` are the axes: what they are called, and the name of each column or row.
    """
    left, top, cell_h = 78.0, 30.0, 34.0
    cell_w = (WIDTH - left - 4) / max(len(across[1]), 1)
    most = max((abs(v) for row in values for v in row if math.isfinite(v)), default=0.0) or 1.0
    parts = [_words(left + cell_w * len(across[1]) / 2, 11, across[0], "middle")]
    parts += [_words(left + cell_w * (j + 0.5), 25, name, "middle") for j, name in enumerate(across[1])]
    for i, row in enumerate(values):
        at = top + cell_h * i
        parts.append(_words(left - 6, at + cell_h / 2 + 4, down[1][i], "end"))
        for j, value in enumerate(row):
            parts.append(_heat_cell(left + cell_w * j, at, cell_w, cell_h, value, most, notes[i][j]))
    bottom = top + cell_h * len(values)
    parts.append(_words(4, bottom + 16, f"rows: {down[0]}", "start"))
    return _svg(bottom + 22, says, parts)


# -------------------- parts of a drawing


def _svg(height: float, says: str, parts: Sequence[Html]) -> Html:
    return Html(
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{text(says)}" '
        f'preserveAspectRatio="xMidYMid meet">{join(parts)}</svg>'
    )


def _words(x: float, y: float, words: str, anchor: str, kind: str = "") -> Html:
    own = f' class="{kind}"' if kind else ""
    return Html(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{own}>{text(words)}</text>')


def _anchor(at: float, left: float, right: float) -> str:
    return "start" if at < left + 8 else "end" if at > right - 8 else "middle"


def _grid(x: Axis, y: Axis, left: float, right: float, top: float, bottom: float) -> Html:
    parts = []
    for value, name in y.marked:
        at = y.place(value, bottom, top)
        parts.append(Html(f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'))
        parts.append(_words(left - 5, at + 4, name, "end"))
    for value, name in x.marked:
        at = x.place(value, left, right)
        parts.append(Html(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'))
        parts.append(_words(at, bottom + 16, name, _anchor(at, left, right)))
    parts.append(Html(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'))
    parts.append(_words((left + right) / 2, bottom + 31, x.label, "middle"))
    parts.append(_words(2, 9, y.label, "start"))
    return join(parts)


def _drawn(i: int, line: Line, x: Axis, y: Axis, box: tuple[float, float, float, float]) -> Html:
    left, right, top, bottom = box
    colour = f"var(--s{i % COLOURS})"
    path, pen, dots = [], "M", []
    for a, b in zip(line.x, line.y, strict=True):
        if not math.isfinite(b):
            pen = "M"
            continue
        px, py = x.place(a, left, right), y.place(b, bottom, top)
        path.append(f"{pen}{px:.1f} {py:.1f}")
        pen = "L"
        if line.marks:
            told = f"{line.name}: {b:.4g} at {number(a)}"
            dots.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}"><title>{text(told)}</title></circle>'
            )
    dash = f' stroke-dasharray="{DASHES[i % len(DASHES)]}"' if DASHES[i % len(DASHES)] else ""
    return Html(f'<path class="series" stroke="{colour}"{dash} d="{"".join(path)}"/>{"".join(dots)}')


def _thinned(line: Line) -> Line:
    n = len(line.x)
    if n <= MOST_POINTS:
        return line
    kept = sorted({round(k * (n - 1) / (MOST_POINTS - 1)) for k in range(MOST_POINTS)})
    return Line(line.name, [line.x[k] for k in kept], [line.y[k] for k in kept], line.marks)


def _legend(names: Sequence[str], top: float) -> tuple[Html, float]:
    """A row a series, and where the drawing ends."""
    parts = []
    for i, name in enumerate(names):
        at = top + 16 * i
        dash = f' stroke-dasharray="{DASHES[i % len(DASHES)]}"' if DASHES[i % len(DASHES)] else ""
        parts.append(
            Html(f'<line class="series" stroke="var(--s{i % COLOURS})"{dash} x1="46" x2="74" y1="{at}" y2="{at}"/>')
        )
        parts.append(Html(f'<text class="value" x="80" y="{at + 4}">{text(name, 44)}</text>'))
    return join(parts), top + 16 * len(names)


def _row(dot: Dot, axis: Axis, left: float, right: float, top: float) -> Html:
    at = top + 26
    colour = f"var(--s{dot.series % COLOURS})"
    parts = [
        Html(f'<text class="value" x="{left}" y="{top + 12}">{text(dot.name, 44)}</text>'),
        _words(right, top + 12, dot.note, "end"),
    ]
    if dot.value is None:
        return join(parts)
    if dot.low is not None and dot.high is not None:
        a, b = axis.place(dot.low, left, right), axis.place(dot.high, left, right)
        parts.append(Html(f'<line stroke="{colour}" stroke-width="2" x1="{a:.1f}" x2="{b:.1f}" y1="{at}" y2="{at}"/>'))
    px = axis.place(dot.value, left, right)
    told = f"{dot.name}: {dot.value:.4g}"
    parts.append(Html(f'<circle cx="{px:.1f}" cy="{at}" r="5" fill="{colour}"><title>{text(told)}</title></circle>'))
    return join(parts)


def _heat_cell(x: float, y: float, w: float, h: float, value: float, most: float, note: str) -> Html:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{w - 2:.1f}" height="{h - 2:.1f}" rx="3"'
    if not math.isfinite(value):
        return Html(f'<rect {box} fill="none" stroke="var(--line)"/>')
    colour = "var(--plus)" if value >= 0 else "var(--minus)"
    share = 0.08 + 0.62 * abs(value) / most
    return Html(
        f'<g><title>{text(note)}</title><rect {box} fill="{colour}" fill-opacity="{share:.2f}"/>'
        f"{_words(x + (w - 2) / 2, y + h / 2 + 3, signed(value), 'middle', 'value inside')}</g>"
    )


def signed(value: float) -> str:
    """A number with its sign, in three characters or a few more."""
    return f"{value:+.1f}" if abs(value) < 100 else f"{value:+.0f}"
