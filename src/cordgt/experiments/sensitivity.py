"""Parameter sensitivity: inductive AP over alpha and beta, neighbors of the first hop, and batch size.

The paper shows curves without numbers, so there is nothing to subtract; the notes quote its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, CellStore
from cordgt.experiments.tables import (
    Comparison,
    ExperimentRequest,
    Key,
    Report,
    ResultSet,
    Section,
    percentages,
    read_finished,
    with_shared_seeds,
)
from cordgt.models.presets import published_settings

DATASETS = ("uci", "enron")
WEIGHTS = (0.1, 1.0, 10.0)  # of alpha and of beta
NEIGHBORS = (8, 16, 20, 32, 64)
BATCH_SIZES = (50, 100, 200, 400)
MIN_COLOR_RANGE = 4.0  # percentage points: about the difference between seeds
WeightGrid = dict[tuple[float, float], Comparison]  # by (alpha, beta)
Curves = dict[str, list[tuple[float, Comparison]]]  # by dataset: (x, AP)


def _weight_settings() -> dict[tuple[float, float], dict[str, Any]]:
    return {(a, b): {"alpha": a, "beta": b} for a in WEIGHTS for b in WEIGHTS}


def _neighbor_settings(data: str) -> dict[int, dict[str, Any]]:
    other_hops = tuple(published_settings(data).get("fanout", (20, 1)))[1:]
    return {n: {"fanout": (n, *other_hops)} for n in NEIGHBORS}


def _batch_settings() -> dict[int, dict[str, Any]]:
    """Use the visibility rule ``paper``: under ``event`` a score does not depend on the batch."""
    return {n: {"batch_size": n, "visibility": "paper"} for n in BATCH_SIZES}


def _cells_over_seeds(request: ExperimentRequest, data: str, settings: dict[str, Any]) -> list[Cell]:
    return [request.make_cell(data, "cordgt", seed, settings) for seed in request.seeds]


def sensitivity_cells(request: ExperimentRequest) -> list[Cell]:
    """Build the cells, seed by seed."""
    cells = [
        cell
        for data in request.datasets
        for variants in (_weight_settings(), _neighbor_settings(data), _batch_settings())
        for settings in variants.values()
        for cell in _cells_over_seeds(request, data, settings)
    ]
    return sorted(dict.fromkeys(cells), key=lambda cell: request.seeds.index(cell.seed))


def sensitivity_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report a grid and two curves for each dataset."""
    cells = sensitivity_cells(request)
    results = ResultSet(request, store, cells)
    sections: list[Section] = []
    records: list[dict[str, Any]] = []
    grids: dict[str, WeightGrid] = {}
    curves: dict[str, Curves] = {"neighbors": {}, "batch size": {}}
    no_shared_seed: list[str] = []

    def compare(data: str, variants: dict[Key, dict[str, Any]], what: str) -> dict[Key, Comparison]:
        """Return AP of each variant on the seeds that all variants have; add it to ``records``."""
        own = {key: read_finished(store, _cells_over_seeds(request, data, s)) for key, s in variants.items()}
        shared = with_shared_seeds(own)
        if any(own.values()) and not any(shared.values()):
            no_shared_seed.append(f"{data}, {what}: the finished cells share no seed, so none is shown.")
        comparisons = {key: Comparison(percentages(k, "test", "inductive", "ap")) for key, k in shared.items()}
        for key, settings in variants.items():
            setting = " ".join(f"{k}={v}" for k, v in settings.items())
            record = {"data": data, "what": what, "setting": setting}
            records.append(record | comparisons[key].to_record(with_paper=False))
        return comparisons

    for data in request.datasets:
        grid = grids[data] = compare(data, _weight_settings(), "alpha, beta")
        rows = [[f"alpha {a:g}", *(grid[a, b].text for b in WEIGHTS)] for a in WEIGHTS]
        columns = ["", *(f"beta {b:g}" for b in WEIGHTS)]
        sections.append(Section(f"{results.heading(data)}: alpha and beta", columns, rows))
    for what in curves:
        rows = []
        for data in request.datasets:
            variants = _neighbor_settings(data) if what == "neighbors" else _batch_settings()
            points = [(float(n), comparison) for n, comparison in compare(data, variants, what).items()]
            curves[what][data] = points
            rows.append([results.heading(data), *(comparison.text for _, comparison in points)])
        sections.append(Section(what, ["", *map(str, _sizes(what))], rows))
    notes = [
        "Inductive AP of CorDGT, in percent. The paper shows curves without numbers.",
        "The paper's text about UCI: alpha, beta and the batch size matter little, and more neighbors help.",
        "The paper's text about Enron: alpha ≤ 1 and beta ≥ 1 are better, 20 neighbors are best, and larger batches "
        "are worse.",
        "Batch sizes are those of training, with visibility `paper`, where pair records stop at the start of a batch. "
        "The test split has the same batches at every size. With `event` no score depends on the batch.",
        "Each grid, and each row of neighbors and batch sizes, uses only the seeds that all of its settings have.",
        *no_shared_seed,
        *results.notes(),
    ]
    title = "Sensitivity to parameters: inductive AP, in percent"
    return Report(title, sections, records, notes, partial(_draw, grids=grids, curves=curves))


def _sizes(what: str) -> Sequence[int]:
    return NEIGHBORS if what == "neighbors" else BATCH_SIZES


def _draw(path: Path, grids: dict[str, WeightGrid], curves: dict[str, Curves]) -> None:
    n_panels, columns = len(grids) + len(curves), 2
    rows = -(-n_panels // columns)
    with plots.figure(path, rows, columns, (8.5, 1 + 3 * rows)) as (canvas, axes):
        panels = list(axes.flat)
        labels = [f"{weight:g}" for weight in WEIGHTS]
        for axis, (data, grid) in zip(panels, grids.items(), strict=False):
            means = np.array([[grid[a, b].mean for b in WEIGHTS] for a in WEIGHTS], dtype=np.float64)  # None: NaN
            options: Any = {"min_color_range": MIN_COLOR_RANGE, "highlight": _published_position(data)}
            image = plots.annotated_heatmap(axis, means, (labels, labels), "{:.2f}", **options)
            canvas.colorbar(image, ax=axis, label="inductive AP, %")
            axis.set(title=f"{data}: alpha and beta{_format_seeds(grid.values())}", xlabel="beta", ylabel="alpha")
        for axis, (what, lines) in zip(panels[len(grids) :], curves.items(), strict=False):
            plots.line_plot(axis, {f"{data}{_format_seeds(c for _, c in line)}": line for data, line in lines.items()})
            axis.set(title=what, xlabel=what, ylabel="inductive AP, %", xscale="log")
            axis.set_xticks(_sizes(what), [str(n) for n in _sizes(what)])
            axis.minorticks_off()
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False)
        for axis in panels[n_panels:]:
            axis.set_axis_off()
        n_seeds = max((len(c.values) for grid in grids.values() for c in grid.values()), default=0)
        title = f"Inductive AP of CorDGT, %: {'mean over seeds' if n_seeds > 1 else 'one seed'}"
        canvas.suptitle(f"{title}; framed: the paper's alpha and beta", x=0.01, ha="left", fontsize=11)


def _published_position(data: str) -> tuple[int, int] | None:
    """Return the grid position (row, column) of the paper's alpha and beta."""
    settings = published_settings(data)
    try:
        return WEIGHTS.index(settings["alpha"]), WEIGHTS.index(settings["beta"])
    except (KeyError, ValueError):
        return None


def _format_seeds(comparisons: Iterable[Comparison]) -> str:
    """Return e.g. ``, 3 seeds``, to follow a dataset's name."""
    n = max((len(comparison.values) for comparison in comparisons), default=0)
    return f", {n} seed{'s' if n > 1 else ''}" if n else ""
