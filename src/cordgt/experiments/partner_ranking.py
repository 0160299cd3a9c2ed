"""Rank the partners of sampled events among all known destinations: those never met, and all partners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cordgt.callbacks import Callback, CallbackList
from cordgt.events.arrays import evenly_spaced
from cordgt.inference.run import Run
from cordgt.runtime.signals import StopCallback, defer_signals
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import recommendation_lists
from cordgt.tasks.metrics import ranking_metrics
from cordgt.tasks.run_metrics import SPLITS

MAX_EVENTS = 2000  # ranked in each split and row, evenly spread
# The rows of each dataset: title, and the protocol of the ranking.
ROWS: dict[str, tuple[str, dict[str, str]]] = {
    "new": ("never met", {"ranking": "all", "filter": "seen", "positives": "new"}),
    "all": ("all partners", {"ranking": "all", "filter": "known", "positives": "all"}),
}


def measure_new_partners(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Return ``{row: {split: metrics}}`` of a run, on at most `MAX_EVENTS` events of each split and row."""
    with defer_signals() as stop:
        stoppable = CallbackList([callbacks, StopCallback(stop)])
        model, task = run.evaluation_task(ranking="all", filter="known")
        metrics: dict[str, Any] = {}
        for row, (title, protocol) in ROWS.items():
            metrics[row] = {}
            for split in SPLITS:
                own = sample_events(task.with_protocol(**protocol), split)
                n = len(own.evaluation_events(split, "transductive")[0])
                stoppable.on_stage_start(f"evaluating: {split}, {title}", n)
                lists = recommendation_lists(model, own, split, callbacks=stoppable)
                metrics[row][split] = ranking_metrics(lists.rank) | lists.metrics() | {"events": n}
                stop.raise_if_requested()
        return metrics


def sample_events(task: LinkTask, split: str, n: int = MAX_EVENTS) -> LinkTask:
    """Return the task with at most ``n`` of a split's evaluated events, evenly spread; always the same ones."""
    positions = task.evaluation_events(split, "transductive")[0]
    rows = evenly_spaced(len(positions), n)
    return replace(task, split=replace(task.split, **{split: positions[rows]}))
