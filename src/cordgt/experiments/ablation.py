"""Ablations: a model with one component removed at a time, and the change in its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, CellStore
from cordgt.experiments.link import METRICS
from cordgt.experiments.paper import Reported
from cordgt.experiments.tables import (
    Comparison,
    ExperimentRequest,
    Panels,
    Report,
    ResultSet,
    Section,
    format_or_missing,
    paired_differences,
    percentages,
    read_finished,
)


@dataclass(frozen=True)
class Ablation:
    """The rows of an ablation table, the full model first, and the metrics shown of each."""

    title: str
    model: str
    rows: Mapping[str, tuple[str, Mapping[str, Any]]]  # by name: label and changed settings
    metrics: Mapping[str, tuple[str, str, str]]  # by heading: split, setting, metric
    unit: str  # x-axis of the picture
    remark: str
    published: Callable[[str, str, str], Reported | None] | None = None  # (metric, row, dataset) -> paper's result

    @property
    def full_row(self) -> str:
        return next(iter(self.rows))

    def make_cells(self, request: ExperimentRequest, data: str, row: str) -> list[Cell]:
        """Build one cell per seed."""
        return [request.make_cell(data, self.model, seed, self.rows[row][1]) for seed in request.seeds]


# The rows of the paper's ablation table. Its full model uses the mask; our default does not. So every row has the mask
# except the one that removes it, which is our default.
CORDGT_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full model, with the mask", {"mask": True}),
    "no_intensity": ("1. without intensity (alpha = 0)", {"mask": True, "alpha": 0.0}),
    "no_recentness": ("2. without recency (beta = 0)", {"mask": True, "beta": 0.0}),
    "no_temporal_distance": ("3. without temporal distance", {"mask": True, "td": False}),
    "no_spatial_distance": ("4. without spatial distance", {"mask": True, "sd": False}),
    "stpe_u": ("5. STPE-U instead of STPE-C", {"mask": True, "stpe": "u"}),
    "no_mask": ("6. without the mask (our default)", {"mask": False}),
    "recent_sampling": ("7. most recent instead of uniform sampling", {"mask": True, "sampling": "recent"}),
}
CORDGT_ABLATION = Ablation(
    title="Ablations: inductive AP and AUC of CorDGT, in percent",
    model="cordgt",
    rows=CORDGT_ROWS,
    metrics={name: ("test", "inductive", metric) for metric, name in METRICS.items()},
    unit="inductive, %",
    remark="All rows use the paper's mask except row 6, which is our default; docs/results.md gives the reason.",
    published=paper.ablation_result,
)
PLUS_ABLATION = Ablation(
    title="Ablations: AP of CorDGT+ with one component removed, in percent",
    model="cordgt_plus",
    rows={
        "full": ("full model", {}),
        "uniform_sampling": ("uniform sampling", {"sampling": "uniform"}),
        "no_slots": ("without slot features", {"slot_features": False}),
        "no_pairs": ("without pair features", {"pair_features": False}),
        "neither": ("without both features", {"slot_features": False, "pair_features": False}),
        "no_average": ("without weight averaging", {"ema_decay": 0.0}),
    },
    metrics={
        f"{split}, {setting}": (split, setting, "ap")
        for split in ("test", "validation")
        for setting in ("transductive", "inductive")
    },
    unit="AP, %",
    remark="AP is over the whole split, with random negatives; mean ± sample standard deviation over the seeds. Each "
    "seed masks other nodes. The components were chosen on validation data, so validation AP is optimistic.",
)


def ablation_cells(request: ExperimentRequest, ablation: Ablation = CORDGT_ABLATION) -> list[Cell]:
    """Build the cells, seed by seed."""
    cells = [
        cell for data in request.datasets for row in ablation.rows for cell in ablation.make_cells(request, data, row)
    ]
    return sorted(cells, key=lambda cell: request.seeds.index(cell.seed))


def ablation_report(request: ExperimentRequest, store: CellStore, ablation: Ablation = CORDGT_ABLATION) -> Report:
    """Report every row next to the published result, where there is one, and its difference to the full model."""
    cells = ablation_cells(request, ablation)
    results = ResultSet(request, store, cells)
    sections, records = [], []
    panels: Panels = {}
    for data in request.datasets:
        rows = []
        heading = results.heading(data)
        own = {row: read_finished(store, ablation.make_cells(request, data, row)) for row in ablation.rows}
        published = ablation.published if results.is_comparable_to_paper(data) else None
        for row, (label, _) in ablation.rows.items():
            texts: list[str] = []
            for name, keys in ablation.metrics.items():
                reported = None if published is None else published(keys[-1], row, data)
                comparison = Comparison(percentages(own[row], *keys), reported, len(own[row]))
                differences = paired_differences(own[row], own[ablation.full_row], *keys)
                to_full = sum(differences) / len(differences) if differences else None
                texts += comparison.texts if ablation.published else [comparison.text]
                texts.append(format_or_missing(to_full, "{:+.2f}"))
                records.append(_record(ablation, data, row, keys, comparison, to_full))
                panels.setdefault((name, heading), {})[label] = comparison
            rows.append([label, *texts, str(len(own[row]))])
        shown = ("the paper", "here", "difference", "to full") if ablation.published else ("here", "to full")
        columns = [f"{name}: {what}" for name in ablation.metrics for what in shown]
        sections.append(Section(heading, ["", *columns, "seeds"], rows))
    notes = results.notes(show_protocol=ablation.published is not None)
    notes.append(f"{ablation.remark} *To full* is the difference to the first row, here, on the same seeds.")
    published_label = "the paper" if ablation.published else None
    draw = partial(
        plots.dot_plot, title=ablation.title, panels=panels, unit=ablation.unit, published_label=published_label
    )
    return Report(ablation.title, sections, records, notes, draw)


def _record(
    ablation: Ablation,
    data: str,
    row: str,
    keys: tuple[str, str, str],
    comparison: Comparison,
    to_full: float | None,
) -> dict[str, Any]:
    """Return a CSV line; without the paper's columns if it has no such table."""
    split, setting, metric = keys
    record: dict[str, Any] = {"data": data, "row": row, "part": split, "setting": setting, "metric": metric}
    record |= comparison.to_record(with_paper=ablation.published is not None)
    record["costs"] = None if to_full is None else round(to_full, 4)
    if ablation.published is None:
        del record["difference"]
        return record
    full = ablation.published(metric, ablation.full_row, data)
    record["paper_costs"] = None
    if comparison.paper is not None and full is not None:
        record["paper_costs"] = round(comparison.paper.mean - full.mean, 4)
    return record
