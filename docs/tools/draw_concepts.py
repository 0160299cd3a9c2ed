"""Draw the pictures of ``docs/concepts.md`` as SVG files in ``docs/images``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

IMAGES = Path(__file__).parents[1] / "images"
BLUE, ORANGE, GREEN, GRAY, LIGHT, INK = "#0072B2", "#D55E00", "#009E73", "#9aa5b1", "#e8f0fc", "#222222"


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and axes without a frame, in a coordinate system of inches times ten."""
    matplotlib.rcParams |= {"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "concepts"}
    figure, axes = pyplot.subplots(figsize=(width, height))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set_xlim(0, 10 * width)
    axes.set_ylim(0, 10 * height)
    axes.axis("off")
    return figure, axes


def save(figure: Any, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def time_line(axes: Any, y: float, end: float = 68) -> None:
    axes.annotate("", (end, y), (3, y), arrowprops={"arrowstyle": "-|>", "color": GRAY})
    axes.text(end, y - 2.6, "time", ha="right", color=GRAY)


def event(axes: Any, x: float, y: float, text: str, color: str = BLUE) -> None:
    axes.plot(x, y, "o", color=color, ms=11)
    axes.text(x, y + 2, text, ha="center", color=color, fontsize=9)


def draw_cut() -> None:
    """A query sees the first ``cut`` events."""
    figure, axes = canvas(7.2, 2.2)
    axes.add_patch(Rectangle((4, 3), 37, 13.5, fc=LIGHT, ec="none"))
    time_line(axes, 7)
    for number, x in enumerate((7, 13, 20, 27, 35), 1):
        event(axes, x, 7, f"event {number}")
    axes.plot([41, 41], [2, 19], "--", color=ORANGE)
    axes.text(41, 19.6, "cut = 5", ha="center", color=ORANGE, weight="bold")
    axes.plot(46, 7, "D", color=INK, ms=9)
    axes.text(46, 9.4, "query", ha="center", color=INK)
    for number, x in enumerate((54, 61), 6):
        event(axes, x, 7, f"event {number}", GRAY)
    axes.text(22, 14, "the query sees these events", ha="center", color=BLUE)
    axes.text(57, 14, "and none of these", ha="center", color=GRAY)
    save(figure, "concept-cut")


def draw_visibility() -> None:
    """What the query sees under each of the three rules."""
    figure, axes = canvas(7.6, 3.0)
    batch_start, query = 34, 52
    axes.add_patch(Rectangle((batch_start, 4), 26, 23, fc="#f3f3f3", ec="none"))
    axes.text(batch_start + 13, 28, "one batch of the evaluation", ha="center", color=GRAY)
    xs = (20, 26, 31, 37, 42, 47)
    for y, rule, seen, remark in (
        (22, "event", 53, "trees and pair counts up to the query"),
        (14, "paper", 53, "trees up to the query, pair counts up to the batch"),
        (6, "batch", 34, "trees and pair counts up to the batch"),
    ):
        axes.text(2, y - 0.7, rule, weight="bold", family="monospace")
        for x in xs:
            axes.plot(x, y, "o", color=BLUE if x < seen else GRAY, mfc=BLUE if x < seen else "white", ms=9)
            if rule == "paper" and x > batch_start:
                axes.plot(x, y, "o", color=BLUE, mfc="white", ms=9)
        axes.plot(query, y, "D", color=INK, ms=8)
        axes.text(15, y - 3.4, remark, fontsize=8.5, color=INK)
    axes.text(62, 21.3, "query: ◆", fontsize=9)
    axes.text(62, 18, "● seen", fontsize=9, color=BLUE)
    axes.text(62, 14.7, "○ seen in trees", fontsize=9, color=BLUE)
    axes.text(62, 11.4, "○ not seen", fontsize=9, color=GRAY)
    save(figure, "concept-visibility")


def draw_negatives() -> None:
    """Kinds of negatives for one true event."""
    figure, axes = canvas(7.2, 2.5)
    axes.text(3, 12, "ada", weight="bold", fontsize=12, va="center")
    kinds = (
        (21.5, "tea", "the true destination", GREEN),
        (15.5, "rake", "random: any other product", BLUE),
        (9.5, "milk", "historical: she bought it before, but not now", ORANGE),
        (3.5, "cake", "inductive: first bought by her after the training period", "#CC79A7"),
    )
    for y, name, text, color in kinds:
        axes.annotate("", (19, y), (8, 12), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.6})
        axes.text(20, y, name, va="center", weight="bold", color=color)
        axes.text(27, y, text, va="center", color=INK)
    save(figure, "concept-negatives")


def draw_inductive() -> None:
    """Which events are transductive and which are inductive."""
    figure, axes = canvas(7.2, 2.6)
    for x, width, name, color in (
        (4, 42, "training, 70 %", LIGHT),
        (46, 9, "15 %", "#f3f3f3"),
        (55, 13, "test, 15 %", "#fdeee3"),
    ):
        axes.add_patch(Rectangle((x, 4), width, 15, fc=color, ec="white", lw=2))
        axes.text(x + width / 2, 20.3, name, ha="center", fontsize=9)
    axes.text(50.5, 23, "validation", ha="center", fontsize=9)
    rows = ((15, "ada", (8, 16, 27, 39, 50, 59, 64), BLUE), (8, "zoe", (53, 58, 62.5), ORANGE))
    for y, name, xs, color in rows:
        axes.text(1, y, name, va="center", weight="bold", color=color, fontsize=9)
        axes.plot(xs, [y] * len(xs), "o", color=color, ms=8)
    axes.text(25, 8, "zoe has no event in training", ha="center", va="center", color=ORANGE, fontsize=9)
    axes.text(4, 1, "transductive: all test events (blue and orange)", fontsize=9, color=INK)
    axes.text(68, 1, "inductive: only the orange ones", fontsize=9, color=ORANGE, ha="right")
    save(figure, "concept-inductive")


def draw_calibration() -> None:
    """Stated probabilities and observed shares, well and badly calibrated. The numbers are an example."""
    matplotlib.rcParams |= {"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "concepts"}
    figure, axes = pyplot.subplots(figsize=(4.6, 3.6), layout="constrained")
    stated = [0.1, 0.3, 0.5, 0.7, 0.9]
    axes.plot([0, 1], [0, 1], "--", color=GRAY, label="ideal")
    axes.plot(stated, [0.11, 0.28, 0.52, 0.69, 0.88], "o-", color=BLUE, label="well calibrated")
    axes.plot(stated, [0.04, 0.13, 0.27, 0.44, 0.66], "s-", color=ORANGE, label="too sure")
    axes.set(xlabel="probability that the model states", ylabel="share of cases that happen", xlim=(0, 1), ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(figure, "concept-calibration")


if __name__ == "__main__":
    for draw in (draw_cut, draw_visibility, draw_negatives, draw_inductive, draw_calibration):
        draw()
