"""The node classification table: a classifier on each model's frozen encoder."""

from __future__ import annotations

from functools import partial

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.tables import Comparison, ExperimentRequest, Panels, Report, ResultSet, Section, percentages
from cordgt.models import MODELS

DATASETS = (*paper.NODE_DATASETS, "mooc")  # mooc has labels too, but is not in the paper
ENCODERS = tuple(name for name, kind in MODELS.items() if kind.network.has_embeddings)


def node_cells(request: ExperimentRequest) -> list[Cell]:
    return request.make_cells(kind="node")


def node_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report test AUC by dataset and encoder next to the paper's, with AP, which shows the class imbalance."""
    cells = node_cells(request)
    results = ResultSet(request, store, cells)
    sections, records, label_notes = [], [], []
    panels: Panels = {}
    for data in request.datasets:
        rows = []
        heading = results.heading(data)
        show_paper = results.is_comparable_to_paper(data)
        for model in request.models:
            own = results.select(data, model)
            published = paper.node_auc(model, data) if show_paper else None
            auc = Comparison(percentages(own, "test", "auc"), published, len(own))
            ap, chance = (Comparison(percentages(own, "test", key)) for key in ("ap", "positive_share"))
            rows.append([display_name(model), *auc.texts, ap.text, str(len(own))])
            records.append(
                {"data": data, "model": model, "metric": "auc"}
                | auc.to_record()
                | {"ap": ap.to_record()["ours"], "ap_of_chance": chance.to_record()["ours"]}
            )
            panels.setdefault(("", heading), {})[display_name(model)] = auc
        columns = ["", "AUC: the paper", "here", "difference", "AP here", "seeds"]
        sections.append(Section(heading, columns, rows))
        for k in results.select(data)[-1:]:
            counts = [
                f"{k['figures'][split]['positive']:,} of {k['figures'][split]['events']:,} in {split}"
                for split in ("train", "test")
            ]
            label_notes.append(f"**{data}**: positive labels are {' and '.join(counts)}.")
    notes = [
        "The encoder is trained on links and then frozen. An MLP on its embeddings of single nodes (CorDGT: STPE-U) "
        "predicts whether an event changes the state of its source. It sees strictly earlier events. The split by "
        "time is that of link prediction.",
        "Positive labels are rare, so both classes have the same weight in the loss. Validation AUC selects the epoch. "
        "AUC is over the whole test split; AP shows the precision.",
        *label_notes,
        "The paper took the results of the other models from the TGN paper.",
        *results.notes(show_protocol=False),
    ]
    title = "AUC of node classification, in percent"
    draw = partial(plots.dot_plot, title=title, panels=panels, unit="AUC, %")
    return Report(title, sections, records, notes, draw)
