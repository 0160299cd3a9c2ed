"""Complexity: how the cost of a training step grows, measured, beside the order that the paper claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.link import model_name
from cordgt.experiments.tables import NONE, Asked, Report, Section, data_name, gather, notes

DATASETS = ("uci", "food")
MODELS = ("cordgt", "tgat", "tgn")

# The paper's table of time complexities (its columns' heads are swapped), and what each says of one size alone.
CLAIMED = {
    "cordgt": ("O(B(log d + C) + C²HD)", {"batch": "1", "context": "1 to 2", "events": "log d"}),
    "tgat": ("O(B log d + CHD)", {"batch": "1", "context": "1", "events": "log d"}),
    "tgn": ("O(B log d + CHD)", {"batch": "1", "context": "1", "events": "log d"}),
}
SIZES = {"batch": "events of a batch", "context": "nodes drawn at a hop", "events": "events of the stream"}


def complexity_cells(asked: Asked) -> list[Cell]:
    """One for each dataset and model: time has no seed."""
    return [
        make_cell(data, model, 0, asked.changes, kind="growth", quick=asked.quick)
        for data in asked.datasets
        for model in asked.models
    ]


def complexity_report(asked: Asked, store: Store) -> Report:
    """Milliseconds at each size, the exponent that fits them, and the paper's order."""
    wanted = complexity_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    for data in asked.datasets:
        found = {k["model"]: k for k in every if k["data"] == data}
        for size, words in SIZES.items():
            rows = []
            for model in asked.models:
                if model not in found:
                    rows.append([model_name(model), NONE, NONE, CLAIMED[model][1][size]])
                    continue
                figures = found[model]["figures"]
                shown = ", ".join(f"{k['size']:,}: {_shown(k['ms'])}" for k in figures[size])
                exponent = figures[f"{size}_order"]
                rows.append([model_name(model), shown, f"{exponent:.2f}", CLAIMED[model][1][size]])
                claim = {"order": round(exponent, 4), "claimed": CLAIMED[model][1][size]}
                about = {"data": data, "model": model, "grows_with": size, "machine": found[model]["machine"]}
                records += [about | k | claim for k in figures[size]]
            columns = ["", "size: milliseconds a step", "measured exponent", "claimed"]
            sections.append(Section(f"{data_name(data, every)}: {words}", columns, rows))
    said = [
        "The exponent k fits milliseconds ~ size^k: 0 does not grow, 1 is linear, 2 quadratic. A logarithm shows as a "
        "small one, and so does a machine that is not yet busy.",
        *(
            f"{model_name(m)}, as the paper has it: {CLAIMED[m][0]}; B the batch, C the context, d the mean degree."
            for m in asked.models
        ),
        "A step is taken again and again on the last training events; that of TGN goes on from batch to batch, as in "
        "training.",
        "The paper's C²HD lacks the batch. TGAT's context is its neighbours at each of two hops, so that its slots "
        "grow with their square.",
        *notes(store, wanted, every, of_pairs=False),
    ]

    def draw(path: Path) -> None:
        _draw(path, every)

    return Report("Complexity: how the cost of a training step grows", sections, records, said, draw)


def _shown(ms: float) -> str:
    """Three digits, and never a power of ten."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _draw(path: Path, every: list[dict[str, Any]]) -> None:
    from matplotlib.ticker import LogLocator

    data = list(dict.fromkeys(k["data"] for k in every))
    with plots.figure(path, max(1, len(data)), len(SIZES), (11, 0.8 + 3 * max(1, len(data)))) as (made, axes):
        for i, of in enumerate(data):
            for j, (size, words) in enumerate(SIZES.items()):
                place, ticks = axes[i][j], set[int]()
                for n, cell in enumerate(k for k in every if k["data"] == of):
                    points = cell["figures"][size]
                    x, y = [k["size"] for k in points], [k["ms"] for k in points]
                    label = f"{model_name(cell['model'])}: {cell['figures'][f'{size}_order']:.2f}"
                    place.loglog(x, y, label=label, color=plots.SERIES[n], marker=plots.MARKERS[n], lw=1.4, ms=5)
                    ticks.update(x)
                place.set_xticks(sorted(ticks), [f"{v:,}" for v in sorted(ticks)])
                place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                place.yaxis.set_major_formatter("{x:,g}")
                place.minorticks_off()
                place.set(title=f"{of}: {words}", xlabel=words, ylabel="ms a step")
                place.grid(color=plots.GRID, lw=0.7)
                place.legend(frameon=False, title="exponent", fontsize=8)
        made.suptitle("Cost of a training step, and the exponent that fits it", x=0.01, ha="left", fontsize=11)
