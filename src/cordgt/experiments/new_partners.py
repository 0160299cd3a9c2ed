"""Recommending partners as a shop does: those a source has never met, and all partners.

Every model ranks the true destination among all destinations that are known at the time of the event. For never-met
partners, past partners of the source do not compete and only first meetings are evaluated. Models with several
settings are shown with those of the highest MRR on the validation split, chosen for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.partner_ranking import MAX_EVENTS, MAX_TRAIN_EVENTS, N_CANDIDATES, ROWS
from cordgt.experiments.tables import (
    MISSING,
    Comparison,
    ExperimentRequest,
    Panels,
    Report,
    ResultSet,
    Section,
    percentages,
)
from cordgt.models import MODELS
from cordgt.tasks.metrics import LINK_METRICS

KIND = "partners"  # of the cells
DATASETS = ("gowalla_subset", "lastfm_prefix", "mooc", "retrosheet_2022", "journey_8weeks")
DEFAULT_MODELS = ("popularity", "item_knn", "counts", "cordgt_plus", "tgn", "dygformer")
METRICS = ("mrr", "ndcg@10", "hits@10")
SHORT = {"monitor": "mrr", "batch_size": 200, "epochs": 3}
RANKING = SHORT | {
    "loss": "ranking", "num_negatives": 20, "past_negatives": 0.1, "collaborative": True, "votes": True,
}  # fmt: skip
# Settings of each model. Where there are several, the validation split chooses for each row.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "popularity": ({}, {"window": 1000}, {"window": 10_000}),
    "item_knn": ({}, {"penalty": 0.5}, {"decay": 0.95}, {"window": 20, "decay": 0.95}),
    "als": ({}, {"confidence": 1.0}, {"confidence": 1.0, "dim": 32}, {"num_partners": 20}),
    "counts": (RANKING,),
    "cordgt_plus": (RANKING | {"fanout": (8, 1), "hidden": 32},),
    "tgn": (SHORT | {"block": 200},),
    "dygformer": (SHORT | {"max_seq_len": 32, "patch_size": 1, "lr": 0.0003},),
}


class BestVariant(NamedTuple):
    """The results of one model in one row, with the settings that the validation split chose."""

    settings: dict[str, Any]
    results: Sequence[CellResult]

    def metric(self, row: str, name: str) -> Comparison:
        return Comparison(percentages(self.results, row, "test", name))


def new_partner_cells(request: ExperimentRequest) -> list[Cell]:
    """Build a cell for each seed, dataset, model and variant; one seed for models without training."""
    cells = []
    for seed in request.seeds:
        for data in request.datasets:
            for model in request.models:
                if MODELS[model].network.is_trainable or seed == request.seeds[0]:
                    cells += [_make_cell(request, data, model, seed, own) for own in _variants(model)]
    return cells


def _make_cell(request: ExperimentRequest, data: str, model: str, seed: int, own: dict[str, Any]) -> Cell:
    settings = {"mask_nodes": 0.0, "activity": False, **own, **request.changes}
    return request.make_cell(data, model, seed, settings, kind=KIND)


def _variants(model: str) -> tuple[dict[str, Any], ...]:
    if model in VARIANTS:
        return VARIANTS[model]
    return (SHORT,) if MODELS[model].network.is_trainable else ({},)


def new_partner_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report each metric by dataset and row, with a column per model; the best is bold."""
    results = ResultSet(request, store, new_partner_cells(request))
    best = {
        (data, row, model): _best_variant(results, data, row, model)
        for data in request.datasets
        for row in ROWS
        for model in request.models
    }
    sections, records = [], []
    for name in METRICS:
        rows = []
        for data in request.datasets:
            for row, (title, _) in ROWS.items():
                own = {model: best[data, row, model].metric(row, name) for model in request.models}
                rows.append([f"{results.heading(data)}, {title}", *_texts(own), _events_text(results, data, row)])
                records += [_record(data, row, model, name, best[data, row, model]) for model in request.models]
        sections.append(Section(LINK_METRICS[name].title, ["", *map(display_name, request.models), "events"], rows))
    notes = [
        "In percent. Each true destination is ranked among all destinations that are known at its time. *Never met*: "
        "first meetings only, and past partners of the source do not compete. Ties get their mean rank. "
        f"At most {MAX_EVENTS:,} test events of each row, evenly spread. Mean ± sample standard deviation over the "
        "seeds; models without training have one seed.",
        f"A training reads the latest {MAX_TRAIN_EVENTS:,} training events, at most three times. Models that score a "
        f"pair slowly rank the best {N_CANDIDATES} destinations of a first stage: the counts network of CorDGT+, "
        "item-kNN for the others. A true destination that is not among them keeps its rank of the first stage.",
        "A model with several settings is shown with those of the highest MRR on the validation split, for each row: "
        f"{_chosen_text(best)}.",
        *results.notes(show_protocol=False),
    ]
    title = "Partners that a source has never met, and all partners"
    panels: Panels = {
        (ROWS[row][0], results.heading(data)): {
            display_name(model): best[data, row, model].metric(row, "mrr") for model in request.models
        }
        for row in ROWS
        for data in request.datasets
    }
    draw = partial(plots.dot_plot, title=title, panels=panels, unit="MRR, %")
    return Report(title, sections, records, notes, draw)


def _best_variant(results: ResultSet, data: str, row: str, model: str) -> BestVariant:
    """Return the variant with the highest mean MRR on the validation split; without results if there is none."""
    found = BestVariant({}, ())
    highest = -1.0
    for own in _variants(model):
        paths = {results.store.path(cell) for cell in results.cells if _is_of(cell, results.request, data, model, own)}
        same = [k for cell in results.cells if results.store.path(cell) in paths and (k := results.store.read(cell))]
        # a model with one variant has no metrics of the validation split: there is nothing to choose
        mrr = Comparison(percentages(same, row, "validation", "mrr")).mean if len(_variants(model)) > 1 else 0.0
        if same and mrr is not None and mrr > highest:
            found, highest = BestVariant(own, same), mrr
    return found


def _is_of(cell: Cell, request: ExperimentRequest, data: str, model: str, own: dict[str, Any]) -> bool:
    return cell == _make_cell(request, data, model, cell.seed, own)


def _texts(own: dict[str, Comparison]) -> list[str]:
    highest = max((c.mean for c in own.values() if c.mean is not None), default=None)
    return [f"**{c.text}**" if c.mean is not None and c.mean == highest else c.text for c in own.values()]


def _events_text(results: ResultSet, data: str, row: str) -> str:
    counts = sorted({k["figures"][row]["test"]["events"] for k in results.select(data)})
    return " ".join(f"{n:,}" for n in counts) or MISSING


def _chosen_text(best: dict[tuple[str, str, str], BestVariant]) -> str:
    chosen = []
    for (data, row, model), variant in best.items():
        if len(_variants(model)) > 1 and variant.results:
            own = ", ".join(f"{key}={value}" for key, value in variant.settings.items()) or "the defaults"
            chosen.append(f"{data}, {ROWS[row][0]}, {display_name(model)}: {own}")
    return ". ".join(chosen) or "none is finished"


def _record(data: str, row: str, model: str, name: str, variant: BestVariant) -> dict[str, Any]:
    """Return a CSV line, with metrics in percent."""
    settings = " ".join(f"{key}={value}" for key, value in variant.settings.items())
    record = {"data": data, "partners": row, "model": model, "metric": name, "settings": settings}
    return record | variant.metric(row, name).to_record(with_paper=False)
