"""Draw ``docs/images/choice.svg``: AP and training time of each model on UCI, from the committed cells."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = Path(__file__).parents[1]
CELLS = DOCS / "results" / "cells" / "link" / "uci"
CPU, GPU = "#0072B2", "#D55E00"
OFFSETS = {
    "tgsrec": (6, -4),
    "dyrep": (8, -3),
    "counts": (-46, -4),
    "cordgt": (-28, 7),
    "dygformer": (8, -1),
    "graphmixer": (-72, -3),
}


def points() -> dict[str, tuple[float, float, str]]:
    """Return (seconds, transductive test AP in percent, device) by model: means over the default cells."""
    found = defaultdict(list)
    for path in sorted(CELLS.glob("*/default-seed*.json")):
        cell = json.loads(path.read_text())
        ap = 100 * cell["figures"]["test"]["transductive"]["ap"]
        found[path.parent.name].append((cell["seconds"], ap, cell["device"].partition(":")[0]))
    return {name: (mean(c[0] for c in cells), mean(c[1] for c in cells), cells[0][2]) for name, cells in found.items()}


def draw(path: Path) -> None:
    """Draw the figure."""
    matplotlib.rcParams |= {"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "choice"}
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for name, (seconds, ap, device) in points().items():
        color = CPU if device == "cpu" else GPU
        axes.plot(seconds, ap, "o" if device == "cpu" else "s", color=color, ms=7)
        axes.annotate(name, (seconds, ap), OFFSETS.get(name, (7, -3)), textcoords="offset points")
    axes.plot([], [], "o", color=CPU, label="CPU cores")
    axes.plot([], [], "s", color=GPU, label="one H200 GPU, shared")
    axes.set(xscale="log", xlabel="seconds of a whole training", ylabel="test AP, transductive, in percent")
    axes.set_xlim(0.08, 600)
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.grid(color="#dddddd", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    draw(DOCS / "images" / "choice.svg")
