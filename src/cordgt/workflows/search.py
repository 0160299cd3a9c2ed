"""Grid search: train every combination of settings and compare them on validation data. No test event is scored.

Each combination has its own run folder. An interrupted search can resume, and ``cordgt train … --out FOLDER --resume``
evaluates the best one without training it again.
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
from cordgt.runtime.signals import defer_signals
from cordgt.runtime.threads import pin_num_threads
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.protocol import Protocol
from cordgt.training.devices import choose_device, set_matmul_precision
from cordgt.training.oom import explain_out_of_memory
from cordgt.training.output_folder import check_same_run
from cordgt.training.run_folder import CHECKPOINT_FILES, RunFolder, settings_by_key
from cordgt.training.settings import RENAMED_SETTINGS, Settings, check_all_used, make_settings
from cordgt.training.trainer import Trainer

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Trial:
    """One combination and its validation result (transductive, best epoch)."""

    settings: dict[str, Any]
    monitor: str  # metric that selects the epoch
    value: float  # best value of that metric
    best_epoch: int
    epochs: int
    seconds_per_epoch: float
    folder: str


def grid_combinations(grid: Grid, max_combinations: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Return every combination of the grid's values, the last key changing fastest.

    ``max_combinations`` limits them to a random sample, in the same order.
    """
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if max_combinations is None or max_combinations >= len(every):
        return every
    key = rng.mix64_int(seed)
    sample = sorted(range(len(every)), key=lambda i: rng.fold_in_int(key, i))[:max_combinations]
    return [every[i] for i in sorted(sample)]


def check_grid(grid: Grid) -> None:
    """Raise SettingError if the grid is empty, has a key without values, or has a key of the protocol."""
    if not grid:
        raise SettingError("There is nothing to search. Give settings and values with --grid KEY=VALUE,VALUE.")
    for key, values in grid.items():
        if key in {field.name for field in fields(Protocol)}:
            raise SettingError(
                f"--grid {key}: the protocol says how models are measured, so a search cannot change it."
            )
        if not values:
            raise SettingError(f"--grid {key}: there is no value to try.")


def search(
    stream: EventStream,
    settings: Settings,
    combinations: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    columns: Mapping[str, str] | None = None,
    callbacks: Callbacks = None,
) -> list[Trial]:
    """Train ``settings`` with the changes of each combination, each into a folder below ``out``; best trial first.

    Trials are compared by the validation metric that selects the epoch. ``resume`` continues an interrupted search;
    finished combinations are not trained again.
    """
    torch_device = choose_device(device)
    pin_num_threads()
    by_folder = {_folder_name(out, c): _with_changes(settings, c) for c in combinations}  # check all before training
    if len({own.to_toml() for own in by_folder.values()}) < len(combinations):
        raise SettingError("--grid: a combination appears twice. Give each value of a key once.")
    existing = [out / name for name in by_folder if RunFolder(out / name).has_run]
    if existing and not resume:
        raise RunError(f"{existing[0]} holds a run already. Continue with --resume, or choose another --out.")
    task = LinkTask.prepare(stream, settings.protocol, seed=settings.seed, device=torch_device)
    trials, callback = [], as_callback(callbacks)
    for (name, own), changes in zip(by_folder.items(), combinations, strict=True):
        callback.on_run_start(name)
        trials.append(_run_trial(RunFolder(out / name), own, dict(changes), task, dict(columns or {}), callback))
        callback.on_run_end(name, dict(vars(trials[-1])))
    sign = 1 if LINK_METRICS[settings.training.monitor].higher_is_better else -1
    return sorted(trials, key=lambda trial: -sign * trial.value)


def _run_trial(
    folder: RunFolder,
    settings: Settings,
    changes: dict[str, Any],
    task: LinkTask,
    columns: dict[str, str],
    callbacks: Callback,
) -> Trial:
    """Train one combination, or continue it, and return its validation result."""
    device = task.network_device
    set_matmul_precision(settings, device)
    with folder.lock(), explain_out_of_memory(settings, folder):
        folder.delete_partial_files()
        if folder.has_run:
            check_same_run(folder, folder.read_config(), settings, task.stream)
        else:
            folder.create(settings, task.stream, columns=columns)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), defer_signals() as stop:
            epochs = settings.training.epochs
            trainer = Trainer(folder, settings, task, phase="fit", epochs=epochs, callbacks=callbacks, stop=stop)
            best = trainer.fit()
        progress = trainer.progress
        folder.write_tensors("model.safetensors", best, vars(progress))
        for name in CHECKPOINT_FILES:
            folder.remove(name)
    return Trial(
        changes,
        monitor=settings.training.monitor,
        value=progress.best_metric,
        best_epoch=progress.best_epoch,
        epochs=progress.epoch,
        seconds_per_epoch=progress.train_seconds / max(progress.epoch, 1),
        folder=str(folder.path),
    )


def _with_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with changes. SettingError if the model has no such key, or the value is not valid."""
    made = make_settings(settings.model, settings_by_key(settings) | dict(changes), seed=settings.seed, where="--grid")
    check_all_used(made, changes, "--grid")
    return made


def _folder_name(out: Path, changes: Mapping[str, Any]) -> str:
    """Return the folder name of a combination: ``num_walks-16_walk_length-2``, or v0.1's name if that folder exists."""
    old_names = {new: old for old, new in RENAMED_SETTINGS.items()}
    name, old = ("_".join(f"{names.get(k, k)}-{v}" for k, v in changes.items()) for names in ({}, old_names))
    return old if (out / old).exists() else name
