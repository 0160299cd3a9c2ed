"""Node classification as a run folder: a classifier on the frozen encoder of another run.

config.toml              the encoder's folder, and everything the classifier was made with
classifier.safetensors   its weights, with a checksum
metrics.json             the figures; its presence says that it is finished
"""

from __future__ import annotations

import time
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.callbacks import Callbacks, as_callback
from cordgt.errors import DataError, RunError, SettingError, nearest
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.models import MODELS
from cordgt.tasks.node import ALL_SPLITS, ClassifierSettings, Fitted, NodeTask, classifier_metrics, embeddings, fit
from cordgt.training.run_folder import RunFolder, is_same_data
from cordgt.training.settings import convert, toml_lines


def classifier_settings(given: Mapping[str, Any]) -> ClassifierSettings:
    """Settings from the keys given, each a value or the text of one. SettingError, with the nearest, for others."""
    kinds = typing.get_type_hints(ClassifierSettings)
    for key in given:
        if key not in kinds:
            raise SettingError(
                f"A classifier has no setting '{key}'.{nearest(key, kinds)} It has: {', '.join(kinds)}. The encoder's "
                "are those it was trained with."
            )
    return ClassifierSettings(**{key: convert(key, value, kinds[key]) for key, value in given.items()})


def check_encoder(run: Run) -> None:
    """SettingError where a run's model has no embeddings."""
    if not MODELS[run.settings.model].network.has_embeddings:
        able = ", ".join(name for name, kind in MODELS.items() if kind.network.has_embeddings)
        raise SettingError(f"{run.settings.model} has no embeddings to classify by. Models that have: {able}.")


def classify(
    run: Run,
    label: np.ndarray | None = None,
    settings: ClassifierSettings | None = None,
    *,
    data: str | None = None,
    seed: int | None = None,
    callbacks: Callbacks = None,
) -> tuple[Fitted, dict[str, Any]]:
    """Train a classifier on a run's frozen encoder; returns it with the metrics of each split.

    ``label``: one an event of the run's own stream, without those the stream's own. ``data``: where they
    are from, for errors; the stream's name by default. ``seed``: the run's by default.
    """
    check_encoder(run)
    settings, callback = settings or ClassifierSettings(), as_callback(callbacks)
    seed = run.settings.seed if seed is None else seed
    model, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label if label is None else label, data)
    began = time.perf_counter()
    x = {}
    for split in ALL_SPLITS:
        callback.on_stage_start(f"evaluating: embedding, {split}", len(task.positions(split)))
        x[split] = embeddings(model, task, split, callbacks=callback)
    embedded = time.perf_counter() - began
    y = {split: task.labels(split) for split in ALL_SPLITS}
    fitted = fit(x, y, settings, seed)
    found = {
        "task": "node",
        "model": run.settings.model,
        "data": link.stream.name,
        "seed": seed,
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "balance": settings.balance,
        "embedding_seconds": embedded,
        "classifier_seconds": time.perf_counter() - began - embedded,
        "device": str(run.device),
        **{split: classifier_metrics(fitted.model, x[split], y[split]) for split in ALL_SPLITS},
    }
    return fitted, found


def labels_of(run: Run, stream: EventStream, data: str | None = None) -> np.ndarray:
    """The labels of a stream that has the run's own events. DataError where it has others, or no labels.

    ``data``: what people know the stream by; its name by default.
    """
    name = stream.name if data is None else data
    if not is_same_data(stream, run.config.data):
        raise DataError(
            f"{name} has other events than {run.path} was trained on. A classifier is trained on the "
            "encoder's events: name the same data, or train an encoder on this."
        )
    if stream.label is None:
        raise DataError(f"{name} has no labels: name their column with --label.")
    return stream.label


def classify_in(
    run: Run,
    label: np.ndarray,
    settings: ClassifierSettings,
    out: Path,
    *,
    data: str | None = None,
    seed: int | None = None,
    callbacks: Callbacks = None,
) -> dict[str, Any]:
    """`classify`, with everything kept in a folder. RunError where it holds something already."""
    folder = RunFolder(out)
    with folder.locked():
        left = [p.name for p in out.iterdir() if not p.name.endswith(".part")]
        if left:
            raise RunError(f"{out} is not empty (it holds {left[0]}). Choose another folder with --out.")
        fitted, metrics = classify(run, label, settings, data=data, seed=seed, callbacks=callbacks)
        folder.write_text("config.toml", _config(run, settings, metrics["seed"]))
        folder.write_tensors("classifier.safetensors", fitted.model.state_dict(), {"best_epoch": fitted.best_epoch})
        folder.write_metrics(metrics)
    return metrics


def _config(run: Run, settings: ClassifierSettings, seed: int) -> str:
    about = {"task": "node", "encoder": str(run.path.resolve()), "seed": seed}
    return "\n".join([*toml_lines(about), "\n[classifier]", *toml_lines(vars(settings))]) + "\n"
