"""What is measured of a cell: a training's own figures, and what else can be asked of the run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, RunError
from cordgt.events.stream import EventStream
from cordgt.experiments import provenance
from cordgt.experiments.bench.scaling import first_events
from cordgt.experiments.cells import QUICK_EVENTS, Cell, Store, finite, flat
from cordgt.experiments.cost_growth import grow
from cordgt.experiments.hard_negatives import hard, ranked
from cordgt.experiments.heatmap_data import heat
from cordgt.inference.run import Run
from cordgt.io.datasets import registry
from cordgt.tasks.link import split_of
from cordgt.tasks.node import positive_labels
from cordgt.training.devices import choose_device
from cordgt.training.output_folder import OtherRun, check_same
from cordgt.training.run_folder import RunFolder
from cordgt.workflows.node_classification import classify
from cordgt.workflows.train import train_run


def node_figures(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Of a classifier on the run's frozen encoder, with the labels of the run's own events."""
    return classify(run, callbacks=callbacks)[1]


def heat_figures(run: Run, _: Callback) -> dict[str, Any]:
    """Of heat maps, which take no time worth telling."""
    return heat(run)


# What comes back are a cell's figures: of a trained run by kind of cell, besides "link"; and of what needs no training.
MEASURES: dict[str, Callable[[Run, Callback], dict[str, Any]]] = {
    "node": node_figures,
    "heatmap": heat_figures,
    "hard": hard,
    "ranking": ranked,
}
UNTRAINED: dict[str, Callable[[Cell, EventStream, torch.device], dict[str, Any]]] = {"growth": grow}


def load_stream(data: str, quick: bool) -> EventStream:
    """A dataset by name; with ``quick`` its first events. Read again where its file has changed."""
    path = registry.find(data)
    about = None if path is None or data in registry.GENERATED else path.stat()
    return _load(data, quick, None if about is None else (str(path), about.st_mtime_ns, about.st_size))


@lru_cache(maxsize=1)  # cells of one dataset mostly follow each other
def _load(data: str, quick: bool, _version: tuple[str, int, int] | None) -> EventStream:
    stream = registry.load(data)
    return first_events(stream, QUICK_EVENTS) if quick else stream


def without_labels(cells: Iterable[Cell]) -> dict[str, str]:
    """Why datasets cannot be classified by their labels, by name, for those of some cells that need them."""
    first = {cell.data: cell for cell in reversed(list(cells)) if cell.kind == "node"}
    found = {}
    for data, cell in first.items():
        try:
            _check_labels(cell, load_stream(data, cell.quick))
        except DataError as error:
            found[data] = str(error)
    return found


def _check_labels(cell: Cell, stream: EventStream) -> None:
    if stream.label is None:
        raise DataError(f"{stream.name} has no labels.")
    positive_labels(stream.name, stream.label, split_of(stream, cell.settings.protocol))


def run_cell(
    cell: Cell,
    store: Store,
    *,
    device: str = "auto",
    callbacks: Callback = NO_CALLBACK,
    keep: bool = False,
) -> dict[str, Any]:
    """Train a cell from wherever it was, measure it, keep what was found, and remove the run folder.

    The claim must be ours. Interrupted, the run folder stays, and the next attempt goes on from it. Whatever else is
    measured of a training, its link figures are kept as well.
    """
    began, before = time.monotonic(), store.spent(cell)
    stream = load_stream(cell.data, cell.quick)
    if cell.kind in UNTRAINED:
        on = choose_device(device)
        figures = UNTRAINED[cell.kind](cell, stream, on)
        spent = {"seconds": round(time.monotonic() - began, 3), "figures": figures}
        store.write(cell, about_cell(cell, stream, on) | spent)
        store.clear(cell, keep=keep)
        return spent
    if cell.kind == "node":  # before hours of training
        _check_labels(cell, stream)
    try:
        _discard_other(cell, store, stream, callbacks)
        path = store.run_folder(cell)
        run = train_run(stream, cell.settings, path, device=device, resume=True, report=keep, callbacks=callbacks)
        link = cell.of_kind("link")
        figures = {"validation": run.metrics["validation"], "test": run.metrics["test"]}
        figures["baselines"] = {name: of["test"] for name, of in run.metrics.baselines.items()}
        seconds = before + time.monotonic() - began
        if cell.kind == "link" or store.read(link) is None:
            found = _record(link, run, stream, figures, seconds)
            store.write(link, found)
        if cell.kind != "link":
            measured = MEASURES[cell.kind](run, callbacks)
            found = _record(cell, run, stream, measured, before + time.monotonic() - began)
            store.write(cell, found)
    except BaseException:
        store.note_spent(cell, before + time.monotonic() - began)
        raise
    store.clear(cell, keep=keep)
    return found


def _discard_other(cell: Cell, store: Store, stream: EventStream, callbacks: Callback) -> None:
    """Remove a run that was begun with other defaults, or on other data: nothing of it can be used.

    RunError where it cannot be read: it may be sound, and hours of training.
    """
    folder = RunFolder(store.run_folder(cell))
    if not folder.holds_run:
        return
    try:
        check_same(folder, folder.read_config(), cell.settings, stream)
    except OtherRun as other:
        callbacks.on_message(f"{cell.label}: the run that was under way is removed, and trained anew. {other}")
        shutil.rmtree(folder.path)
    except RunError as error:
        raise RunError(
            f"{error} Try again, or remove {folder.path}: the cell is then trained from the start."
        ) from None


def _record(cell: Cell, run: Run, stream: EventStream, figures: dict[str, Any], seconds: float) -> dict[str, Any]:
    measured = ("epochs", "best_epoch", "seconds_per_epoch", "parameters", "peak_memory_mb")
    return about_cell(cell, stream, run.device) | {
        **{key: finite(run.metrics.get(key)) for key in measured},
        "seconds": round(seconds, 3),
        "figures": figures,
    }


def about_cell(cell: Cell, stream: EventStream, device: torch.device) -> dict[str, Any]:
    """What a cell's file says besides its figures."""
    return {
        "kind": cell.kind,
        "data": cell.data,
        "model": cell.model,
        "seed": cell.seed,
        "variant": cell.variant,
        "quick": cell.quick,
        "settings": flat(cell.settings),
        "stream": provenance.about_stream(cell.data, stream),
        "device": str(device),
        "machine": provenance.machine(device),
        "code": provenance.code(),
        "command": provenance.command(cell),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
