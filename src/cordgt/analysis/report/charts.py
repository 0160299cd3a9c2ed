"""Charts as inline SVG, drawn for the width of a phone so that their text stays readable there.

Colors come from the page (`cordgt.analysis.report.html.STYLE`), so a chart follows the reader's light or dark scheme.
Every chart has an alternative text (``alt``), and every point has its value as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cordgt.analysis.report.html import Html, join, text

WIDTH = 360.0  # of a chart, in SVG units: about a phone's width
DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 3", "10 4", "3 5")
N_COLORS = 8
GRAY = 7  # color for baselines and small groups
MAX_POINTS = 400  # of a series; more cannot be distinguished
MAX_NAME_LENGTH = 44


@dataclass(frozen=True)
class Series:
    """Points of a line from left to right. NaN leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    has_markers: bool = True  # a dot at each point


@dataclass(frozen=True)
class Dot:
    """A point of a dot chart, with whiskers from ``low`` to ``high``."""

    x: float
    y: float
    low: float
    high: float
    radius: float
    tooltip: str
    is_hollow: bool = False  # little data: no line goes through it


@dataclass(frozen=True)
class DotRow:
    """A row of a dot plot: a value, optional whiskers, and a label at the right."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    label: str = ""
    color: int = 0


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``. Without ``ticks`` (value, name), round values are chosen."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()

    @property
    def labeled_ticks(self) -> Sequence[tuple[float, str]]:
        return self.ticks or [(v, format_number(v)) for v in nice_ticks(self.low, self.high)]

    def scale(self, value: float, start: float, stop: float) -> float:
        """Map a value to a coordinate between ``start`` and ``stop``; values outside the axis are clipped."""
        share = 0.5 if self.high <= self.low else (value - self.low) / (self.high - self.low)
        return start + (stop - start) * min(max(share, 0.0), 1.0)


def nice_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round values from ``low`` to ``high``, about ``about`` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def padded_range(
    values: Sequence[float], *, min_width: float = 0.0, bounds: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return a range that holds all finite values with some padding, at least ``min_width`` wide, within ``bounds``."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return bounds or (0.0, 1.0)
    low, high = min(finite), max(finite)
    padding = max(0.08 * (high - low), (min_width - (high - low)) / 2, 1e-9)
    low, high = low - padding, high + padding
    return (low, high) if bounds is None else (max(low, bounds[0]), min(high, bounds[1]))


def format_number(value: float) -> str:
    """Format a number for an axis, such as ``12.5k``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 10_000):
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def line_chart(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    alt: str,
    marker: tuple[float, str] | None = None,
    reference: float | None = None,
) -> Html:
    """Draw lines, with a legend if there are several.

    ``marker`` is a vertical line with a label, ``reference`` a horizontal one, such as the value of guessing.
    """
    left, right, top, bottom = 46.0, WIDTH - 10, 20.0, 190.0
    parts = [_grid(x, y, left, right, top, bottom)]
    if reference is not None and y.low <= reference <= y.high:
        at = y.scale(reference, bottom, top)
        parts.append(_line("mark", left, right, at, at))
    if marker is not None:
        at = x.scale(marker[0], left, right)
        anchor, shift = ("end", -4) if at > (left + right) / 2 else ("start", 4)
        parts.append(_line("mark", at, at, top, bottom))
        label_y = top + 11 if _is_in_lower_half(series, marker[0], y) else bottom - 6  # away from the lines
        parts.append(_label(at + shift, label_y, marker[1], anchor))
    parts += [_path(i, _thin_out(one), x, y, (left, right, top, bottom)) for i, one in enumerate(series)]
    height = bottom + 36
    if len(series) > 1:
        parts.append(_legend([one.name for one in series], height + 4))
        height += 4 + 16 * len(series)
    return _svg(height, alt, parts)


def dot_chart(series: Sequence[tuple[str, Sequence[Dot]]], x: Axis, y: Axis, *, alt: str) -> Html:
    """Draw dots with whiskers, joined by a line, and the diagonal. ``series`` are names and dots from left to right."""
    box = left, right, top, bottom = 46.0, WIDTH - 10, 20.0, 270.0
    parts = [_grid(x, y, left, right, top, bottom), _line("mark", left, right, bottom, top)]
    for i, (_, dots) in enumerate(series):
        line = [dot for dot in dots if not dot.is_hollow]
        parts.append(_path(i, Series("", [d.x for d in line], [d.y for d in line], has_markers=False), x, y, box))
        for dot in dots:
            px, py = x.scale(dot.x, left, right), y.scale(dot.y, bottom, top)
            low, high = (y.scale(value, bottom, top) for value in (dot.low, dot.high))
            parts.append(_line("whisker", px, px, low, high, f' stroke="var(--s{i % N_COLORS})" stroke-opacity="0.5"'))
            parts.append(_circle(px, py, dot.radius, i, dot.tooltip, is_hollow=dot.is_hollow))
    legend_top = bottom + 46
    parts.append(_legend([name for name, _ in series], legend_top))
    return _svg(legend_top + 16 * len(series), alt, parts)


def dot_plot(rows: Sequence[DotRow], axis: Axis, *, alt: str, reference: float | None = None) -> Html:
    """Draw one value per row. The name stands above the value, because names are long and phones are narrow."""
    left, right, top, row_height = 8.0, WIDTH - 8, 8.0, 38.0
    bottom = top + row_height * len(rows)
    parts: list[Html] = []

    def add_vertical_line(css: str, value: float) -> None:
        """Draw a line next to the dots of every row, with gaps where the rows have text."""
        at = axis.scale(value, left, right)
        path = "".join(f"M{at:.1f} {top + row_height * i + 17:g}v{row_height - 19:g}" for i in range(len(rows)))
        parts.append(Html(f'<path class="{css}" d="{path}"/>'))

    for value, name in axis.labeled_ticks:
        add_vertical_line("grid", value)
        at = axis.scale(value, left, right)
        parts.append(_label(at, bottom + 13, name, _anchor(at, left, right)))
    if reference is not None and axis.low <= reference <= axis.high:
        add_vertical_line("mark", reference)
    parts += [_dot_row(row, axis, left, right, top + row_height * i) for i, row in enumerate(rows)]
    parts.append(_label((left + right) / 2, bottom + 28, axis.label, "middle"))
    return _svg(bottom + 34, alt, parts)


def heatmap(
    values: Sequence[Sequence[float]],
    tooltips: Sequence[Sequence[str]],
    columns: tuple[str, Sequence[str]],
    rows: tuple[str, Sequence[str]],
    *,
    alt: str,
) -> Html:
    """Draw cells colored by sign and size, with their values; NaN leaves a cell blank.

    ``columns`` and ``rows`` are the label of an axis and the names of its groups.
    """
    left, top, height = 78.0, 30.0, 34.0
    width = (WIDTH - left - 4) / max(len(columns[1]), 1)
    largest = max((abs(v) for row in values for v in row if math.isfinite(v)), default=0.0) or 1.0
    parts = [_label(left + width * len(columns[1]) / 2, 11, columns[0], "middle")]
    parts += [_label(left + width * (j + 0.5), 25, name, "middle") for j, name in enumerate(columns[1])]
    for i, row in enumerate(values):
        y = top + height * i
        parts.append(_label(left - 6, y + height / 2 + 4, rows[1][i], "end"))
        for j, value in enumerate(row):
            parts.append(_heatmap_cell(left + width * j, y, width, height, value, largest, tooltips[i][j]))
    bottom = top + height * len(values)
    parts.append(_label(4, bottom + 16, f"rows: {rows[0]}", "start"))
    return _svg(bottom + 22, alt, parts)


# -------------------- SVG elements


def _svg(height: float, alt: str, parts: Sequence[Html]) -> Html:
    return Html(
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{text(alt)}" '
        f'preserveAspectRatio="xMidYMid meet">{join(parts)}</svg>'
    )


def _label(x: float, y: float, label: str, anchor: str, css: str = "") -> Html:
    css_class = f' class="{css}"' if css else ""
    return Html(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css_class}>{text(label, MAX_NAME_LENGTH)}</text>'
    )


def _line(css: str, x1: float, x2: float, y1: float, y2: float, style: str = "") -> Html:
    return Html(f'<line class="{css}"{style} x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>')


def _circle(x: float, y: float, radius: float, color: int, tooltip: str, *, is_hollow: bool = False) -> Html:
    own = f"var(--s{color % N_COLORS})"
    paint = f'fill="var(--paper)" stroke="{own}"' if is_hollow else f'fill="{own}"'
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {paint}>'
    return Html(f"{circle}<title>{text(tooltip)}</title></circle>")


def _stroke(i: int) -> str:
    """Attributes that distinguish series ``i`` by color and by dashes."""
    dash = DASHES[i % len(DASHES)]
    return f' stroke="var(--s{i % N_COLORS})"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _anchor(x: float, left: float, right: float) -> str:
    return "start" if x < left + 8 else "end" if x > right - 8 else "middle"


def _grid(x: Axis, y: Axis, left: float, right: float, top: float, bottom: float) -> Html:
    parts = []
    for value, name in y.labeled_ticks:
        at = y.scale(value, bottom, top)
        parts += [_line("grid", left, right, at, at), _label(left - 5, at + 4, name, "end")]
    for value, name in x.labeled_ticks:
        at = x.scale(value, left, right)
        parts.append(_line("axis", at, at, bottom, bottom + 4))
        parts.append(_label(at, bottom + 16, name, _anchor(at, left, right)))
    parts.append(_line("axis", left, right, bottom, bottom))
    parts.append(_label((left + right) / 2, bottom + 31, x.label, "middle"))
    parts.append(_label(2, 9, y.label, "start"))
    return join(parts)


def _path(i: int, series: Series, x: Axis, y: Axis, box: tuple[float, float, float, float]) -> Html:
    left, right, top, bottom = box
    path, command, markers = [], "M", []
    for value_x, value_y in zip(series.x, series.y, strict=True):
        if not math.isfinite(value_y):
            command = "M"
            continue
        px, py = x.scale(value_x, left, right), y.scale(value_y, bottom, top)
        path.append(f"{command}{px:.1f} {py:.1f}")
        command = "L"
        if series.has_markers:
            tooltip = f"{series.name}: {value_y:.4g} at {format_number(value_x)}"
            markers.append(_circle(px, py, 2.6, i, tooltip))
    return Html(f'<path class="series"{_stroke(i)} d="{"".join(path)}"/>{join(markers)}')


def _thin_out(series: Series) -> Series:
    n = len(series.x)
    if n <= MAX_POINTS:
        return series
    rows = sorted({round(k * (n - 1) / (MAX_POINTS - 1)) for k in range(MAX_POINTS)})
    return Series(series.name, [series.x[k] for k in rows], [series.y[k] for k in rows], series.has_markers)


def _is_in_lower_half(series: Sequence[Series], x: float, y: Axis) -> bool:
    """Return whether the lines are, on average, in the lower half of the chart near ``x``."""
    near = [min(zip(one.x, one.y, strict=True), key=lambda point: abs(point[0] - x))[1] for one in series if one.x]
    finite = [v for v in near if math.isfinite(v)]
    return bool(finite) and sum(finite) / len(finite) < (y.low + y.high) / 2


def _legend(names: Sequence[str], top: float) -> Html:
    parts = []
    for i, name in enumerate(names):
        y = top + 16 * i
        parts += [_line("series", 46, 74, y, y, _stroke(i)), _label(80, y + 4, name, "start", "value")]
    return join(parts)


def _dot_row(row: DotRow, axis: Axis, left: float, right: float, top: float) -> Html:
    y = top + 26
    parts = [_label(left, top + 12, row.name, "start", "value"), _label(right, top + 12, row.label, "end")]
    if row.value is None:
        return join(parts)
    if row.low is not None and row.high is not None:
        a, b = axis.scale(row.low, left, right), axis.scale(row.high, left, right)
        style = f' stroke="var(--s{row.color % N_COLORS})" stroke-width="2"'
        parts.append(_line("whisker", a, b, y, y, style))
    parts.append(_circle(axis.scale(row.value, left, right), y, 5, row.color, f"{row.name}: {row.value:.4g}"))
    return join(parts)


def _heatmap_cell(x: float, y: float, width: float, height: float, value: float, largest: float, tooltip: str) -> Html:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}" rx="3"'
    if not math.isfinite(value):
        return Html(f'<rect {box} fill="none" stroke="var(--line)"/>')
    color = "var(--plus)" if value >= 0 else "var(--minus)"
    opacity = 0.08 + 0.62 * abs(value) / largest
    number = f"{value:+.1f}" if abs(value) < 100 else f"{value:+.0f}"
    return Html(
        f'<g><title>{text(tooltip)}</title><rect {box} fill="{color}" fill-opacity="{opacity:.2f}"/>'
        f"{_label(x + (width - 2) / 2, y + height / 2 + 3, number, 'middle', 'value inside')}</g>"
    )
