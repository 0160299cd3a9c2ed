"""Node classification: train a classifier on the frozen encoder of a run, and write it to a folder.

config.toml              the encoder's folder and the classifier's settings
classifier.safetensors   the weights, with a checksum
metrics.json             the metrics; written last, so a folder with it is finished
"""

from __future__ import annotations

import time
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.callbacks import Callbacks, as_callback
from cordgt.errors import DataError, RunError, SettingError, did_you_mean
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.models import MODELS
from cordgt.tasks.node import (
    ALL_SPLITS,
    ClassifierSettings,
    FittedClassifier,
    NodeTask,
    classifier_metrics,
    embed_sources,
    fit_classifier,
)
from cordgt.training.run_folder import RunFolder, is_same_data
from cordgt.training.settings import convert_value, toml_lines


def classifier_settings(given: Mapping[str, Any]) -> ClassifierSettings:
    """Return settings from values or their text. SettingError, with the nearest key, for an unknown key."""
    types = typing.get_type_hints(ClassifierSettings)
    for key in given:
        if key not in types:
            raise SettingError(
                f"A classifier has no setting '{key}'.{did_you_mean(key, types)} It has: {', '.join(types)}. "
                "The encoder keeps the settings of its training."
            )
    return ClassifierSettings(**{key: convert_value(key, value, types[key]) for key, value in given.items()})


def check_encoder(run: Run) -> None:
    """Raise SettingError if the run's model has no embeddings."""
    if not MODELS[run.settings.model].network.has_embeddings:
        names = ", ".join(name for name, entry in MODELS.items() if entry.network.has_embeddings)
        raise SettingError(f"{run.settings.model} has no embeddings. Models with embeddings: {names}.")


def train_classifier(
    run: Run,
    label: np.ndarray | None = None,
    settings: ClassifierSettings | None = None,
    *,
    data: str | None = None,
    seed: int | None = None,
    callbacks: Callbacks = None,
) -> tuple[FittedClassifier, dict[str, Any]]:
    """Train a classifier on a run's frozen encoder. Return it with the metrics of each split.

    Args:
        label: one label per event of the run's original stream; the default is the stream's own labels.
        data: name of the labels' origin in errors; the default is the stream's name.
        seed: the default is the run's.
    """
    check_encoder(run)
    settings, callback = settings or ClassifierSettings(), as_callback(callbacks)
    seed = run.settings.seed if seed is None else seed
    model, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label if label is None else label, data)
    start = time.perf_counter()
    x = {}
    for split in ALL_SPLITS:
        callback.on_stage_start(f"evaluating: embedding, {split}", len(task.positions(split)))
        x[split] = embed_sources(model, task, split, callbacks=callback)
    embedding_seconds = time.perf_counter() - start
    y = {split: task.labels(split) for split in ALL_SPLITS}
    fitted = fit_classifier(x, y, settings, seed)
    metrics = {
        "task": "node",
        "model": run.settings.model,
        "data": link.stream.name,
        "seed": seed,
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "balance": settings.balance,
        "embedding_seconds": embedding_seconds,
        "classifier_seconds": time.perf_counter() - start - embedding_seconds,
        "device": str(run.device),
        **{split: classifier_metrics(fitted.model, x[split], y[split]) for split in ALL_SPLITS},
    }
    return fitted, metrics


def labels_for(run: Run, stream: EventStream, data: str | None = None) -> np.ndarray:
    """Return the labels of a stream with the run's events. DataError if it has other events, or no labels.

    ``data`` is the name of the stream in errors; the default is its own.
    """
    name = stream.name if data is None else data
    if not is_same_data(stream, run.config.data):
        raise DataError(
            f"{name} has other events than {run.path} was trained on. A classifier needs the encoder's events: "
            "give the same data, or train an encoder on this data."
        )
    if stream.label is None:
        raise DataError(f"{name} has no labels. Give their column with --label.")
    return stream.label


def train_classifier_run(
    run: Run,
    label: np.ndarray,
    settings: ClassifierSettings,
    out: Path,
    *,
    data: str | None = None,
    seed: int | None = None,
    callbacks: Callbacks = None,
) -> dict[str, Any]:
    """`train_classifier` that writes the folder ``out``. RunError if the folder is not empty."""
    folder = RunFolder(out)
    with folder.lock():
        existing = [p.name for p in out.iterdir() if not p.name.endswith(".part")]
        if existing:
            raise RunError(f"{out} is not empty (it holds {existing[0]}). Choose another folder with --out.")
        fitted, metrics = train_classifier(run, label, settings, data=data, seed=seed, callbacks=callbacks)
        folder.write_text("config.toml", _config(run, settings, metrics["seed"]))
        folder.write_tensors("classifier.safetensors", fitted.model.state_dict(), {"best_epoch": fitted.best_epoch})
        folder.write_metrics(metrics)
    return metrics


def _config(run: Run, settings: ClassifierSettings, seed: int) -> str:
    about = {"task": "node", "encoder": str(run.path.resolve()), "seed": seed}
    return "\n".join([*toml_lines(about), "\n[classifier]", *toml_lines(vars(settings))]) + "\n"
