"""Searching settings on validation data: every combination of a grid is trained, none is shown the test period.

Each training has a run folder of its own, so that a search can be interrupted, and the best one be measured without
training it again: ``cordgt train … --out FOLDER --resume``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from cordgt.callbacks import Callback, Callbacks, as_callback
from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.history import rng
from cordgt.runtime.signals import listening
from cordgt.runtime.threads import keep_threads
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import Protocol
from cordgt.training.devices import choose_device, use_precision
from cordgt.training.oom import memory_explained
from cordgt.training.output_folder import check_same
from cordgt.training.run_folder import STATES, RunFolder, every_setting
from cordgt.training.settings import Settings, make
from cordgt.training.trainer import Fit

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Trial:
    """A combination, and how it did on validation data (transductive, its best epoch)."""

    settings: dict[str, Any]
    monitor: str  # metric that selects the epoch: "ap" or "mrr"
    figure: float  # the best of that kind
    best_epoch: int
    epochs: int
    seconds_per_epoch: float
    folder: str


def combinations(grid: Grid, at_most: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Every combination of the grid's values, the last key changing fastest; or ``at_most`` of them, drawn by seed."""
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if at_most is None or at_most >= len(every):
        return every
    key = rng.mix_int(seed)
    drawn = sorted(range(len(every)), key=lambda i: rng.child_int(key, i))[:at_most]
    return [every[i] for i in sorted(drawn)]


def check_grid(grid: Grid) -> None:
    """SettingError where there is nothing to search, or what is searched is the protocol."""
    if not grid:
        raise SettingError("There is nothing to search: name settings and values with --grid KEY=VALUE,VALUE.")
    for key, values in grid.items():
        if key in {field.name for field in fields(Protocol)}:
            raise SettingError(f"--grid {key}: the protocol says how models are measured; it is not searched.")
        if not values:
            raise SettingError(f"--grid {key}: there is no value to try.")


def search(
    stream: EventStream,
    settings: Settings,
    tried: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    columns: Mapping[str, str] | None = None,
    callbacks: Callbacks = None,
) -> list[Trial]:
    """Train every combination of ``tried`` on top of ``settings``, each into a folder below ``out``; best first.

    The test period stays unseen: each is judged by the figure that its training stops by. ``resume`` goes on
    where a search was interrupted; combinations that were finished then are not trained again.
    """
    chosen = choose_device(device)
    keep_threads()
    each = {_name(changes): _changed(settings, changes) for changes in tried}  # all of them checked before the first
    if len({made.to_toml() for made in each.values()}) < len(tried):
        raise SettingError("--grid: a combination stands there twice. Give each value of a key once.")
    taken = [out / name for name in each if RunFolder(out / name).holds_run]
    if taken and not resume:
        raise RunError(f"{taken[0]} holds a run already. Go on with --resume, or choose another folder with --out.")
    task = LinkTask.prepare(stream, settings.protocol, seed=settings.seed, device=chosen)
    found, callback = [], as_callback(callbacks)
    for (name, own), changes in zip(each.items(), tried, strict=True):
        callback.on_run_start(name)
        found.append(_try(RunFolder(out / name), own, dict(changes), task, dict(columns or {}), callback))
        callback.on_run_end(name, dict(vars(found[-1])))
    return sorted(found, key=lambda trial: -trial.figure)


def _try(
    folder: RunFolder,
    settings: Settings,
    changes: dict[str, Any],
    task: LinkTask,
    columns: dict[str, str],
    callbacks: Callback,
) -> Trial:
    """One training, from wherever it was; only its validation is looked at."""
    device = task.network_device
    use_precision(settings, device)
    with folder.locked(), memory_explained(settings, folder):
        folder.sweep()
        if folder.holds_run:
            check_same(folder, folder.read_config(), settings, task.stream)
        else:
            folder.create(settings, task.stream, columns=columns)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), listening() as stop:
            epochs = settings.training.epochs
            fit = Fit(folder, settings, task, phase="fit", epochs=epochs, start=None, callbacks=callbacks, stop=stop)
            best = fit.run()
        progress = fit.progress
        folder.write_tensors("model.safetensors", best, vars(progress))
        for name in STATES:
            folder.remove(name)
    seconds = progress.train_seconds / max(progress.epoch, 1)
    return Trial(
        changes,
        settings.training.monitor,
        progress.best_figure,
        progress.best_epoch,
        progress.epoch,
        seconds,
        str(folder.path),
    )


def _changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with some of them changed; SettingError where a model has no such key, or no such value."""
    made = make(settings.model, every_setting(settings) | dict(changes), seed=settings.seed, where="--grid")
    if made.unused:
        raise SettingError(f"--grid {made.unused[0]}: {settings.model} has no such setting.")
    return made


def _name(changes: Mapping[str, Any]) -> str:
    """The folder of a combination: ``num_walks-16_walk_length-2``."""
    return "_".join(f"{key}-{value}" for key, value in changes.items())
