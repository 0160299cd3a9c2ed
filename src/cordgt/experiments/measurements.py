"""Run a cell: train it, make its measurement, and write the result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, RunError
from cordgt.events.stream import EventStream
from cordgt.experiments import provenance
from cordgt.experiments.bench.scaling import first_events
from cordgt.experiments.cells import QUICK_EVENTS, Cell, CellResult, CellStore, flatten_settings, nan_to_none
from cordgt.experiments.cost_growth import measure_cost_growth
from cordgt.experiments.hard_negatives import measure_anchors, measure_hard_negatives, measure_ranking
from cordgt.experiments.heatmap_data import measure_heatmap
from cordgt.experiments.partner_ranking import measure_new_partners
from cordgt.experiments.retrieval_measurement import measure_retrieval
from cordgt.inference.run import Run
from cordgt.io.datasets import registry
from cordgt.tasks.link import split_stream
from cordgt.tasks.node import positive_labels
from cordgt.training.devices import choose_device
from cordgt.training.output_folder import RunMismatchError, check_same_run
from cordgt.training.run_folder import RunFolder
from cordgt.workflows.node_classification import train_classifier
from cordgt.workflows.train import train_run


def measure_node_classification(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Train a classifier on the run's frozen encoder, with the labels of the run's own events; return its metrics."""
    return train_classifier(run, callbacks=callbacks)[1]


def measure_calibration(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Return the metrics of the run's probabilities and times, without the bins of the reliability plots."""
    if "calibration" not in run.metrics:
        raise RunError(f"{run.path} has no activity. Leave out --set activity=false.")
    calibration = run.metrics["calibration"]
    horizons = [
        {key: _without_bins(value) if isinstance(value, dict) else value for key, value in row.items()}
        for row in calibration["horizons"]
    ]
    return {"calibration": {**calibration, "horizons": horizons}, "next_event": run.metrics["next_event"]}


def measure_convergence(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Return the validation AP of each epoch, and the seconds since the training began."""
    history = run.folder.read_history(run.checksums.get("history.jsonl"))
    epochs = [record for record in history if record["phase"] == "fit" and "validation" in record]
    if not epochs:
        raise RunError(f"{run.path} has no validation metrics in history.jsonl.")
    seconds = accumulate(
        record.get("setup_seconds", 0.0) + record["train_seconds"] + record["validation_seconds"] for record in epochs
    )
    curve = [
        {"seconds": round(at, 3), "ap": record["validation"]["ap"]} for at, record in zip(seconds, epochs, strict=True)
    ]
    return {"epochs": curve, "test": run.metrics["test"]}


def _without_bins(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if key != "bins"}


# Functions that return a cell's metrics, by kind: on a trained run, and on a stream without a run folder.
RUN_MEASUREMENTS: dict[str, Callable[[Run, Callback], dict[str, Any]]] = {
    "node": measure_node_classification,
    "heatmap": measure_heatmap,
    "hard": measure_hard_negatives,
    "ranking": measure_ranking,
    "anchors": measure_anchors,
    "calibration": measure_calibration,
    "convergence": measure_convergence,
}
STREAM_MEASUREMENTS: dict[str, Callable[[Cell, EventStream, torch.device], dict[str, Any]]] = {
    "growth": measure_cost_growth,
    "partners": measure_new_partners,
    "retrieval": measure_retrieval,
}


def load_stream(data: str, quick: bool) -> EventStream:
    """Load a dataset by name, with ``quick`` only its first events. Cached until its file changes."""
    path = registry.find_dataset(data)
    if path is None or data in registry.GENERATED:
        return _load(data, quick, None)
    status = path.stat()
    return _load(data, quick, (str(path), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=1)  # consecutive cells mostly have the same dataset
def _load(data: str, quick: bool, _version: tuple[str, int, int] | None) -> EventStream:
    stream = registry.load_dataset(data)
    return first_events(stream, QUICK_EVENTS) if quick else stream


def find_unlabeled_datasets(cells: Iterable[Cell]) -> dict[str, str]:
    """Return, by dataset, why its labels cannot be used, for the cells that need labels."""
    first = {cell.data: cell for cell in reversed(list(cells)) if cell.kind == "node"}
    reasons = {}
    for data, cell in first.items():
        try:
            _check_labels(cell, load_stream(data, cell.quick))
        except DataError as error:
            reasons[data] = str(error)
    return reasons


def _check_labels(cell: Cell, stream: EventStream) -> None:
    if stream.label is None:
        raise DataError(f"{stream.name} has no labels.")
    positive_labels(stream.name, stream.label, split_stream(stream, cell.settings.protocol))


def run_cell(
    cell: Cell,
    store: CellStore,
    *,
    device: str = "auto",
    callbacks: Callback = NO_CALLBACK,
    keep: bool = False,
    workers: int = 1,
) -> CellResult:
    """Train a cell, or resume its training, measure it, write the result, and remove its run folder unless ``keep``.

    The caller holds the claim. An interrupted cell keeps its run folder, and the next attempt resumes it. The link
    prediction metrics of a training are written as a "link" cell, whatever the cell's own kind is. ``workers``
    trainings run at the same time; the result says so, because its times then depend on the others.
    """
    start = time.monotonic() - store.elapsed_seconds(cell)  # counts earlier attempts
    stream = load_stream(cell.data, cell.quick)
    if cell.kind in STREAM_MEASUREMENTS:
        torch_device = choose_device(device)
        metrics = STREAM_MEASUREMENTS[cell.kind](cell, stream, torch_device)
        result = cell_metadata(cell, stream, torch_device) | _timed_metrics(metrics, start, workers)
        store.write(cell, result)
        store.remove_run(cell, keep=keep)
        return result
    if cell.kind == "node":  # before hours of training
        _check_labels(cell, stream)
    try:
        _remove_mismatched_run(cell, store, stream, callbacks)
        path = store.run_folder(cell)
        run = train_run(stream, cell.settings, path, device=device, resume=True, report=keep, callbacks=callbacks)
        link_cell = cell.with_kind("link")
        if cell.kind == "link" or store.read(link_cell) is None:
            metrics = {"validation": run.metrics["validation"], "test": run.metrics["test"]}
            metrics["baselines"] = {name: splits["test"] for name, splits in run.metrics.baselines.items()}
            result = _run_metadata(link_cell, run, stream) | _timed_metrics(metrics, start, workers)
            store.write(link_cell, result)
        if cell.kind != "link":
            metrics = RUN_MEASUREMENTS[cell.kind](run, callbacks)
            result = _run_metadata(cell, run, stream) | _timed_metrics(metrics, start, workers)
            store.write(cell, result)
    except BaseException:
        store.write_elapsed(cell, time.monotonic() - start)
        raise
    store.remove_run(cell, keep=keep)
    return result


def _timed_metrics(metrics: dict[str, Any], start: float, workers: int) -> dict[str, Any]:
    return {"seconds": round(time.monotonic() - start, 3), "workers": workers, "figures": metrics}


def _remove_mismatched_run(cell: Cell, store: CellStore, stream: EventStream, callbacks: Callback) -> None:
    """Remove an unfinished run that has other settings or data: it cannot be resumed.

    Raise RunError if it cannot be read: it may be intact and worth hours of training.
    """
    folder = RunFolder(store.run_folder(cell))
    if not folder.has_run:
        return
    try:
        check_same_run(folder, folder.read_config(), cell.settings, stream)
    except RunMismatchError as mismatch:
        callbacks.on_message(f"{cell.label}: the unfinished run is removed and training starts again. {mismatch}")
        shutil.rmtree(folder.path)
    except RunError as error:
        raise RunError(f"{error} Try again, or remove {folder.path} to train the cell from the start.") from None


def _run_metadata(cell: Cell, run: Run, stream: EventStream) -> dict[str, Any]:
    keys = ("epochs", "best_epoch", "seconds_per_epoch", "parameters", "peak_memory_mb")
    return cell_metadata(cell, stream, run.device) | {key: nan_to_none(run.metrics.get(key)) for key in keys}


def cell_metadata(cell: Cell, stream: EventStream, device: torch.device) -> dict[str, Any]:
    """Return the content of a cell's file except its metrics and timings."""
    return {
        "kind": cell.kind,
        "data": cell.data,
        "model": cell.model,
        "seed": cell.seed,
        "variant": cell.variant,
        "quick": cell.quick,
        "settings": flatten_settings(cell.settings),
        "stream": provenance.stream_metadata(cell.data, stream),
        "device": str(device),
        "machine": provenance.machine_name(device),
        "code": provenance.code_version(),
        "command": provenance.cell_command(cell),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
