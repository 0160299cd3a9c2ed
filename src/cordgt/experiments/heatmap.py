"""The heat maps: what context nodes say of true pairs, by their distance to either end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def heatmap_report(asked: Asked, store: Store) -> Report:
    """The mean over the seeds of each group's mean; blank where no context node fell."""
    wanted = heatmap_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    grids: dict[tuple[str, str], tuple[np.ndarray, np.ndarray, list[str]]] = {}  # means, nodes, groups
    for data in asked.datasets:
        found = [k for k in every if k["data"] == data]
        for name, words in DISTANCES.items():
            if not found:
                continue
            groups = found[0]["figures"][name]["groups"]
            values = np.array([k["figures"][name]["mean"] for k in found], dtype=np.float64)  # None becomes NaN
            nodes = np.sum([k["figures"][name]["nodes"] for k in found], axis=0)
            mean, std = _over_seeds(values)
            shown = data_name(data, every)
            grids[name, shown] = mean, nodes, groups
            words_of = [
                [_cell(*figures) for figures in zip(*of, strict=True)] for of in zip(mean, std, nodes, strict=True)
            ]
            rows = [[f"source: {g}", *line] for g, line in zip(groups, words_of, strict=True)]
            sections.append(Section(f"{shown}: {words}", ["", *(f"target: {g}" for g in groups)], rows))
            records += _records(data, name, groups, mean, std, nodes, len(found))
    pairs = sorted({k["figures"]["pairs"] for k in every})
    said = [
        "CorDGT with the linear head: what a context node says is Φ·h of its state, before the sigmoid; higher speaks "
        f"for the pair. Of {', '.join(f'{n:,}' for n in pairs) or 'no'} true test pairs a seed, evenly over time. In "
        "brackets: how many context nodes, of all seeds together; a mean of few says little.",
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


def _cell(mean: float, std: float, nodes: int) -> str:
    if not np.isfinite(mean):
        return NONE
    spread = f" ± {std:.2f}" if np.isfinite(std) else ""
    return f"{mean:.2f}{spread} ({nodes:,})"


def _records(
    data: str, name: str, groups: list[str], mean: np.ndarray, std: np.ndarray, nodes: np.ndarray, seeds: int
) -> list[dict[str, Any]]:
    return [
        {"data": data, "distance": name, "to_source": groups[i], "to_target": groups[j], "nodes": int(nodes[i, j])}
        | {"mean": _number(mean[i, j]), "std": _number(std[i, j]), "seeds": seeds}
        for i, j in np.ndindex(mean.shape)
    ]


def _number(value: Any) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None


def _draw(path: Path, grids: dict[tuple[str, str], tuple[np.ndarray, np.ndarray, list[str]]]) -> None:
    names = list(dict.fromkeys(name for name, _ in grids))
    data = list(dict.fromkeys(k for _, k in grids))
    with plots.figure(path, len(names), len(data), (1 + 4.6 * len(data), 0.6 + 3.4 * len(names))) as (made, axes):
        for (name, of), (mean, nodes, groups) in grids.items():
            place = axes[names.index(name)][data.index(of)]
            image = plots.heat(place, mean, (groups, groups), "{:.2f}", counts=nodes)
            place.set(title=f"{of}: {DISTANCES[name]}", xlabel="to the target", ylabel="to the source")
            made.colorbar(image, ax=place, shrink=0.85, label="mean Φ·h")
        made.suptitle(
            "What context nodes say of true pairs (higher: for the pair), and how many there were",
            x=0.01,
            ha="left",
            fontsize=11,
        )
        if any(of.endswith("*") for of in data):
            made.supxlabel(plots.NOT_AS_PUBLISHED, x=0.01, ha="left", fontsize=9)
