"""The figures of a trained model: of every part of the split, beside what trivial predictors reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordgt.models.base import LinkModel
from cordgt.tasks.floors import floor_figures
from cordgt.tasks.link import PARTS, SETTINGS, LinkTask, evaluate
from cordgt.training.watching import Silent, Watcher


def all_figures(
    model: LinkModel, task: LinkTask, watcher: Watcher | None = None, parts: Sequence[str] = PARTS
) -> dict[str, Any]:
    """``{"validation": {"transductive": …, "inductive": …}, "test": …, "floors": …}``, of the parts asked for."""
    watcher = watcher or Silent()
    found: dict[str, Any] = {}
    for part in parts:
        found[part] = {}
        for setting in SETTINGS:
            positions = getattr(task.split, part)
            n = len(positions if setting == "transductive" else task.split.inductive(positions))
            watcher.evaluating(f"{part}, {setting}", n)
            found[part][setting] = evaluate(model, task, part, setting, progress=lambda k: watcher.step(k, None))
    found["floors"] = floor_figures(task, parts)
    return found
