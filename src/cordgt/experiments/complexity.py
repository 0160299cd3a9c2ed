"""Complexity: how the measured cost of a training step grows, next to the order that the paper claims."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.tables import MISSING, ExperimentRequest, Report, ResultSet, Section

DATASETS = ("uci", "food")
MODELS = ("cordgt", "tgat", "tgn")

# The paper's table of time complexities (its column headings are swapped), and the exponent of each size that follows.
CLAIMED_COMPLEXITY = {
    "cordgt": ("O(B(log d + C) + C²HD)", {"batch": "1", "context": "1 to 2", "events": "log d"}),
    "tgat": ("O(B log d + CHD)", {"batch": "1", "context": "1", "events": "log d"}),
    "tgn": ("O(B log d + CHD)", {"batch": "1", "context": "1", "events": "log d"}),
}
SIZES = {"batch": "events per batch", "context": "nodes sampled at a hop", "events": "events in the stream"}


def complexity_cells(request: ExperimentRequest) -> list[Cell]:
    """Build one cell per dataset and model: timings have no seed."""
    return [request.make_cell(data, model, 0, kind="growth") for data in request.datasets for model in request.models]


def complexity_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report milliseconds at each size, the fitted exponent, and the paper's order."""
    cells = complexity_cells(request)
    results = ResultSet(request, store, cells)
    sections, records = [], []
    for data in request.datasets:
        by_model = {k["model"]: k for k in results.select(data)}
        for size, label in SIZES.items():
            rows = []
            for model in request.models:
                if model not in by_model:
                    rows.append([display_name(model), MISSING, MISSING, CLAIMED_COMPLEXITY[model][1][size]])
                    continue
                measured = by_model[model]["figures"]
                steps = ", ".join(f"{k['size']:,}: {_format_ms(k['ms'])}" for k in measured[size])
                exponent = measured[f"{size}_order"]
                rows.append([display_name(model), steps, f"{exponent:.2f}", CLAIMED_COMPLEXITY[model][1][size]])
                claim = {"order": round(exponent, 4), "claimed": CLAIMED_COMPLEXITY[model][1][size]}
                about = {"data": data, "model": model, "grows_with": size, "machine": by_model[model]["machine"]}
                records += [about | k | claim for k in measured[size]]
            columns = ["", "size: milliseconds per step", "measured exponent", "claimed"]
            sections.append(Section(f"{results.heading(data)}: {label}", columns, rows))
    claims = [f"{display_name(model)} {CLAIMED_COMPLEXITY[model][0]}" for model in request.models]
    notes = [
        "The exponent k fits milliseconds ~ size^k: 0 is constant, 1 linear, 2 quadratic. A logarithm gives a small "
        "exponent, and so does a machine that is not fully used.",
        f"Claimed by the paper: {'; '.join(claims)}. B is the batch size, C the context size, d the mean degree.",
        "The same step is repeated on the last training events. TGN carries its state from batch to batch, as in "
        "training.",
        "The paper's C²HD lacks the batch size. TGAT samples its context at each of two hops, so its number of slots "
        "grows with the square.",
        *results.notes(show_protocol=False),
    ]
    title = "Complexity: how the cost of a training step grows"
    return Report(title, sections, records, notes, partial(_draw, results=results.results))


def _format_ms(ms: float) -> str:
    """Format with three digits, without an exponent."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _draw(path: Path, results: list[CellResult]) -> None:
    from matplotlib.ticker import LogLocator

    data = list(dict.fromkeys(k["data"] for k in results))
    with plots.figure(path, max(1, len(data)), len(SIZES), (11, 0.8 + 3 * max(1, len(data)))) as (canvas, axes):
        for i, name in enumerate(data):
            for j, (size, label) in enumerate(SIZES.items()):
                axis, ticks = axes[i][j], set[int]()
                for n, cell in enumerate(k for k in results if k["data"] == name):
                    points = cell["figures"][size]
                    x, y = [k["size"] for k in points], [k["ms"] for k in points]
                    legend = f"{display_name(cell['model'])}: {cell['figures'][f'{size}_order']:.2f}"
                    axis.loglog(x, y, label=legend, color=plots.SERIES[n], marker=plots.MARKERS[n], lw=1.4, ms=5)
                    ticks.update(x)
                axis.set_xticks(sorted(ticks), [f"{v:,}" for v in sorted(ticks)])
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter("{x:,g}")
                axis.minorticks_off()
                axis.set(title=f"{name}: {label}", xlabel=label, ylabel="ms per step")
                axis.grid(color=plots.GRID, lw=0.7)
                axis.legend(frameon=False, title="exponent", fontsize=8)
        canvas.suptitle("Cost of a training step, and the fitted exponent", x=0.01, ha="left", fontsize=11)
