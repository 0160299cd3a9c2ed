"""The heat maps: what context nodes say of true pairs, by their distance to either end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.tables import NONE, Asked, Report, Section, data_name, gather, notes

DATASETS = ("uci", "enron")
DISTANCES = {"td": "temporal distance", "sd": "spatial distance"}


def heatmap_cells(asked: Asked) -> list[Cell]:
    return [
        make_cell(data, "cordgt", seed, {**asked.changes, "head": "linear"}, kind="heatmap", quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
    ]


class Grid(NamedTuple):
    """By distance to the source and to the target, (G, G): over the seeds, NaN where no context node fell."""

    groups: list[str]
    mean: np.ndarray
    std: np.ndarray
    nodes: np.ndarray  # how often a context node fell there, in all pairs of all seeds


def heatmap_report(asked: Asked, store: Store) -> Report:
    """The mean over the seeds of each group's mean; blank where no context node fell."""
    wanted = heatmap_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    grids: dict[tuple[str, str], Grid] = {}
    for data in asked.datasets:
        found = [k for k in every if k["data"] == data]
        for name, words in DISTANCES.items():
            if not found:
                continue
            figures = [k["figures"][name] for k in found]
            nodes = np.sum([k["nodes"] for k in figures], axis=0)
            values = np.array([k["mean"] for k in figures], dtype=np.float64)  # None becomes NaN
            grid = Grid(figures[0]["groups"], *_over_seeds(values), nodes)
            shown = data_name(data, every)
            grids[name, shown] = grid
            rows = [[f"source: {g}", *_row(grid, i)] for i, g in enumerate(grid.groups)]
            sections.append(Section(f"{shown}: {words}", ["", *(f"target: {g}" for g in grid.groups)], rows))
            records += _records(data, name, grid, len(found))
    pairs = sorted({k["figures"]["pairs"] for k in every})
    said = [
        "CorDGT with the linear head: what a context node says is Φ·h of its state, before the sigmoid; higher speaks "
        f"for the pair. Of {', '.join(f'{n:,}' for n in pairs) or 'no'} true test pairs a seed, evenly over time. In "
        "brackets: how often a context node fell there, in all pairs of all seeds; a mean of few says little. The mean "
        "and the deviation are of the seeds' means.",
        "Distance 0 in space is the end itself, so 0 to both is a pair of a node with itself.",
        "Differs: pairs that never met are a group of their own beside four even ones; the paper has five even ones. "
        "Its picture has no figures; it says that nodes nearer to both ends speak louder.",
        *notes(store, wanted, every, of_pairs=False),
    ]
    return Report(
        "What context nodes say, by distance to either end", sections, records, said, lambda p: _draw(p, grids)
    )


def _over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample deviation over the first axis, NaN where there is nothing."""
    known = np.isfinite(values)
    n = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0)
    mean = np.where(n > 0, total / np.maximum(n, 1), np.nan)
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    return mean, np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)


def _row(grid: Grid, i: int) -> list[str]:
    """Mean, spread and number of each group, as a line of a table."""
    found = []
    for mean, std, nodes in zip(grid.mean[i], grid.std[i], grid.nodes[i], strict=True):
        spread = f" ± {std:.2f}" if np.isfinite(std) else ""
        found.append(f"{mean:.2f}{spread} ({nodes:,})" if np.isfinite(mean) else NONE)
    return found


def _records(data: str, name: str, grid: Grid, seeds: int) -> list[dict[str, Any]]:
    """For CSV."""
    return [
        {"data": data, "distance": name, "to_source": grid.groups[i], "to_target": grid.groups[j]}
        | {"nodes": int(grid.nodes[i, j]), "mean": _number(grid.mean[i, j]), "std": _number(grid.std[i, j])}
        | {"seeds": seeds}
        for i, j in np.ndindex(grid.mean.shape)
    ]


def _number(value: Any) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None


def _draw(path: Path, grids: dict[tuple[str, str], Grid]) -> None:
    names = list(dict.fromkeys(name for name, _ in grids))
    data = list(dict.fromkeys(k for _, k in grids))
    rows, columns = max(1, len(names)), max(1, len(data))
    with plots.figure(path, rows, columns, (1 + 4.6 * columns, 0.6 + 3.4 * rows)) as (made, axes):
        for (name, of), grid in grids.items():
            place = axes[names.index(name)][data.index(of)]
            image = plots.heat(place, grid.mean, (grid.groups, grid.groups), "{:.2f}", counts=grid.nodes)
            place.set(title=f"{of}: {DISTANCES[name]}", xlabel="to the target", ylabel="to the source")
            made.colorbar(image, ax=place, shrink=0.85, label="mean Φ·h")
        made.suptitle(
            "What context nodes say of true pairs (higher: for the pair), and how many there were (no colour: few)",
            x=0.01,
            ha="left",
            fontsize=11,
        )
        if any(of.endswith("*") for of in data):
            made.supxlabel(plots.NOT_AS_PUBLISHED, x=0.01, ha="left", fontsize=9)
