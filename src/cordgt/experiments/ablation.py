"""Ablations: a model with one part taken away at a time, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.link import METRICS
from cordgt.experiments.paper import Reported
from cordgt.experiments.tables import (
    NONE,
    Asked,
    Compared,
    Report,
    Section,
    beside_paper,
    data_name,
    gains,
    gather,
    notes,
    percent,
)


@dataclass(frozen=True)
class Ablation:
    """The rows of a table, the first of them the full model, and the figures that are shown of each."""

    title: str
    model: str
    rows: Mapping[str, tuple[str, Mapping[str, Any]]]  # by name: what people read, and what changes
    figures: Mapping[str, tuple[str, str, str]]  # by heading: part, setting, metric
    unit: str  # of the picture
    remark: str
    published: Callable[[str, str, str], Reported | None] | None = None  # of metric, row and dataset


# The rows of the paper's ablation: its name, and what changes. Its full model has the mask, which ours has not by
# default: so all rows have it but the one that takes it away, and that one is our default.
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full model, with the mask", {"mask": True}),
    "no_intensity": ("1. without intensity (alpha = 0)", {"mask": True, "alpha": 0.0}),
    "no_recentness": ("2. without recency (beta = 0)", {"mask": True, "beta": 0.0}),
    "no_temporal_distance": ("3. without temporal distance", {"mask": True, "td": False}),
    "no_spatial_distance": ("4. without spatial distance", {"mask": True, "sd": False}),
    "stpe_u": ("5. STPE-U in place of STPE-C", {"mask": True, "stpe": "u"}),
    "no_mask": ("6. without the mask (our default)", {"mask": False}),
    "recent_sampling": ("7. most recent in place of uniform", {"mask": True, "sampling": "recent"}),
}
OF_CORDGT = Ablation(
    title="Ablations: inductive AP and AUC of CorDGT, in percent",
    model="cordgt",
    rows=ABLATIONS,
    figures={name: ("test", "inductive", metric) for metric, name in METRICS.items()},
    unit="inductive, %",
    remark="All rows have the paper's mask but the sixth, which is our default: docs/results.md says why.",
    published=paper.ablation,
)
OF_PLUS = Ablation(
    title="The parts of CorDGT+: AP with one taken away, in percent",
    model="cordgt_plus",
    rows={
        "full": ("full model", {}),
        "uniform_sampling": ("uniform sampling", {"sampling": "uniform"}),
        "no_slots": ("without slots", {"slot_features": False}),
        "no_pairs": ("without pairs", {"pair_features": False}),
        "neither": ("without either", {"slot_features": False, "pair_features": False}),
        "no_average": ("weights not averaged", {"ema_decay": 0.0}),
    },
    figures={
        f"{part}, {setting}": (part, setting, "ap")
        for part in ("test", "validation")
        for setting in ("transductive", "inductive")
    },
    unit="AP, %",
    remark="Over the whole split, random negatives; mean ± sample standard deviation over the seeds, each with its own "
    "draw of masked nodes. The parts were chosen on validation data, so those figures flatter.",
)


def ablation_cells(asked: Asked, ablation: Ablation = OF_CORDGT) -> list[Cell]:
    """Seed by seed."""
    return [
        cell
        for seed in asked.seeds
        for data in asked.datasets
        for row in ablation.rows
        for cell in _own(asked, ablation, data, row, [seed])
    ]


def _own(asked: Asked, ablation: Ablation, data: str, row: str, seeds: list[int]) -> list[Cell]:
    changes = {**asked.changes, **ablation.rows[row][1]}
    return [make_cell(data, ablation.model, seed, changes, quick=asked.quick) for seed in seeds]


def ablation_report(asked: Asked, store: Store, ablation: Ablation = OF_CORDGT) -> Report:
    """Every row's figures beside the published ones where there are some, and what it gains or loses to the first."""
    wanted = ablation_cells(asked, ablation)
    sections, records, every = [], [], gather(store, wanted)
    panels: dict[tuple[str, str], dict[str, Compared]] = {}
    for data in asked.datasets:
        rows = []
        full = gather(store, _own(asked, ablation, data, next(iter(ablation.rows)), asked.seeds))
        published = ablation.published if beside_paper(asked, data, every) else None
        for row, (label, _) in ablation.rows.items():
            found = gather(store, _own(asked, ablation, data, row, asked.seeds))
            words: list[str] = []
            for heading, keys in ablation.figures.items():
                theirs = None if published is None else published(keys[-1], row, data)
                each = Compared(percent(found, *keys), theirs, len(found))
                costs = _mean(gains(found, full, *keys))
                words += [
                    *(each.words if ablation.published else [each.ours]),
                    NONE if costs is None else f"{costs:+.2f}",
                ]
                records.append(_record(ablation, data, row, keys, each, costs))
                panels.setdefault((heading, data_name(data, every)), {})[label] = each
            rows.append([label, *words, str(len(found))])
        shown = ("the paper", "here", "difference", "to full") if ablation.published else ("here", "to full")
        columns = [f"{heading}: {what}" for heading in ablation.figures for what in shown]
        sections.append(Section(data_name(data, every), ["", *columns, "seeds"], rows))
    said = notes(store, wanted, every, of_pairs=ablation.published is not None)
    said.append(
        f"{ablation.remark} *To full* is how much a row gains or loses against the first, here, on the same seeds."
    )
    return Report(ablation.title, sections, records, said, partial(_draw, ablation, panels))


def _record(
    ablation: Ablation, data: str, row: str, keys: tuple[str, str, str], each: Compared, costs: float | None
) -> dict[str, Any]:
    """A line for programs; without columns of the paper's where it has no such table."""
    part, setting, metric = keys
    about = {"data": data, "row": row, "part": part, "setting": setting, "metric": metric}
    ours = {"costs": None if costs is None else round(costs, 4)}
    if ablation.published is None:
        return about | {k: v for k, v in each.columns.items() if k in ("ours", "std", "seeds", "values")} | ours
    full = ablation.published(metric, next(iter(ablation.rows)), data)
    theirs = None if each.paper is None or full is None else round(each.paper.mean - full.mean, 4)
    return about | each.columns | ours | {"paper_costs": theirs}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _draw(ablation: Ablation, panels: dict[tuple[str, str], dict[str, Compared]], path: Path) -> None:
    plots.dots(path, ablation.title, panels, ablation.unit, theirs="the paper" if ablation.published else None)
