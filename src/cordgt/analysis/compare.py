"""Compare two runs on the same queries: the difference of each metric, with a confidence interval.

Both runs score the same events and the same negatives under one protocol. The interval comes from a paired bootstrap:
events are resampled with replacement, each with its negative and the scores of both runs. So variation between events
cancels. The interval does not cover variation between seeds; use `cordgt train --seeds` for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from cordgt.analysis.remarks import difference_remark
from cordgt.callbacks import Callbacks, as_callback
from cordgt.errors import DataError, RunError
from cordgt.inference.run import Run
from cordgt.tasks.link import LinkTask, compute_ranks, split_scores
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.protocol import Protocol
from cordgt.training.run_folder import fingerprint, ids_fingerprint

MAX_WEIGHTS = 2_000_000  # event weights in memory at a time


def compare_runs(
    a: Run,
    b: Run,
    *,
    split: str = "test",
    setting: str = "transductive",
    bootstrap: int = 2000,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    callbacks: Callbacks = None,
) -> dict[str, Any]:
    """Return the metrics of both runs, the difference B minus A, and its 95 % confidence interval.

    ``changes`` are changes of the protocol, as in `Run.evaluate`. RunError if the runs differ in data or protocol.
    """
    callback = as_callback(callbacks)
    evaluations = [run.evaluation_task(**(changes or {})) for run in (a, b)]
    _check_comparable(a, b, *(task for _, task in evaluations))
    protocol = evaluations[0][1].protocol
    for run, (model, _) in zip((a, b), evaluations, strict=True):
        if setting == "inductive" and model.is_transductive:
            raise DataError(
                f"There is nothing to compare: {run.path} has no answer for nodes that training has not seen."
            )
    scores = [split_scores(model, task, split, setting, callback)[:2] for model, task in evaluations]
    n = len(scores[0][0])
    if n == 0:
        raise DataError(f"There is nothing to compare: no event of {split}, {setting}.")
    ranks = None
    if protocol.ranking != "none":
        ranks = [compute_ranks(model, task, split, setting, callbacks=callback) for model, task in evaluations]
    metrics = paired_bootstrap(scores, ranks, resamples=bootstrap, seed=seed)
    return {
        "a": {"run": str(a.path), "model": a.settings.model, "seed": a.settings.seed},
        "b": {"run": str(b.path), "model": b.settings.model, "seed": b.settings.seed},
        "data": a.metrics["data"],
        "split": split,
        "setting": setting,
        "events": n,
        "protocol": dict(vars(protocol)),
        "bootstrap": {"resamples": bootstrap, "seed": seed, "interval": 0.95},
        "metrics": metrics,
        "remarks": [difference_remark(name, row) for name, row in metrics.items()],
    }


def _check_comparable(a: Run, b: Run, task_a: LinkTask, task_b: LinkTask) -> None:
    if not has_same_data(task_a, task_b):
        data = " and ".join(f"{run.path} on {describe_data(task)}" for run, task in ((a, task_a), (b, task_b)))
        raise RunError(f"These runs cannot be compared: they use different data, {data}.")
    differing = protocol_differences(task_a.protocol, task_b.protocol)
    if differing:
        raise RunError(
            f"These runs cannot be compared: their protocols differ in {', '.join(differing)}. Use --set to give both "
            "the same evaluation settings; train again where other settings differ."
        )


def has_same_data(a: LinkTask, b: LinkTask) -> bool:
    """Return whether two tasks have the same events and the same ids."""
    return all(hash_of(a.stream) == hash_of(b.stream) for hash_of in (fingerprint, ids_fingerprint))


def protocol_differences(a: Protocol, b: Protocol) -> list[str]:
    """Settings in which two protocols differ, such as ``eval_batch_size (30 and 200)``."""
    return [f"{key} ({value} and {vars(b)[key]})" for key, value in vars(a).items() if vars(b)[key] != value]


def describe_data(task: LinkTask) -> str:
    """Name and size of a task's data: ``uci (59,835 events)``."""
    return f"{task.stream.name or 'events'} ({task.stream.n_events:,} events)"


# -------------------- the bootstrap


def paired_bootstrap(
    scores: list[tuple[np.ndarray, np.ndarray]],
    ranks: list[np.ndarray] | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """``{metric: {a, b, difference, low, high}}``, 0-1: the difference is B minus A, low and high its 95 % interval.

    ``scores`` holds positive and negative scores, (n,) each, of A and of B; ``ranks`` holds (n,) of A and of B; all in
    the same order of events. The interval spans the percentiles 2.5 and 97.5 over resamples of the events, the same
    resamples for A and B.
    """
    n = len(scores[0][0])
    curves = [SortedScores.from_scores(*x) for x in scores]
    reciprocal_ranks = None if ranks is None else [1.0 / x for x in ranks]
    observed = _weighted_metrics(curves, reciprocal_ranks, np.ones((1, n)))
    rng = np.random.default_rng(seed)
    step = max(1, MAX_WEIGHTS // n)
    resampled = [
        _weighted_metrics(curves, reciprocal_ranks, _resample_counts(rng, n, min(step, resamples - done)))
        for done in range(0, resamples, step)
    ]
    metrics = {}
    for name, (of_a, of_b) in observed.items():
        differences = np.concatenate([some[name][1] - some[name][0] for some in resampled])
        low, high = np.quantile(differences, [0.025, 0.975])
        a, b = float(of_a[0]), float(of_b[0])
        metrics[name] = {"a": a, "b": b, "difference": b - a, "low": float(low), "high": float(high)}
    return metrics


def _resample_counts(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    """(rows, n): how often each event occurs in n draws with replacement."""
    draws = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(draws.reshape(-1), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _weighted_metrics(
    curves: list[SortedScores], reciprocal_ranks: list[np.ndarray] | None, weight: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each metric of A and of B, (R,) each, for event weights (R, n)."""
    (ap_a, auc_a), (ap_b, auc_b) = (curve.ap_and_auc(weight) for curve in curves)
    metrics = {"ap": (ap_a, ap_b), "auc": (auc_a, auc_b)}
    if reciprocal_ranks is not None:
        total = weight.sum(axis=1)
        metrics["mrr"] = (weight @ reciprocal_ranks[0] / total, weight @ reciprocal_ranks[1] / total)
    return metrics


@dataclass(frozen=True)
class SortedScores:
    """Scores sorted once, so that AP and AUC under any event weights are sums over them."""

    event: np.ndarray  # (2n,) event of each score, best score first
    is_true: np.ndarray  # (2n,) True: score of the event, False: score of its negative
    is_last: np.ndarray  # (2n,) True: the next score is lower

    @classmethod
    def from_scores(cls, positive: np.ndarray, negative: np.ndarray) -> SortedScores:
        scores = np.concatenate([positive, negative])
        order = np.argsort(-scores, kind="stable")
        is_last = np.append(np.diff(scores[order]) != 0, True)
        return cls(order % len(positive), order < len(positive), is_last)

    def ap_and_auc(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """AP and AUC, (R,) each, if event i counts ``weight[:, i]`` times. Weights (R, n); no row is all 0."""
        ap, auc = np.empty(len(weight)), np.empty(len(weight))
        _fill_ap_and_auc(self.event, self.is_true, self.is_last, weight, ap, auc)
        return ap, auc


@njit(cache=True)
def _fill_ap_and_auc(event, is_true, is_last, weight, ap, auc):  # type: ignore[no-untyped-def]
    """Lower the threshold score by score (ties together), and sum up precision and correctly ordered pairs."""
    for r in range(len(weight)):
        n = weight[r].sum()  # number of true events, equal to that of negatives
        hits = false = new_hits = new_false = 0.0
        precision = above = 0.0
        for k in range(len(event)):
            w = weight[r, event[k]]
            if is_true[k]:
                new_hits += w
            else:
                new_false += w
            if is_last[k]:
                hits += new_hits
                false += new_false
                if new_hits > 0:
                    precision += new_hits * hits / (hits + false)
                    above += new_hits * (n - false + new_false / 2)
                new_hits = new_false = 0.0
        ap[r], auc[r] = precision / n, above / n / n


# -------------------- the table


def table_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The result of `compare_runs` in percent, one row per metric."""
    return [
        {
            "metric": LINK_METRICS[name].title,
            "A": f"{100 * row['a']:.2f}",
            "B": f"{100 * row['b']:.2f}",
            "B - A": f"{100 * row['difference']:+.2f}",
            "95 % interval": f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}",
        }
        for name, row in comparison["metrics"].items()
    ]
