"""The main tables: AP and AUC of link prediction, transductive and inductive; and the ablations."""

from __future__ import annotations

from functools import partial
from typing import Any

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.tables import Asked, Compared, Report, Section, comparable, data_name, gather, notes, percent
from cordgt.tasks.link import SETTINGS

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
    "edgebank": "EdgeBank",
    "popularity": "popularity",
    "cordgt": "CorDGT",
    "cordgt_plus": "CorDGT+",
}
METRICS = {"ap": "AP", "auc": "AUC"}

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
        for model in asked.models:
            found = [k for k in every if (k["data"], k["model"]) == (data, model)]
            each = {}
            for setting in SETTINGS:
                theirs = paper.link(metric, setting, model, data) if comparable(found) else None
                each[setting] = Compared(percent(found, "test", setting, metric), theirs)
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


# -------------------- ablations


def ablation_cells(asked: Asked) -> list[Cell]:
    return [
        make_cell(data, "cordgt", seed, {**asked.changes, **changes}, quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
        for _, changes in ABLATIONS.values()
    ]


def ablation_report(asked: Asked, store: Store) -> Report:
    """Inductive AP and AUC with one thing taken away at a time, beside the paper's, and what that costs."""
    wanted = ablation_cells(asked)
    sections, records, every = [], [], gather(store, wanted)
    panels: dict[tuple[str, str], dict[str, Compared]] = {}
    for data in asked.datasets:
        rows = []
        full: dict[str, Compared] = {}
        for row, (label, changes) in ABLATIONS.items():
            own = [make_cell(data, "cordgt", s, {**asked.changes, **changes}, quick=asked.quick) for s in asked.seeds]
            found = gather(store, own)
            words: list[str] = []
            for metric, name in METRICS.items():
                theirs = paper.ablation(metric, row, data) if comparable(found) else None
                each = Compared(percent(found, "test", "inductive", metric), theirs)
                full.setdefault(metric, each)
                words += [*each.words, _cost(each.mean, full[metric].mean)]
                cost = {"costs": _loss(each.mean, full[metric].mean), "paper_costs": _paper_loss(metric, row, data)}
                records.append({"data": data, "row": row, "metric": metric} | each.columns | cost)
                panels.setdefault((name, data_name(data, every)), {})[label] = each
            rows.append([label, *words, str(len(found))])
        columns = [f"{n}: {what}" for n in METRICS.values() for what in ("the paper", "here", "difference", "to full")]
        sections.append(Section(data_name(data, every), ["", *columns, "seeds"], rows))
    said = notes(store, wanted, every)
    said.append(
        "All rows have the paper's mask but the sixth, which is our default: docs/results.md says why. "
        "*To full* is how much a row gains or loses against the first, here."
    )
    title = "Ablations: inductive AP and AUC of CorDGT, in percent"
    return Report(title, sections, records, said, partial(_draw, title, panels, "inductive"))


def _loss(mean: float | None, full: float | None) -> float | None:
    return None if mean is None or full is None else round(mean - full, 4)


def _cost(mean: float | None, full: float | None) -> str:
    loss = _loss(mean, full)
    return "–" if loss is None else f"{loss:+.2f}"


def _paper_loss(metric: str, row: str, data: str) -> float | None:
    own, full = paper.ablation(metric, row, data), paper.ablation(metric, "full", data)
    return None if own is None or full is None else round(own.mean - full.mean, 4)
