"""Evaluate a trained model on every split, together with the baselines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.models.base import LinkModel
from cordgt.tasks.baselines import baseline_metrics
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.tasks.metrics import LINK_METRICS, LinkMetrics
from cordgt.tasks.recommendation_metrics import add_lift
from cordgt.tasks.run_metrics import SETTINGS, SPLITS
from cordgt.training.settings import Settings


def evaluate_splits(
    model: LinkModel,
    task: LinkTask,
    callbacks: Callback = NO_CALLBACK,
    splits: Sequence[str] = SPLITS,
    *,
    validation: LinkMetrics | None = None,
    read_baselines: Callable[[], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return ``{"validation": {"transductive": …, "inductive": …}, "test": …, "baselines": …}``.

    ``validation``: the metrics of the same weights on all validation events, if they are known. ``read_baselines``
    returns the metrics of the baselines on both splits, if they are computed elsewhere.
    """
    metrics: dict[str, Any] = {}
    for split in splits:
        metrics[split] = {}
        for setting in SETTINGS:
            if (split, setting) == ("validation", "transductive") and validation is not None:
                metrics[split][setting] = copy.deepcopy(validation)
                continue
            callbacks.on_stage_start(f"evaluating: {split}, {setting}", len(task.evaluation_events(split, setting)[0]))
            metrics[split][setting] = evaluate(model, task, split, setting, callbacks=callbacks)
    callbacks.on_phase_start("baselines")
    metrics["baselines"] = baseline_metrics(task, splits) if read_baselines is None else read_baselines()
    for split in splits:
        for setting in SETTINGS:
            popularity = metrics["baselines"]["popularity"][split][setting]
            for predictor in (metrics, *metrics["baselines"].values()):
                add_lift(predictor[split][setting], popularity)
    return metrics


def training_objective(settings: Settings, model: LinkModel) -> str:
    """Return what a run is trained for: "ranking" (its loss or its monitor ranks candidates) or "pairs"."""
    monitors_ranks = LINK_METRICS.find(settings.training.monitor).needs_ranks
    return "ranking" if model.learns_ranking or monitors_ranks else "pairs"
