"""The main tables: AP and AUC of link prediction, transductive and inductive."""

from __future__ import annotations

from functools import partial
from typing import Any

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.tables import Comparison, ExperimentRequest, Panels, Report, ResultSet, Section, percentages
from cordgt.tasks.run_metrics import SETTINGS

DISPLAY_NAMES = {
    "jodie": "JODIE",
    "dyrep": "DyRep",
    "tgat": "TGAT",
    "tgn": "TGN",
    "cawn": "CAWN",
    "tgsrec": "TGSRec",
    "tcl": "TCL",
    "graphmixer": "GraphMixer",
    "dygformer": "DyGFormer",
    "ctdne": "CTDNE",
    "counts": "counts",
    "edgebank": "EdgeBank",
    "popularity": "popularity",
    "item_knn": "item-kNN",
    "als": "ALS",
    "cordgt": "CorDGT",
    "cordgt_plus": "CorDGT+",
    "cordgt_small": "CorDGT+ small",
}
METRICS = {"ap": "AP", "auc": "AUC"}


def display_name(model: str) -> str:
    return DISPLAY_NAMES.get(model, model)


def link_cells(request: ExperimentRequest) -> list[Cell]:
    return request.make_cells()


def link_report(request: ExperimentRequest, store: CellStore, metric: str) -> Report:
    """Report AP or AUC of every model by dataset, transductive and inductive, next to the paper's."""
    cells = link_cells(request)
    results = ResultSet(request, store, cells)
    sections, records = [], []
    panels: Panels = {}
    for data in request.datasets:
        rows = []
        heading = results.heading(data)
        show_paper = results.is_comparable_to_paper(data)
        for model in request.models:
            own = results.select(data, model)
            row = [display_name(model)]
            for setting in SETTINGS:
                published = paper.link_result(metric, setting, model, data) if show_paper else None
                comparison = Comparison(percentages(own, "test", setting, metric), published, len(own))
                by_batch = Comparison(percentages(own, "test", setting, f"{metric}_batch"))
                records.append(
                    {"data": data, "setting": setting, "metric": metric, "model": model}
                    | comparison.to_record()
                    | {"ours_by_batch": by_batch.to_record()["ours"]}
                    | _mean_costs(own)
                )
                panels.setdefault((setting, heading), {})[display_name(model)] = comparison
                row += comparison.texts
            rows.append([*row, str(len(own))])
        columns = [f"{setting}: {what}" for setting in SETTINGS for what in ("the paper", "here", "difference")]
        sections.append(Section(heading, ["", *columns, "seeds"], rows))
    title = f"{METRICS[metric]} of link prediction, in percent"
    draw = partial(plots.dot_plot, title=title, panels=panels, unit=f"{METRICS[metric]}, %")
    return Report(title, sections, records, results.notes(), draw)


def _mean_costs(results: list[CellResult]) -> dict[str, Any]:
    """Return mean epochs, seconds and parameters for the CSV file."""

    def mean(key: str) -> float | None:
        values = [k[key] for k in results if k.get(key) is not None]
        return round(sum(values) / len(values), 3) if values else None

    return {key: mean(key) for key in ("best_epoch", "epochs", "seconds_per_epoch", "seconds", "parameters")}
