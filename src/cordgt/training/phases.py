"""The phases of a training job: train, evaluate, fit the activity, refit.

What needs no link model is computed in side processes meanwhile, if that makes the job shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback, CallbackList
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.runtime.distributed import ProcessLostError
from cordgt.runtime.signals import StopCallback, StopRequest, defer_signals
from cordgt.tasks.baselines import baseline_metrics
from cordgt.tasks.forecast import Forecaster
from cordgt.tasks.forecast_metrics import forecast_metrics
from cordgt.tasks.link import LinkTask
from cordgt.tasks.negatives import NEGATIVES
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.blend import choose_counts_weight, copy_counts
from cordgt.training.devices import peak_memory_mb, set_matmul_precision
from cordgt.training.evaluation import evaluate_splits, training_objective
from cordgt.training.model_factory import load_weights
from cordgt.training.run_folder import CHECKPOINT_FILES, RunFolder
from cordgt.training.settings import Settings
from cordgt.training.side_process import SideProcess, can_use_side_process
from cordgt.training.trainer import Trainer


def fit_and_evaluate(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    *,
    init_weights: dict[str, Tensor] | None = None,
    init_info: Mapping[str, str] | None = None,
    refit: bool = False,
    callbacks: Callback = NO_CALLBACK,
) -> RunMetrics:
    """Train, evaluate and write everything into ``folder``; return the content of ``metrics.json``.

    ``init_info`` describes ``init_weights`` there. With ``refit`` a second model is trained on all events, for as many
    epochs as validation chose; the metrics are those of the first.
    """
    device = task.network_device
    set_matmul_precision(settings, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    folder.delete_partial_files()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), defer_signals() as stop:
        try:
            metrics = _run_phases(folder, settings, task, init_weights, refit, callbacks, stop)
        except ProcessLostError:
            stop.raise_if_requested()  # the other processes were asked to stop too, while this one waited for them
            raise
    metrics["peak_memory_mb"] = peak_memory_mb(device)
    if init_info is not None:
        metrics["init"] = dict(init_info)
    for name in CHECKPOINT_FILES:  # the final weights are saved, so a resume needs no checkpoint
        folder.remove(name)
    folder.write_metrics(metrics)
    return metrics


def _run_phases(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    init_weights: dict[str, Tensor] | None,
    refit: bool,
    callbacks: Callback,
    stop: StopRequest,
) -> RunMetrics:
    """Train, save the best weights and evaluate them; then refit on all events if ``refit``."""
    make_trainer = partial(Trainer, folder, settings, init_weights=init_weights, callbacks=callbacks, stop=stop)
    stoppable = CallbackList([callbacks, StopCallback(stop)])
    with ExitStack() as closing:
        side_processes = _start_side_processes(task, closing)
        trainer = make_trainer(task, phase="fit", epochs=settings.training.epochs, evaluates=True, refits=refit)
        model, best = trainer.model, trainer.fit()
        load_weights(model, {k: v.to(task.network_device) for k, v in best.items()}, str(folder.path))
        model.pair_slope = None
        choose_counts_weight(model, task, settings.training.monitor, stoppable)
        folder.write_tensors("model.safetensors", model.state_dict(), vars(trainer.progress))
        metrics = _training_metrics(trainer)
        baselines = side_processes["baselines"].result if "baselines" in side_processes else None
        is_blend = isinstance(model, CordgtPlus) and model.counts is not None  # its weight is chosen after the epochs
        validation = None if is_blend or NEGATIVES[task.protocol.negatives].replaces_source else trainer.best_validation
        metrics |= evaluate_splits(model, task, stoppable, validation=validation, read_baselines=baselines)
        if task.protocol.activity:
            callbacks.on_phase_start("activity")
            is_fitted = "nodes" in side_processes
            nodes: Forecaster = side_processes["nodes"].result() if is_fitted else Forecaster.fit_nodes(task)
            forecaster = nodes.calibrate_pairs(task, model, stoppable)
            folder.write_activity(forecaster)
            metrics |= forecast_metrics(forecaster, task, model, stoppable)
    if refit and model.is_trainable:
        n_epochs = trainer.progress.best_epoch
        trainer = make_trainer(task.with_all_events(), phase="refit", epochs=n_epochs)
        copy_counts(model, trainer.model)
        weights = trainer.fit()
        folder.write_tensors("refit.safetensors", weights, vars(trainer.progress))
        metrics["refit"] = {"epochs": n_epochs, "events": task.stream.n_events}
    return metrics


def _start_side_processes(task: LinkTask, closing: ExitStack) -> dict[str, SideProcess]:
    """Start to compute baselines and activity, if that makes the job shorter. ``closing`` ends the processes."""
    if not can_use_side_process(task):
        return {}
    functions: dict[str, Callable[[LinkTask], Any]] = {"baselines": baseline_metrics}
    if task.protocol.activity:
        functions["nodes"] = Forecaster.fit_nodes
    started = {}
    with suppress(OSError):  # no further process may start: this one computes the rest
        for name, function in functions.items():
            started[name] = SideProcess(function, task)
            closing.callback(started[name].close)
    return started


def _training_metrics(trainer: Trainer) -> RunMetrics:
    """Return what ``metrics.json`` says about the training itself."""
    settings, task, model, progress = trainer.settings, trainer.task, trainer.model, trainer.progress
    metrics = RunMetrics(
        model=settings.model,
        data=task.stream.name,
        seed=settings.seed,
        objective=training_objective(settings, model),
        epochs=progress.epoch,
        best_epoch=progress.best_epoch,
        seconds_per_epoch=progress.train_seconds / progress.epoch if progress.epoch else 0.0,
        parameters=sum(p.numel() for p in model.parameters()),
        protocol=dict(vars(settings.protocol)),
        device=str(task.network_device),
        history_device=str(task.device),
    )
    if task.group.world_size > 1:
        metrics["processes"] = task.group.world_size
    if isinstance(model, CordgtPlus) and model.counts is not None:
        metrics["counts_weight"] = dict(
            zip(("same_source", "across_sources"), model.counts_weight.tolist(), strict=True)
        )
    return metrics
