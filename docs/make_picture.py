"""Draws docs/cordgt.png: how CorDGT answers one question. Run it from anywhere; it needs matplotlib only.

Everything shown but the score is computed here, from the ten events before the question, as the paper defines it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

EVENTS = [
    (0.0, "a", "c"),
    (0.8, "u", "a"),
    (1.7, "b", "d"),
    (2.6, "v", "c"),
    (3.4, "u", "b"),
    (4.3, "a", "c"),
    (5.1, "v", "b"),
    (5.9, "u", "a"),
    (6.8, "c", "d"),
    (7.6, "v", "c"),
    (9.6, "u", "d"),
    (10.4, "v", "a"),
]
ASKED = 8.6
SCORE = 0.91
ALPHA, BETA = 0.1, 1.0
DRAWS = {"u": [(2, 2), (1, 0), (0, 0)], "v": [(2, 3), (1, 1), (0, 0)]}  # ranks drawn: one at hop 1, one below it

INK, SOFT, FAINT, PAPER, PANEL = "#1f2933", "#5b6875", "#c9d1d9", "#ffffff", "#f6f8fa"
FILL = {"u": "#2563c9", "v": "#d9480f", "a": "#2b9a66", "b": "#8e5bd0", "c": "#c98a00", "d": "#c2457f"}
NEAR = LinearSegmentedColormap.from_list("near", ["#2b7a78", "#9fd3cd", "#e9f5f3"])


@dataclass(frozen=True)
class Slot:
    """A place in a tree: the node, the time of the event that drew it, its hop, and its parent's place."""

    node: str
    t: float
    hop: int
    parent: int


# --- the method, in small ---


def past(node: str, before: float) -> list[tuple[float, str]]:
    """The node's events strictly before a time, oldest first: each its time and the other end."""
    return [(t, b if a == node else a) for t, a, b in EVENTS if t < before and node in (a, b)]


def tree(root: str) -> list[Slot]:
    slots = [Slot(root, ASKED, 0, 0)]
    for first, second in DRAWS[root]:
        t, node = past(root, ASKED)[first]
        slots.append(Slot(node, t, 1, 0))
        below, under = past(node, t)[second]
        slots.append(Slot(under, below, 2, len(slots) - 1))
    return slots


def hops(node: str, slots: list[Slot]) -> int | None:
    return min((s.hop for s in slots if s.node == node), default=None)


def time_distance(node: str, root: str) -> float | None:
    if node == root:
        return 0.0
    met = [t for t, other in past(root, ASKED) if other == node]
    return ALPHA * met[-1] / (ASKED * len(met)) + BETA * (ASKED - met[-1]) / ASKED if met else None


# --- the drawing ---


def ball(ax: Axes, x: float, y: float, node: str, r: float = 2.3, faded: bool = False) -> None:
    ax.add_patch(Circle((x, y), r, fc=FAINT if faded else FILL[node], ec=PAPER, lw=1.2, zorder=4))
    ax.text(x, y - 0.06, node, color=PAPER, ha="center", va="center_baseline", size=4.6 * r, weight="bold", zorder=5)


def panel(ax: Axes, x: float, y: float, w: float, h: float, number: str, title: str, text: str = "") -> None:
    rounded(ax, x, y, w, h, 2, fc=PANEL, ec="#e1e6eb", lw=1)
    ax.add_patch(Circle((x + 5, y + h - 5.2), 2.5, fc=INK, ec="none"))
    ax.text(x + 5, y + h - 5.3, number, color=PAPER, ha="center", va="center_baseline", size=10.5, weight="bold")
    ax.text(x + 9.5, y + h - 5.3, title, color=INK, ha="left", va="center_baseline", size=12.5, weight="bold")
    ax.text(x + 9.5, y + h - 10.4, text, color=SOFT, ha="left", va="center_baseline", size=9.6)


def draw_stream(ax: Axes, x: float, y: float, w: float, h: float) -> None:
    panel(
        ax,
        x,
        y,
        w,
        h,
        "1",
        "A stream of events",
        "Will u meet v now? The question sees the events before the cut, and nothing else.",
    )

    def place(t: float) -> float:
        return x + 10 + t * (w - 25) / 10.4

    line = y + 6.4
    cut = place((7.6 + ASKED) / 2)
    ax.add_patch(Rectangle((x + 3.5, line - 4.4), cut - x - 3.5, 20, fc="#e8f0fc", ec="none", zorder=1))
    ax.add_patch(
        FancyArrowPatch(
            (x + 4, line), (x + w - 4, line), arrowstyle="-|>", mutation_scale=13, color=SOFT, lw=1.3, zorder=2
        )
    )
    ax.text(x + w - 3.6, line - 2.6, "time", color=SOFT, ha="right", va="center_baseline", size=9.6)
    for t, a, b in EVENTS:
        later = t > ASKED
        ax.plot([place(t)] * 2, [line, line + 12], color=FAINT if later else SOFT, lw=1.4, zorder=2)
        ball(ax, place(t), line + 12, a, faded=later)
        ball(ax, place(t), line + 5.6, b, faded=later)
        ax.text(
            place(t),
            line - 2.6,
            f"{t:.1f}",
            color=FAINT if later else SOFT,
            ha="center",
            va="center_baseline",
            size=8.6,
        )
    ax.plot([cut, cut], [line - 4.4, line + 18.4], color=FILL["u"], lw=1.6, ls=(0, (4, 2.5)), zorder=3)
    ax.text(cut - 1.4, line + 17.9, "cut", color=FILL["u"], ha="right", va="center_baseline", size=11.5, weight="bold")
    asked = place(ASKED)
    ax.plot([asked] * 2, [line, line + 12], color=INK, lw=1.4, ls=(0, (1.5, 1.5)), zorder=2)
    ax.text(asked, line - 2.6, f"{ASKED:.1f}", color=INK, ha="center", va="center_baseline", size=8.6, weight="bold")
    ball(ax, asked, line + 12, "u")
    ball(ax, asked, line + 5.6, "v")
    ax.text(asked + 3.1, line + 8.8, "?", color=INK, ha="left", va="center_baseline", size=17, weight="bold")
    ax.text(
        place(10.0), line + 17.9, "not seen", color=SOFT, ha="center", va="center_baseline", size=9.6, style="italic"
    )


def draw_tree(ax: Axes, slots: list[Slot], x: float, y: float, step: float, drop: float) -> None:
    """The root on top in the middle, each of its three branches straight down below it."""
    where: list[tuple[float, float]] = []
    branch = -1
    for slot in slots:
        branch += slot.hop == 1
        where.append((x + (branch - 1) * step if slot.hop else x, y - slot.hop * drop))
        here = where[-1]
        if slot.hop:
            top = where[slot.parent]
            ax.plot([top[0], here[0]], [top[1], here[1]], color=SOFT, lw=1.4, zorder=2)
            middle = (here[0] * 0.62 + top[0] * 0.38, here[1] * 0.62 + top[1] * 0.38)
            box = {"boxstyle": "round,pad=0.12", "fc": PANEL, "ec": "none"}
            ax.text(*middle, f"{slot.t:.1f}", color=SOFT, ha="center", va="center", size=8.4, bbox=box, zorder=3)
        ball(ax, *here, slot.node, r=2.9 if slot.hop == 0 else 2.3)


def draw_trees(ax: Axes, x: float, y: float, w: float, h: float) -> None:
    panel(ax, x, y, w, h, "2", "A sampled tree for each", "past partners, and theirs before that")
    for root, middle in (("u", x + w * 0.30), ("v", x + w * 0.765)):
        draw_tree(ax, tree(root), middle, y + h - 20, 9.4, 14.2)
    for hop in range(3):
        ax.text(x + 2.2, y + h - 20 - 14.2 * hop, f"{hop}", color=SOFT, ha="left", va="center", size=9)
    ax.text(x + 2.2, y + h - 15.4, "hop", color=SOFT, ha="left", va="center", size=9)


def draw_distances(ax: Axes, x: float, y: float, w: float, h: float) -> None:
    panel(ax, x, y, w, h, "3", "Distances to both ends", "of every sampled node; dark is near, – is none")
    trees = {root: tree(root) for root in "uv"}
    cell_w, cell_h, left, top = 10.4, 4.85, x + 12.5, y + h - 24.0
    for i, (title, unit) in enumerate((("in hops", 0.0), ("in time", 2 * cell_w + 3.0))):
        ax.text(left + unit + cell_w, top + 7.4, title, color=INK, ha="center", va="center_baseline", size=9.6)
        for j, root in enumerate("uv"):
            at = left + unit + j * cell_w
            ax.text(at + cell_w / 2 - 1.8, top + 2.7, "to", color=SOFT, ha="center", va="center_baseline", size=9)
            ball(ax, at + cell_w / 2 + 1.5, top + 2.8, root, r=1.6)
            for row, node in enumerate("uvabcd"):
                value = hops(node, trees[root]) if i == 0 else time_distance(node, root)
                draw_cell(ax, at, top - (row + 1) * cell_h, cell_w, cell_h, value, 2.6 if i == 0 else 1.0)
    for row, node in enumerate("uvabcd"):
        ball(ax, x + 8, top - (row + 0.5) * cell_h, node, r=1.9)


def draw_cell(ax: Axes, x: float, y: float, w: float, h: float, value: float | None, farthest: float) -> None:
    if value is None:
        ax.add_patch(Rectangle((x, y), w, h, fc="#eceff2", ec=PANEL, lw=1.5))
        ax.text(x + w / 2, y + h / 2, "–", color=SOFT, ha="center", va="center", size=9.5)
        return
    ax.add_patch(Rectangle((x, y), w, h, fc=NEAR(value / farthest), ec=PANEL, lw=1.5))
    text = f"{value:.2f}" if isinstance(value, float) and value else f"{value:.0f}"
    color = PAPER if value / farthest < 0.25 else INK
    ax.text(x + w / 2, y + h / 2 - 0.1, text, color=color, ha="center", va="center_baseline", size=9.5)


def draw_score(ax: Axes, x: float, y: float, w: float, h: float) -> None:
    panel(ax, x, y, w, h, "4", "A score", "from one token a sampled node")
    middle, top = x + w / 2, y + h
    for i, slot in enumerate(tree("u") + tree("v")):
        at = x + 5.4 + i * (w - 10.8) / 13 + (0.9 if i > 6 else -0.9)
        for k, shade in enumerate((FILL[slot.node], "#8fc7c1", "#c9e5e1")):
            ax.add_patch(Rectangle((at - 1.0, top - 17.6 - 2.0 * k), 2.0, 2.0, fc=shade, ec=PANEL, lw=0.8))
    for root, at in (("u", x + w * 0.28), ("v", x + w * 0.72)):
        arrow(ax, (at, top - 22.4), (at, top - 25.4))
        arrow(ax, (at, top - 32.6), (at, top - 35.2))
        z = f"z({root})"
        ax.text(at, top - 37.4, z, color=FILL[root], ha="center", va="center_baseline", size=11, weight="bold")
        arrow(
            ax, (at + (3.6 if root == "u" else -3.6), top - 37.4), (middle + (-5.2 if root == "u" else 5.2), top - 37.4)
        )
    box(ax, x + 5, top - 32.2, w - 10, 6.4, "transformer")
    box(ax, middle - 4.8, top - 40.2, 9.6, 5.6, "MLP")
    arrow(ax, (middle, top - 40.6), (middle, top - 44.0))
    bar, left, low = w - 26, x + 5, y + 5.4
    rounded(ax, left, low, bar, 2.6, 1.3, fc="#dfe5ea", ec="none")
    rounded(ax, left, low, bar * SCORE, 2.6, 1.3, fc="#2b7a78", ec="none")
    ax.text(x + w - 5, low + 1.2, f"{SCORE:.2f}", color=INK, ha="right", va="center_baseline", size=18, weight="bold")


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 10, "color": SOFT, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.add_patch(FancyArrowPatch(start, end, **style))


def rounded(ax: Axes, x: float, y: float, w: float, h: float, radius: float, **style: object) -> None:
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=f"round,pad=0,rounding_size={radius}", **style))


def box(ax: Axes, x: float, y: float, w: float, h: float, text: str) -> None:
    rounded(ax, x, y, w, h, 1.5, fc="#e3f1ef", ec="#2b7a78", lw=1.2)
    ax.text(x + w / 2, y + h / 2 - 0.1, text, color=INK, ha="center", va="center_baseline", size=11)


def main() -> None:
    wide, high = 190, 98
    figure = plt.figure(figsize=(wide / 16, high / 16), dpi=160, facecolor=PAPER)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, wide), ylim=(0, high), aspect="equal")
    ax.axis("off")
    draw_stream(ax, 1, 59, 188, 38)
    draw_trees(ax, 1, 1, 66, 56)
    draw_distances(ax, 69, 1, 64, 56)
    draw_score(ax, 135, 1, 54, 56)
    figure.savefig(Path(__file__).with_name("cordgt.png"), facecolor=PAPER)


if __name__ == "__main__":
    main()
