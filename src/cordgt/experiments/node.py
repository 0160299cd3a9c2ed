"""The table of node classification: a classifier on each model's frozen encoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.link import model_name
from cordgt.experiments.tables import Asked, Compared, Report, Section, beside_paper, data_name, gather, notes, percent
from cordgt.models import MODELS

DATASETS = (*paper.NODE_DATASETS, "mooc")  # the last has labels too, though not in the paper
ENCODERS = tuple(name for name, kind in MODELS.items() if kind.network.has_embeddings)


def node_cells(asked: Asked) -> list[Cell]:
    return [
        make_cell(data, model, seed, asked.changes, kind="node", quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
        for model in asked.models
    ]


def node_report(asked: Asked, store: Store) -> Report:
    """Test AUC by dataset and encoder beside the paper's; AP, and what chance has, show the imbalance."""
    wanted = node_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    panels: dict[tuple[str, str], dict[str, Compared]] = {}
    counts: dict[str, str] = {}
    for data in asked.datasets:
        rows = []
        beside = beside_paper(asked, data, every)
        for model in asked.models:
            found = [k for k in every if (k["data"], k["model"]) == (data, model)]
            theirs = paper.node_auc(model, data) if beside else None
            auc = Compared(percent(found, "test", "auc"), theirs, len(found))
            ap, chance = (Compared(percent(found, "test", key)) for key in ("ap", "positive_share"))
            rows.append([model_name(model), *auc.words, ap.ours, str(len(found))])
            about = {"data": data, "model": model, "metric": "auc"}
            records.append(about | auc.columns | {"ap": ap.columns["ours"], "ap_of_chance": chance.columns["ours"]})
            panels.setdefault(("", data_name(data, every)), {})[model_name(model)] = auc
            for cell in found:
                f = cell["figures"]
                told = [f"{f[part]['positive']:,} of {f[part]['events']:,} in {part}" for part in ("train", "test")]
                counts[data] = f"**{data}**: positive labels are {' and '.join(told)}."
        sections.append(
            Section(data_name(data, every), ["", "AUC: the paper", "here", "difference", "AP here", "seeds"], rows)
        )
    said = [
        "The encoder is trained on links and frozen; an MLP on its embeddings of single nodes (for CorDGT: STPE-U) "
        "tells whether the source's state changes with an event, seeing what is strictly earlier. Split by time as the "
        "links are.",
        "Positive labels are rare: both kinds weigh the same in the loss, the epoch is chosen by validation AUC, and "
        "AUC is taken over the whole test period. AP shows what that leaves of precision.",
        *counts.values(),
        "The paper took its rivals' figures from the TGN paper.",
        *notes(store, wanted, every, of_pairs=False),
    ]
    title = "AUC of node classification, in percent"
    return Report(title, sections, records, said, partial(_draw, title, panels))


def _draw(title: str, panels: dict[tuple[str, str], dict[str, Compared]], path: Path) -> None:
    plots.dots(path, title, panels, "AUC, %")
