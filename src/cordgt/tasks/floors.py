"""Floors: what trivial predictors reach on the same queries. A model below one of them has learnt nothing of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordgt import models
from cordgt.tasks.link import PARTS, SETTINGS, LinkTask, evaluate
from cordgt.tasks.metrics import LinkMetrics

LATELY = 0.15  # of the time gone by: how long the windowed EdgeBank remembers
FLOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "seen before": ("edgebank", {}),
    "seen lately": ("edgebank", {"window": LATELY}),
    "popularity": ("popularity", {}),
}


def floor_figures(task: LinkTask, parts: Sequence[str] = PARTS) -> dict[str, dict[str, dict[str, LinkMetrics]]]:
    """``{floor: {part: {setting: figures}}}`` under the task's protocol."""
    return {name: {part: {s: _floor(name, task, part, s) for s in SETTINGS} for part in parts} for name in FLOORS}


def _floor(name: str, task: LinkTask, part: str, setting: str) -> LinkMetrics:
    model, settings = FLOORS[name]
    kind = models.find(model)
    rule = kind.network(kind.settings(**settings), edge_dim=0, node_dim=0)
    return evaluate(rule, task, part, setting)
