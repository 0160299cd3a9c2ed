"""Baselines: trivial predictors on the same queries as a model. A useful model is above all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cordgt import models
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.tasks.metrics import LinkMetrics
from cordgt.tasks.run_metrics import SETTINGS, SPLITS

RECENT_SHARE = 0.15  # window of EdgeBank, as a share of the time elapsed since the first event
MAX_BIPARTITE_EVENTS = 300_000  # evaluated events; above, the baselines of bipartite streams are left out
RECENT_EVENTS = 1000  # window of recent popularity, in events of the stream
# To add a baseline, add an entry here: its name, a model without weights, and that model's settings.
BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "seen before": ("edgebank", {}),
    "seen recently": ("edgebank", {"window": RECENT_SHARE}),
    "popularity": ("popularity", {}),
}
# Only for bipartite streams, such as customers and products: what a recommender would do without a neural network.
BIPARTITE_BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "popular recently": ("popularity", {"window": RECENT_EVENTS}),
    "item-kNN": ("item_knn", {}),
    "ALS": ("als", {}),
}


def task_baselines(task: LinkTask) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the baselines of a task: those of every stream, and more if no destination is a source too.

    A large stream has the first ones only, because the others need about 0.1 ms for each evaluated event.
    """
    is_small = len(task.split.validation) + len(task.split.test) <= MAX_BIPARTITE_EVENTS
    return BASELINES | (BIPARTITE_BASELINES if is_small and is_bipartite(task) else {})


def is_bipartite(task: LinkTask) -> bool:
    """Return whether no node is both a source and a destination."""
    if "is_bipartite" not in task.cache:
        stream = task.stream
        is_source = np.zeros(stream.n_nodes, dtype=bool)
        is_source[stream.src] = True
        task.cache["is_bipartite"] = not is_source[stream.dst].any()
    return bool(task.cache["is_bipartite"])


def baseline_metrics(task: LinkTask, splits: Sequence[str] = SPLITS) -> dict[str, dict[str, dict[str, LinkMetrics]]]:
    """Return ``{baseline: {split: {setting: metrics}}}`` under the task's protocol."""
    own_task = task.with_protocol(activity=False)
    metrics = {}
    for name, (model, settings) in task_baselines(task).items():
        network = _make_network(model, settings, task)
        metrics[name] = {split: {s: evaluate(network, own_task, split, s) for s in SETTINGS} for split in splits}
    return metrics


def _make_network(model: str, settings: dict[str, Any], task: LinkTask) -> LinkModel:
    """Return the model of a baseline, fitted to the training events if it learns from them."""
    spec = models.find_model(model)
    network: Any = spec.network
    sizes = {"n_nodes": task.stream.n_nodes} if network.is_transductive else {}
    built: LinkModel = network(spec.settings(**settings), edge_dim=0, node_dim=0, **sizes).to(task.device)
    built.prepare(task.train_history, int(task.split.train[-1]) + 1)
    return built
