"""Baselines: trivial predictors on the same queries as a model. A useful model is above all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordgt import models
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.tasks.metrics import LinkMetrics
from cordgt.tasks.run_metrics import SETTINGS, SPLITS

RECENT_SHARE = 0.15  # window of EdgeBank, as a share of the time elapsed since the first event
# To add a baseline, add an entry here: its name, a model without weights, and that model's settings.
BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "seen before": ("edgebank", {}),
    "seen recently": ("edgebank", {"window": RECENT_SHARE}),
    "popularity": ("popularity", {}),
}


def baseline_metrics(task: LinkTask, splits: Sequence[str] = SPLITS) -> dict[str, dict[str, dict[str, LinkMetrics]]]:
    """Return ``{baseline: {split: {setting: metrics}}}`` under the task's protocol."""
    return {
        name: {split: {s: _evaluate_baseline(name, task, split, s) for s in SETTINGS} for split in splits}
        for name in BASELINES
    }


def _evaluate_baseline(name: str, task: LinkTask, split: str, setting: str) -> LinkMetrics:
    model, settings = BASELINES[name]
    spec = models.find_model(model)
    network = spec.network(spec.settings(**settings), edge_dim=0, node_dim=0)
    return evaluate(network, task.with_protocol(activity=False), split, setting)
