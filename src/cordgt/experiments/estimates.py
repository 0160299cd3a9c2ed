"""What can be reproduced with the data at hand, and about how long it will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordgt.experiments.catalogue import EXPERIMENTS, Experiment
from cordgt.experiments.cells import QUICK_EVENTS, Cell, Store, at_hand, choose_datasets, twin_where_missing
from cordgt.experiments.measurements import MEASURES, UNTRAINED
from cordgt.experiments.scheduler import expected_seconds
from cordgt.experiments.statistics import all_datasets
from cordgt.experiments.tables import Asked
from cordgt.io.datasets import registry
from cordgt.io.datasets.twins import TWINS
from cordgt.models import MODELS

# Seconds of a training batch of 100 events on two CPU cores, about; docs/models.md says how some were measured.
BATCH_SECONDS = {
    "cordgt": 1.0,
    "cordgt_plus": 1.5,
    "tgn": 0.03,
    "dyrep": 0.01,
    "jodie": 0.01,
    "tgat": 0.3,
    "graphmixer": 0.3,
    "dygformer": 1.0,
    "tcl": 0.7,
    "cawn": 4.0,
    "tgsrec": 0.7,
    "ctdne": 0.01,
    "counts": 0.005,
}
KINDS = ("link", *MEASURES, *UNTRAINED)
EPOCHS = 10  # until a training stops by itself, about
GPU_TIMES_FASTER = {"tgn": 3, "dyrep": 1, "jodie": 1, "ctdne": 1, "counts": 1}  # others: docs/performance.md, about
GPU_USUALLY = 300


def guess_seconds(cell: Cell, device: str) -> float | None:
    """A rough guess where nothing like it was trained yet; None for data of unknown size."""
    known = registry.KNOWN.get(cell.data)
    twin = TWINS.get(cell.data)
    events = known.links if known is not None else twin.events if twin is not None else None
    if events is None:
        return None
    if cell.quick:
        events = min(events, QUICK_EVENTS)
    if cell.kind == "growth":
        return 120.0
    epochs = min(EPOCHS, cell.settings.training.epochs)
    usual = 1.0 if MODELS[cell.model].network.is_trainable else 0.0
    seconds = 0.85 * events / 100 * epochs * BATCH_SECONDS.get(cell.model, usual)
    faster = GPU_TIMES_FASTER.get(cell.model, GPU_USUALLY) if device == "cuda" else 1
    return 5.0 + seconds / faster


def usual_datasets(experiment: Experiment, *, trained: bool) -> list[str]:
    """What a call without ``--datasets`` takes: those at hand, twins for the large ones; all for their statistics."""
    if experiment.cells is None:
        return list(all_datasets())
    return choose_datasets(None, experiment.datasets, trained=trained, twins=experiment.twins)


def outlook(
    store: Store,
    device: str,
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    quick: bool = False,
) -> list[dict[str, Any]]:
    """A row for each experiment: data here and missing, cells finished, and about how long the others take.

    Of ``datasets``, ``models`` and ``seeds`` None: what each takes by itself; of models only those it has a place for.
    """
    rows = []
    finished = [cell for kind in KINDS for cell in store.every(kind)]
    for name, experiment in EXPERIMENTS.items():
        usual = experiment.datasets if experiment.cells is not None else all_datasets()
        names = list(usual if datasets is None else datasets)
        missing = [d for d in names if not at_hand(d)]
        if experiment.twins and datasets is None:
            names = [twin_where_missing(d) for d in names]
        here = [name for name in names if at_hand(name)]
        row: dict[str, Any] = {"name": name, "about": experiment.about, "data": ", ".join(here) or None}
        row |= {"missing": ", ".join(missing) or None}
        cells: list[Cell] = []
        if experiment.cells is not None and here:
            own = experiment.usual_seeds(quick) if seeds is None else list(seeds)
            of = experiment.usual_models if models is None else [m for m in models if m in experiment.models]
            cells = list(dict.fromkeys(experiment.cells(Asked(here, of, own, quick=quick)))) if of else []
        left = [cell for cell in cells if store.read(cell) is None]
        hours = sum(_seconds(cell, finished, device) for cell in left) / 3600
        rows.append(row | {"cells": f"{len(cells) - len(left)}/{len(cells)}", "hours": round(hours, 2)})
    return rows


def _seconds(cell: Cell, finished: Sequence[dict[str, Any]], device: str) -> float:
    known = expected_seconds(cell, finished, device)
    return known if known is not None else guess_seconds(cell, device) or 0.0
