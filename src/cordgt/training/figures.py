"""Evaluate a trained model on every split, together with the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordgt.models.base import LinkModel
from cordgt.tasks.floors import baseline_metrics
from cordgt.tasks.link import LinkTask, evaluate
from cordgt.tasks.run_metrics import SETTINGS, SPLITS
from cordgt.training.watching import Silent, Watcher


def evaluate_splits(
    model: LinkModel, task: LinkTask, watcher: Watcher | None = None, splits: Sequence[str] = SPLITS
) -> dict[str, Any]:
    """``{"validation": {"transductive": …, "inductive": …}, "test": …, "baselines": …}`` for the given splits."""
    watcher = watcher or Silent()
    found: dict[str, Any] = {}
    for split in splits:
        found[split] = {}
        for setting in SETTINGS:
            watcher.evaluating(f"{split}, {setting}", len(task.asked(split, setting)[0]))
            found[split][setting] = evaluate(model, task, split, setting, progress=lambda k: watcher.step(k, None))
    found["baselines"] = baseline_metrics(task, splits)
    return found
