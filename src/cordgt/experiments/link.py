"""The main tables: AP and AUC of link prediction, transductive and inductive."""

from __future__ import annotations

from functools import partial
from typing import Any

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.tables import Asked, Compared, Report, Section, beside_paper, data_name, gather, notes, percent
from cordgt.tasks.run_metrics import SETTINGS

NAMES = {
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
    "cordgt": "CorDGT",
    "cordgt_plus": "CorDGT+",
}
METRICS = {"ap": "AP", "auc": "AUC"}


def model_name(name: str) -> str:
    return NAMES.get(name, name)


def link_cells(asked: Asked) -> list[Cell]:
    """Seed by seed, so that every table is full of one seed before the second begins."""
    return [
        make_cell(data, model, seed, asked.changes, quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
        for model in asked.models
    ]


def link_report(asked: Asked, store: Store, metric: str) -> Report:
    """AP or AUC by dataset: every model's, transductive and inductive, beside the paper's."""
    wanted = link_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    panels: dict[tuple[str, str], dict[str, Compared]] = {}
    for data in asked.datasets:
        rows = []
        beside = beside_paper(asked, data, every)
        for model in asked.models:
            found = [k for k in every if (k["data"], k["model"]) == (data, model)]
            each = {}
            for setting in SETTINGS:
                theirs = paper.link(metric, setting, model, data) if beside else None
                each[setting] = Compared(percent(found, "test", setting, metric), theirs, len(found))
                about = {"data": data, "setting": setting, "metric": metric, "model": model}
                by_batch = Compared(percent(found, "test", setting, f"{metric}_batch"))
                records.append(
                    about | each[setting].columns | {"ours_by_batch": by_batch.columns["ours"]} | _costs(found)
                )
                panels.setdefault((setting, data_name(data, every)), {})[model_name(model)] = each[setting]
            words = [word for setting in SETTINGS for word in each[setting].words]
            rows.append([model_name(model), *words, str(len(found))])
        columns = [f"{setting}: {what}" for setting in SETTINGS for what in ("the paper", "here", "difference")]
        sections.append(Section(data_name(data, every), ["", *columns, "seeds"], rows))
    name = METRICS[metric]
    title = f"{name} of link prediction, in percent"
    draw = partial(_draw, title, panels, name)
    return Report(title, sections, records, notes(store, wanted, every), draw)


def _draw(title: str, panels: dict[tuple[str, str], dict[str, Compared]], unit: str, path: Any) -> None:
    plots.dots(path, title, panels, f"{unit}, %")


def _costs(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean epochs and seconds, for CSV."""

    def mean(key: str) -> float | None:
        values = [k[key] for k in found if k.get(key) is not None]
        return round(sum(values) / len(values), 3) if values else None

    return {key: mean(key) for key in ("best_epoch", "epochs", "seconds_per_epoch", "seconds", "parameters")}
