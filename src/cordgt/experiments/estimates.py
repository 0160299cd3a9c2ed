"""Which experiments can run with the available data, and about how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordgt.experiments.catalogue import EXPERIMENTS, Experiment
from cordgt.experiments.cells import (
    QUICK_EVENTS,
    Cell,
    CellResult,
    CellStore,
    choose_datasets,
    is_available,
    twin_if_missing,
)
from cordgt.experiments.measurements import RUN_MEASUREMENTS, STREAM_MEASUREMENTS
from cordgt.experiments.scheduler import expected_seconds
from cordgt.experiments.statistics import list_all_datasets
from cordgt.experiments.tables import ExperimentRequest
from cordgt.io.datasets import registry
from cordgt.io.datasets.twins import TWINS
from cordgt.models import MODELS

# Approximate seconds of a training batch of 100 events on two CPU cores; docs/models.md says how some were measured.
BATCH_SECONDS = {
    "cordgt": 1.0,
    "cordgt_plus": 1.5,
    "cordgt_small": 0.05,
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
KINDS = ("link", *RUN_MEASUREMENTS, *STREAM_MEASUREMENTS)
TYPICAL_EPOCHS = 10  # until early stopping, about
GPU_SPEEDUP = {"tgn": 3, "dyrep": 1, "jodie": 1, "ctdne": 1, "counts": 1}
DEFAULT_GPU_SPEEDUP = 300  # approximate; see docs/performance.md


def estimate_seconds(cell: Cell, device: str) -> float | None:
    """Estimate the seconds of a cell without finished ones to compare with; None for data of unknown size."""
    known = registry.KNOWN_DATASETS.get(cell.data)
    twin = TWINS.get(cell.data)
    events = known.links if known is not None else twin.events if twin is not None else None
    if events is None:
        return None
    if cell.quick:
        events = min(events, QUICK_EVENTS)
    if cell.kind == "growth":
        return 120.0
    epochs = min(TYPICAL_EPOCHS, cell.settings.training.epochs)
    default = 1.0 if MODELS[cell.model].network.is_trainable else 0.0
    seconds = 0.85 * events / 100 * epochs * BATCH_SECONDS.get(cell.model, default)
    speedup = GPU_SPEEDUP.get(cell.model, DEFAULT_GPU_SPEEDUP) if device == "cuda" else 1
    return 5.0 + seconds / speedup


def default_datasets(experiment: Experiment, *, require_data: bool) -> list[str]:
    """Return the datasets of a call without ``--datasets``; all of them for the dataset statistics."""
    if experiment.cells is None:
        return list(list_all_datasets())
    return choose_datasets(None, experiment.datasets, require_data=require_data, twins=experiment.twins)


def list_experiments(
    store: CellStore,
    device: str,
    *,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    quick: bool = False,
) -> list[dict[str, Any]]:
    """Return a row for each experiment: available and missing data, finished cells, estimated hours for the others.

    ``datasets``, ``models`` and ``seeds`` default to those of the experiment; models it does not support are ignored.
    """
    rows = []
    finished = [cell for kind in KINDS for cell in store.read_all(kind)]
    for name, experiment in EXPERIMENTS.items():
        defaults = experiment.datasets if experiment.cells is not None else list_all_datasets()
        names = list(defaults if datasets is None else datasets)
        missing = [d for d in names if not is_available(d)]
        if experiment.twins and datasets is None:
            names = [twin_if_missing(d) for d in names]
        available = [d for d in names if is_available(d)]
        row: dict[str, Any] = {"name": name, "about": experiment.description}
        row |= {"data": ", ".join(available) or None, "missing": ", ".join(missing) or None}
        cells: list[Cell] = []
        if experiment.cells is not None and available:
            own_seeds = experiment.default_seeds(quick) if seeds is None else list(seeds)
            own_models = experiment.default_models if models is None else [m for m in models if m in experiment.models]
            request = ExperimentRequest(available, own_models, own_seeds, quick=quick)
            cells = list(dict.fromkeys(experiment.cells(request))) if own_models else []
        unfinished = [cell for cell in cells if store.read(cell) is None]
        hours = sum(_seconds(cell, finished, device) for cell in unfinished) / 3600
        rows.append(row | {"cells": f"{len(cells) - len(unfinished)}/{len(cells)}", "hours": round(hours, 2)})
    return rows


def _seconds(cell: Cell, finished: Sequence[CellResult], device: str) -> float:
    known = expected_seconds(cell, finished, device)
    return known if known is not None else estimate_seconds(cell, device) or 0.0
