"""The paper's heat maps: the influence of context nodes on true pairs, by distance to source and destination."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, CellStore
from cordgt.experiments.tables import MISSING, ExperimentRequest, Report, ResultSet, Section

DATASETS = ("uci", "enron")
DISTANCES = {"td": "temporal distance", "sd": "spatial distance"}


class HeatmapGrid(NamedTuple):
    """Influence over the seeds by (distance to source, distance to target), shape (G, G); NaN without context nodes."""

    groups: list[str]
    mean: np.ndarray
    std: np.ndarray
    nodes: np.ndarray  # number of context nodes, over all pairs and seeds


def heatmap_cells(request: ExperimentRequest) -> list[Cell]:
    return [
        request.make_cell(data, "cordgt", seed, {"head": "linear"}, kind="heatmap")
        for seed in request.seeds
        for data in request.datasets
    ]


def heatmap_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report the mean over the seeds of each group's mean influence."""
    cells = heatmap_cells(request)
    results = ResultSet(request, store, cells)
    sections, records = [], []
    grids: dict[tuple[str, str], HeatmapGrid] = {}
    for data in request.datasets:
        own = results.select(data)
        for name, label in DISTANCES.items():
            if not own:
                continue
            maps = [k["figures"][name] for k in own]
            values = np.array([k["mean"] for k in maps], dtype=np.float64)  # None becomes NaN
            grid = HeatmapGrid(maps[0]["groups"], *_over_seeds(values), np.sum([k["nodes"] for k in maps], axis=0))
            heading = results.heading(data)
            grids[name, heading] = grid
            rows = [[f"source: {group}", *_texts(grid, i)] for i, group in enumerate(grid.groups)]
            columns = ["", *(f"target: {group}" for group in grid.groups)]
            sections.append(Section(f"{heading}: {label}", columns, rows))
            records += _records(data, name, grid, len(own))
    n_pairs = ", ".join(f"{n:,}" for n in sorted({k["figures"]["pairs"] for k in results})) or "no"
    notes = [
        "CorDGT with the linear head. The influence of a context node is Φ·h of its state, before the sigmoid; a "
        f"higher value raises the score. Each seed has {n_pairs} true test pairs, evenly spaced in time. In "
        "brackets: the number of context nodes, over all pairs and seeds; a mean of few nodes says little. Mean and "
        "standard deviation are over the means of the seeds.",
        "Spatial distance 0 is the node itself, so 0 to both is a pair of a node with itself.",
        "Differs: pairs that never met are their own group next to four equal groups; the paper has five equal groups. "
        "Its picture has no numbers; it says that nodes closer to both ends have more influence.",
        *results.notes(show_protocol=False),
    ]
    title = "Influence of context nodes, by distance to source and target"
    return Report(title, sections, records, notes, partial(_draw, grids=grids))


def _over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sample standard deviation over the first axis; NaN where there are too few values."""
    known = np.isfinite(values)
    n = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0)
    mean = np.where(n > 0, total / np.maximum(n, 1), np.nan)
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    return mean, np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)


def _texts(grid: HeatmapGrid, i: int) -> list[str]:
    """Return mean, standard deviation and number of nodes of each group in row i, as text."""
    texts = []
    for mean, std, nodes in zip(grid.mean[i], grid.std[i], grid.nodes[i], strict=True):
        deviation = f" ± {std:.2f}" if np.isfinite(std) else ""
        texts.append(f"{mean:.2f}{deviation} ({nodes:,})" if np.isfinite(mean) else MISSING)
    return texts


def _records(data: str, name: str, grid: HeatmapGrid, n_seeds: int) -> list[dict[str, Any]]:
    return [
        {"data": data, "distance": name, "to_source": grid.groups[i], "to_target": grid.groups[j]}
        | {"nodes": int(grid.nodes[i, j]), "mean": _rounded(grid.mean[i, j]), "std": _rounded(grid.std[i, j])}
        | {"seeds": n_seeds}
        for i, j in np.ndindex(grid.mean.shape)
    ]


def _rounded(value: Any) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None


def _draw(path: Path, grids: dict[tuple[str, str], HeatmapGrid]) -> None:
    names = list(dict.fromkeys(name for name, _ in grids))
    headings = list(dict.fromkeys(heading for _, heading in grids))
    rows, columns = max(1, len(names)), max(1, len(headings))
    with plots.figure(path, rows, columns, (1 + 4.6 * columns, 0.6 + 3.4 * rows)) as (canvas, axes):
        for (name, heading), grid in grids.items():
            axis = axes[names.index(name)][headings.index(heading)]
            image = plots.annotated_heatmap(axis, grid.mean, (grid.groups, grid.groups), "{:.2f}", counts=grid.nodes)
            axis.set(title=f"{heading}: {DISTANCES[name]}", xlabel="to the target", ylabel="to the source")
            canvas.colorbar(image, ax=axis, shrink=0.85, label="mean Φ·h")
        canvas.suptitle(
            "Influence of context nodes on true pairs (higher raises the score), and their number (no color: few)",
            x=0.01,
            ha="left",
            fontsize=11,
        )
        if any(heading.endswith("*") for heading in headings):
            canvas.supxlabel(plots.NOT_AS_PUBLISHED, x=0.01, ha="left", fontsize=9)
