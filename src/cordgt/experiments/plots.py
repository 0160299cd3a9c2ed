"""Plots of the reports: dot plots, lines and heat maps, readable without color.

Colors are those of Okabe and Ito, safe for color-blind readers. Our results are filled circles, published ones hollow
diamonds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.experiments.tables import MISSING, Comparison, Panels

OURS, PAPER, TEXT, MUTED, GRID = "#0072B2", "#D55E00", "#222222", "#666666", "#DDDDDD"
NOT_AS_PUBLISHED = "* not as published"
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D00")
MARKERS = "osD^vPX*"
MIN_COUNT_SHARE = 0.001  # of all counts in a heat map: a mean of fewer has no color
MAX_PANEL_COLUMNS = 4  # more panels side by side are too small to read


@contextmanager
def figure(path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any) -> Iterator[Any]:
    """Yield a figure and its axes (rows, columns); save it as PNG when the block ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {"font.size": 9, "axes.titlesize": 10, "axes.edgecolor": "#888888", "axes.spines.top": False}
    style |= {"axes.spines.right": False, "figure.facecolor": "white", "text.color": TEXT, "axes.labelcolor": TEXT}
    with pyplot.rc_context(style):
        canvas, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
        try:
            yield canvas, axes
            canvas.savefig(path, dpi=140, format="png", facecolor="white")
        finally:
            pyplot.close(canvas)


def dot_plot(
    path: Path,
    title: str,
    panels: Panels,
    unit: str,
    published_label: str | None = "the paper",
) -> None:
    """Plot our results next to published ones: a panel for each (row, column), a line for each name in it.

    Columns that do not fit side by side wrap into a band below. The legend has ``published_label`` only if a published
    result is shown.
    """
    if not any(comparison.paper is not None for panel in panels.values() for comparison in panel.values()):
        published_label = None
    rows, columns = (list(dict.fromkeys(key[k] for key in panels)) for k in (0, 1))
    lines = max((len(panel) for panel in panels.values()), default=1)
    bands = -(-len(columns) // MAX_PANEL_COLUMNS) or 1
    per_band = -(-len(columns) // bands) or 1
    size = (1.6 + 3.1 * max(per_band, 1.6), 1.3 + bands * len(rows) * (0.7 + 0.25 * lines))
    with figure(path, bands * len(rows), per_band, size) as (canvas, axes):
        for axis in axes.flat:
            axis.set_visible(False)  # shown below if it has a panel
        for j, column in enumerate(columns):
            band, position = divmod(j, per_band)
            for i, row in enumerate(rows):
                axis = axes[band * len(rows) + i][position]
                axis.set_visible(True)
                _draw_panel(axis, panels.get((row, column), {}), show_names=position == 0)
                axis.set_title(f"{column}, {row}" if row else column, loc="left")
                if i == len(rows) - 1:
                    axis.set_xlabel(unit)
        canvas.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        starred = any(column.endswith("*") for column in columns)
        _add_legend(canvas, published_label, NOT_AS_PUBLISHED if starred else "")


def _draw_panel(axes: Any, panel: Mapping[str, Comparison], *, show_names: bool) -> None:
    for y, comparison in enumerate(panel.values()):
        offset = 0.17 if comparison.paper is not None and comparison.mean is not None else 0.0
        if comparison.paper is not None:
            mean, std = comparison.paper
            axes.errorbar(mean, y - offset, xerr=std, fmt="D", color=PAPER, mfc="white", ms=5, lw=1.2, capsize=2)
        if comparison.mean is not None:
            axes.plot(comparison.values, np.full(len(comparison.values), y + offset), "|", color=OURS, ms=6, alpha=0.6)
            axes.errorbar(
                comparison.mean, y + offset, xerr=comparison.std or 0, fmt="o", color=OURS, ms=5, lw=1.2, capsize=2
            )
    blank = [y for y, comparison in enumerate(panel.values()) if comparison.mean is None and comparison.paper is None]
    if len(blank) == len(panel):
        _label_empty(axes, any(comparison.n_cells for comparison in panel.values()))
    else:
        axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
        for y in blank:
            axes.text(0.02, y, MISSING, transform=axes.get_yaxis_transform(), va="center", color=MUTED)
    axes.set_yticks(range(len(panel)), list(panel) if show_names else [""] * len(panel))
    axes.set_ylim(len(panel) - 0.5, -0.5)
    axes.grid(axis="x", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _label_empty(axes: Any, finished: bool) -> None:
    """Say why a panel is empty."""
    reason = "not defined on these data" if finished else "not finished yet"
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set_xticks([])


def _add_legend(canvas: Any, published_label: str | None, remark: str) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], marker="o", color=OURS, lw=1.2, label="here: mean, standard deviation, each seed")]
    if published_label is not None:
        marks.append(Line2D([], [], marker="D", color=PAPER, mfc="white", lw=1.2, label=published_label))
    if remark:
        marks.append(Line2D([], [], lw=0, label=remark))
    canvas.legend(handles=marks, loc="outside lower left", ncols=3, frameon=False)


def line_plot(axes: Any, series: Mapping[str, Sequence[tuple[float, Comparison]]]) -> None:
    """Plot lines with error bars over a number on the x-axis, each with its own marker."""
    for k, (name, points) in enumerate(series.items()):
        known = [(x, c) for x, c in points if c.mean is not None]
        if known:
            x, means = [p[0] for p in known], [p[1].mean for p in known]
            stds = [p[1].std or 0 for p in known]
            style = {"color": SERIES[k % len(SERIES)], "marker": MARKERS[k % len(MARKERS)]}
            if any(stds):
                axes.errorbar(x, means, yerr=stds, label=name, lw=1.4, ms=5, capsize=2, **style)
            else:
                axes.plot(x, means, label=name, lw=1.4, ms=5, **style)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)


def annotated_heatmap(
    axes: Any,
    values: np.ndarray,
    labels: tuple[Sequence[str], Sequence[str]],
    template: str,
    *,
    counts: np.ndarray | None = None,
    min_color_range: float = 0.0,
    highlight: tuple[int, int] | None = None,
) -> Any:
    """Draw a grid of numbers as colors and text; NaN is blank.

    ``counts``, shaped like ``values``, is printed below them; cells with few counts have no color. Colors span at least
    ``min_color_range``, so that noise does not look like structure. ``highlight`` frames one (row, column).
    """
    from matplotlib.patches import Rectangle

    few = np.zeros(values.shape, dtype=bool) if counts is None else counts < MIN_COUNT_SHARE * counts.sum()
    shown = np.ma.masked_where(few | ~np.isfinite(values), values)
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 1.0)
    margin = max(0.0, min_color_range - (high - low)) / 2
    low, high = low - margin, high + margin
    image = axes.imshow(shown, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = not few[i, j] and (value - low) / (high - low or 1) < 0.55
            style: Any = {"ha": "center", "color": "white" if dark else MUTED if few[i, j] else TEXT}
            axes.text(j, i, template.format(value), va="center" if counts is None else "bottom", fontsize=8, **style)
            if counts is not None:
                axes.text(j, i + 0.06, f"{counts[i, j]:,}", va="top", fontsize=6.5, **style)
    if highlight is not None:
        axes.add_patch(Rectangle((highlight[1] - 0.5, highlight[0] - 0.5), 1, 1, fill=False, ec=PAPER, lw=2.5))
    axes.set_yticks(range(len(labels[0])), labels[0])
    axes.set_xticks(range(len(labels[1])), labels[1])
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def label_points(axes: Any, points: Sequence[tuple[float, float, str, str]]) -> None:
    """Write a label next to each point (x, y, text, color), where it hides no other point and no other label.

    Call it when scales and limits of the axes are final. A label without a free place is put to the right.
    """
    axes.figure.draw_without_rendering()
    to_pixels = axes.transData.transform
    unit = axes.figure.dpi / 72  # pixels of a point
    taken = [(x - 5 * unit, y - 5 * unit, x + 5 * unit, y + 5 * unit) for x, y in (to_pixels(p[:2]) for p in points)]
    frame = axes.bbox
    for x, y, text, color in points:
        left, bottom = to_pixels((x, y))
        width, height = (5.2 * len(text) + 2) * unit, 10 * unit
        places = [(8, -3), (-8 - width / unit, -3), (-width / unit / 2, 8), (-width / unit / 2, -15)]
        places += [(6, 6), (6, -13), (-6 - width / unit, 6), (-6 - width / unit, -13)]
        boxes = [(left + dx * unit, bottom + dy * unit) for dx, dy in places]
        chosen = 0
        for k, (bx, by) in enumerate(boxes):
            box = (bx, by, bx + width, by + height)
            inside = box[0] >= frame.x0 and box[2] <= frame.x1 and box[1] >= frame.y0 and box[3] <= frame.y1
            if inside and not any(_overlap(box, other) for other in taken):
                chosen = k
                break
        bx, by = boxes[chosen]
        taken.append((bx, by, bx + width, by + height))
        axes.annotate(text, (x, y), places[chosen], textcoords="offset points", color=color, fontsize=8.5)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
