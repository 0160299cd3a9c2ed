"""Pictures for people: readable on white and in dark documents, told apart without colour.

Colours are those of Okabe and Ito, made for all kinds of eyes; ours is a filled circle, the paper's a hollow diamond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.experiments.tables import NONE, Compared

OURS, PAPER, INK, SOFT, GRID = "#0072B2", "#D55E00", "#222222", "#666666", "#DDDDDD"
NOT_AS_PUBLISHED = "* not as published"
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D00")
MARKERS = "osD^vPX*"
FEW = 0.001  # of all that a heat map counts: a mean of fewer has no colour
BESIDE = 4  # panels side by side: more would be too small to read in a document


@contextmanager
def figure(path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any) -> Iterator[Any]:
    """Axes (rows, columns) on white; saved as PNG when the block ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {"font.size": 9, "axes.titlesize": 10, "axes.edgecolor": "#888888", "axes.spines.top": False}
    style |= {"axes.spines.right": False, "figure.facecolor": "white", "text.color": INK, "axes.labelcolor": INK}
    with pyplot.rc_context(style):
        made, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
        try:
            yield made, axes
            made.savefig(path, dpi=140, format="png", facecolor="white")
        finally:
            pyplot.close(made)


def dots(
    path: Path,
    title: str,
    panels: Mapping[tuple[str, str], Mapping[str, Compared]],
    unit: str,
    theirs: str | None = "the paper",
) -> None:
    """Ours beside ``theirs`` (None: alone): a panel for each (row, column), a line for each name in it.

    More columns than fit side by side go on in a band below. The legend has ``theirs`` only where a figure
    of theirs is shown.
    """
    if not any(compared.paper is not None for panel in panels.values() for compared in panel.values()):
        theirs = None
    rows, columns = (list(dict.fromkeys(key[k] for key in panels)) for k in (0, 1))
    lines = max((len(panel) for panel in panels.values()), default=1)
    bands = -(-len(columns) // BESIDE) or 1  # of columns, one below the other
    wide = -(-len(columns) // bands) or 1
    size = (1.6 + 3.1 * max(wide, 1.6), 1.3 + bands * len(rows) * (0.7 + 0.25 * lines))
    with figure(path, bands * len(rows), wide, size) as (made, axes):
        for axis in axes.flat:
            axis.set_visible(False)  # but for those that get a panel
        for j, column in enumerate(columns):
            band, place = divmod(j, wide)
            for i, row in enumerate(rows):
                axis = axes[band * len(rows) + i][place]
                axis.set_visible(True)
                _panel(axis, panels.get((row, column), {}), show_names=place == 0)
                axis.set_title(f"{column}, {row}" if row else column, loc="left")
                if i == len(rows) - 1:
                    axis.set_xlabel(unit)
        made.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        starred = any(column.endswith("*") for column in columns)
        _legend(made, theirs, NOT_AS_PUBLISHED if starred else "")


def _panel(axes: Any, panel: Mapping[str, Compared], *, show_names: bool) -> None:
    for y, compared in enumerate(panel.values()):
        apart = 0.17 if compared.paper is not None and compared.mean is not None else 0.0
        if compared.paper is not None:
            mean, std = compared.paper
            axes.errorbar(mean, y - apart, xerr=std, fmt="D", color=PAPER, mfc="white", ms=5, lw=1.2, capsize=2)
        if compared.mean is not None:
            axes.plot(compared.values, np.full(len(compared.values), y + apart), "|", color=OURS, ms=6, alpha=0.6)
            axes.errorbar(
                compared.mean, y + apart, xerr=compared.std or 0, fmt="o", color=OURS, ms=5, lw=1.2, capsize=2
            )
    blank = [y for y, compared in enumerate(panel.values()) if compared.mean is None and compared.paper is None]
    if len(blank) == len(panel):
        _say_blank(axes, any(compared.cells for compared in panel.values()))
    else:
        axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
        for y in blank:
            axes.text(0.02, y, NONE, transform=axes.get_yaxis_transform(), va="center", color=SOFT)
    axes.set_yticks(range(len(panel)), list(panel) if show_names else [""] * len(panel))
    axes.set_ylim(len(panel) - 0.5, -0.5)
    axes.grid(axis="x", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _say_blank(axes: Any, finished: bool) -> None:
    """Words in place of a frame from 0 to 1 with nothing in it."""
    words = "not defined on these data" if finished else "not finished yet"
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=SOFT)
    axes.set_xticks([])


def _legend(made: Any, theirs: str | None, foot: str) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], marker="o", color=OURS, lw=1.2, label="here: mean, standard deviation, each seed")]
    if theirs is not None:
        marks.append(Line2D([], [], marker="D", color=PAPER, mfc="white", lw=1.2, label=theirs))
    if foot:
        marks.append(Line2D([], [], lw=0, label=foot))
    made.legend(handles=marks, loc="outside lower left", ncols=3, frameon=False)


def curves(axes: Any, series: Mapping[str, Sequence[tuple[float, Compared]]]) -> None:
    """Lines with spread over a number on the x-axis, each with a mark of its own."""
    for k, (name, points) in enumerate(series.items()):
        known = [(x, c) for x, c in points if c.mean is not None]
        if known:
            x, means = [p[0] for p in known], [p[1].mean for p in known]
            spread = [p[1].std or 0 for p in known]
            look = {"color": SERIES[k % len(SERIES)], "marker": MARKERS[k % len(MARKERS)]}
            if any(spread):
                axes.errorbar(x, means, yerr=spread, label=name, lw=1.4, ms=5, capsize=2, **look)
            else:
                axes.plot(x, means, label=name, lw=1.4, ms=5, **look)
    axes.grid(color=GRID, lw=0.7)
    axes.set_axisbelow(True)


def heat(
    axes: Any,
    values: np.ndarray,
    labels: tuple[Sequence[str], Sequence[str]],
    form: str = "{:.1f}",
    *,
    counts: np.ndarray | None = None,
    span: float = 0.0,
    framed: tuple[int, int] | None = None,
) -> Any:
    """A grid of numbers in colour and in figures; blank where there is none.

    ``counts``, of the same shape: whole numbers, in small print below the figures; where they are few there is no
    colour. Colours span at least ``span``, so that noise does not look like structure; ``framed`` is (row, column).
    """
    from matplotlib.patches import Rectangle

    few = np.zeros(values.shape, dtype=bool) if counts is None else counts < FEW * counts.sum()
    shown = np.ma.masked_where(few | ~np.isfinite(values), values)
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 1.0)
    wider = max(0.0, span - (high - low)) / 2
    low, high = low - wider, high + wider
    image = axes.imshow(shown, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = not few[i, j] and (value - low) / (high - low or 1) < 0.55
            look: Any = {"ha": "center", "color": "white" if dark else SOFT if few[i, j] else INK}
            axes.text(j, i, form.format(value), va="center" if counts is None else "bottom", fontsize=8, **look)
            if counts is not None:
                axes.text(j, i + 0.06, f"{counts[i, j]:,}", va="top", fontsize=6.5, **look)
    if framed is not None:
        axes.add_patch(Rectangle((framed[1] - 0.5, framed[0] - 0.5), 1, 1, fill=False, ec=PAPER, lw=2.5))
    axes.set_yticks(range(len(labels[0])), labels[0])
    axes.set_xticks(range(len(labels[1])), labels[1])
    for side in axes.spines.values():
        side.set_visible(False)
    return image
