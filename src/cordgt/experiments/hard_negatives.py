"""Evaluate a trained run again: with hard negatives, and by ranking.

The evaluation task is built once; only the negatives and candidates change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cordgt.callbacks import Callback, CallbackList
from cordgt.experiments.tgb_evaluator import find_tgb_evaluator
from cordgt.inference.run import Run
from cordgt.models.base import LinkModel
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.runtime.signals import StopCallback, StopRequest, defer_signals
from cordgt.tasks.link_evaluation import candidate_scores, evaluate
from cordgt.tasks.metrics import ranking_metrics
from cordgt.tasks.negatives import NEGATIVES
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.tasks.ties import mean_ranks
from cordgt.training.blend import choose_counts_weight
from cordgt.training.evaluation import evaluate_splits

EVAL_BATCH_SIZE = 200  # for means over batches, as other papers report them
RANKING_CANDIDATES = "20"  # few, because every model and seed ranks every test event
HARD_NEGATIVES = ("historical", "inductive")
ANCHOR_NEGATIVES = ("random", "historical-pairs", "inductive-pairs")  # those of published tables


def measure_hard_negatives(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Return test metrics with random negatives and ranks, then with hard negatives, each with its baselines.

    ``{"test": {setting: metrics}, "baselines": {baseline: {setting: metrics}}}`` for random negatives, and the same
    dictionary under the name of each kind of hard negatives.
    """
    with _stoppable(callbacks) as (stoppable, stop):
        model, task = run.evaluation_task(negatives="random", eval_batch_size=EVAL_BATCH_SIZE, ranking="none")

        def compute_metrics(**changes: str) -> dict[str, Any]:
            metrics = evaluate_splits(model, task.with_protocol(**changes), stoppable, ("test",))
            stop.raise_if_requested()  # the evaluation of baselines reports no progress
            baselines = {name: splits["test"] for name, splits in metrics["baselines"].items()}
            return {"test": metrics["test"], "baselines": baselines}

        random = compute_metrics(ranking=RANKING_CANDIDATES)
        return random | {kind: compute_metrics(negatives=kind) for kind in HARD_NEGATIVES}


def measure_anchors(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Return test metrics with each kind of `ANCHOR_NEGATIVES` and `HARD_NEGATIVES`, as means over batches of 200.

    ``{kind: {"test": {setting: metrics}, "without_activity": {setting: metrics}}}``. Where the source is given,
    activity has no part in it. For CorDGT+ also ``counts_alone``: the `Counts` network in it, without activity; and
    ``counts_weight``, with and without activity.
    """
    with _stoppable(callbacks) as (stoppable, stop):
        model, task = run.evaluation_task(eval_batch_size=EVAL_BATCH_SIZE, ranking="none")
        counts = model.counts if isinstance(model, CordgtPlus) else None
        metrics: dict[str, Any] = {kind: {} for kind in (*ANCHOR_NEGATIVES, *HARD_NEGATIVES)}
        weights = {}

        def add(key: str, network: LinkModel, kind: str) -> None:
            stoppable.on_stage_start(f"evaluating: test, {kind} negatives", None)
            changed = task.with_protocol(negatives=kind)
            metrics[kind][key] = {s: evaluate(network, changed, "test", s, callbacks=stoppable) for s in SETTINGS}
            stop.raise_if_requested()

        for key, activity in (("test", True), ("without_activity", False)):
            task = task.with_protocol(activity=activity)
            if not activity:  # the weight that a run with `activity=false` chooses
                own_batches = task.with_protocol(eval_batch_size=run.settings.protocol.eval_batch_size)
                choose_counts_weight(model, own_batches, run.settings.training.monitor, stoppable)
            if isinstance(model, CordgtPlus) and counts is not None:
                weights[key] = model.counts_weight.tolist()
            for kind in metrics:
                if NEGATIVES[kind].replaces_source or activity:
                    add(key, model, kind)
        if counts is not None:
            for kind in metrics:
                add("counts_alone", counts, kind)
            metrics["counts_weight"] = weights
        return metrics | {"test": metrics["random"]["test"]}


def measure_ranking(run: Run, callbacks: Callback) -> dict[str, Any]:
    """Return test metrics with every true destination ranked among all others, and the run's validation metrics.

    Only the transductive setting, which has all events: leaderboards do not separate new nodes. The evaluator of py-tgb
    scores the same candidates, if it is installed: `mrr_py_tgb` and `hits@10_py_tgb`.
    """
    with _stoppable(callbacks) as (stoppable, stop):
        model, task = run.evaluation_task(ranking="all")
        stoppable.on_stage_start(
            "evaluating: test, ranked among all", 2 * len(task.evaluation_events("test", "transductive")[0])
        )
        metrics = evaluate(model, task.with_protocol(ranking="none"), "test", "transductive", callbacks=stoppable)
        ranks, evaluator = [np.empty(0)], find_tgb_evaluator()
        for scores in candidate_scores(model, task, "test", "transductive", callbacks=stoppable):
            ranks.append(mean_ranks(*scores, model.score_tolerance))
            if evaluator is not None:
                evaluator.add(scores)
        stop.raise_if_requested()
        metrics |= ranking_metrics(np.concatenate(ranks)) | ({} if evaluator is None else evaluator.metrics())
        return {"validation": run.metrics["validation"], "test": {"transductive": metrics}}


@contextmanager
def _stoppable(callbacks: Callback) -> Iterator[tuple[Callback, StopRequest]]:
    """Yield callbacks that stop an evaluation at a signal or the time limit. The trained run stays."""
    with defer_signals() as stop:
        yield CallbackList([callbacks, StopCallback(stop)]), stop
