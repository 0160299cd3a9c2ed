"""Compare two runs on the same queries: the difference of each metric, with a confidence interval.

If the data of one run begin with those of the other, as after an append, both are evaluated on the longer data.

Both runs score the same events and the same negatives under one protocol. The interval comes from a paired bootstrap:
events are resampled with replacement, each with its negative and the scores of both runs. So variation between events
cancels. The interval does not cover variation between seeds; use `cordgt train --seeds` for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit

from cordgt.analysis.remarks import difference_remark
from cordgt.callbacks import Callbacks, as_callback
from cordgt.errors import DataError, RunError, SettingError, check_choice
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.tasks.link import LinkTask, split_stream
from cordgt.tasks.link_evaluation import compute_ranks, split_scores
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
    runs, remark = _extend_to_longer_data(a, b)
    evaluations = [run.evaluation_task(**(changes or {})) for run in runs]
    _check_comparable(*runs, *(task for _, task in evaluations))
    if remark:
        for run, (_, task) in zip((a, b), evaluations, strict=True):
            _check_not_trained_on(run, task, split)
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
        "remarks": [*remark, *(difference_remark(name, row) for name, row in metrics.items())],
    }


def _extend_to_longer_data(a: Run, b: Run) -> tuple[tuple[Run, Run], list[str]]:
    """Return both runs with the longer of their data, if it begins with the shorter one, and a remark about this.

    Otherwise the runs are unchanged. DataError if the model of the shorter data has no answer for later nodes.
    """
    short, long = (a, b) if a.original_stream.n_events <= b.original_stream.n_events else (b, a)
    n, n_all = short.original_stream.n_events, long.original_stream.n_events
    if n == n_all or not begins_with(long.original_stream, short.original_stream):
        return (a, b), []
    if short.evaluation_model().is_transductive:
        raise DataError(
            f"There is nothing to compare: {short.path} knows only the nodes of its training, not those of "
            f"{long.path}. Train both runs on the same data."
        )
    remark = (
        f"{short.path} was trained on the first {n:,} of the {n_all:,} events of {long.path}. Both are evaluated on "
        "the longer data."
    )
    grown = replace(short, original_stream=long.original_stream)
    return ((grown, b) if short is a else (a, grown)), [remark]


def begins_with(long: EventStream, short: EventStream) -> bool:
    """Return whether the first events of ``long`` are those of ``short``, with the same ids and features."""
    ids = long.ids.slice(0, short.n_nodes)
    if long.time.kind != short.time.kind or not ids.names.equals(short.ids.names):
        return False
    arrays: list[tuple[Any, Any]] = [(ids.side, short.ids.side)]
    for name in ("src", "dst", "t", "edge_x", "node_x"):
        n = short.n_nodes if name == "node_x" else short.n_events
        x, y = getattr(long, name), getattr(short, name)
        arrays.append((None if x is None else x[:n], y))
    return all((x is None) == (y is None) and (x is None or np.array_equal(x, y)) for x, y in arrays)


def _check_not_trained_on(run: Run, task: LinkTask, split: str) -> None:
    """Raise RunError if a run was trained on events of the split that it is evaluated on."""
    own = split_stream(run.original_stream, run.settings.protocol)
    last = own.validation if split == "test" else own.train  # validation selects the epoch
    events = getattr(task.split, split)
    if len(last) and len(events) and last[-1] >= events[0]:
        raise RunError(f"These runs cannot be compared: {run.path} was trained on {split} events of the other run.")


def parse_limits(option: str, assignments: list[str]) -> dict[str, float]:
    """Return the limits of ``METRIC=VALUE`` options. SettingError for an unknown metric or a value outside 0-1."""
    limits = {}
    for text in assignments:
        name, _, value = text.partition("=")
        check_choice(f"{option} {text}: metric", name, ("ap", "auc", "mrr"))
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if not 0 <= limits[name] <= 1:
            raise SettingError(f"{option} {text}: give a number from 0 to 1, for example {option} {name}=0.02.")
    return limits


def exceeded_limits(
    comparison: dict[str, Any], max_drop: Mapping[str, float], fail_below: Mapping[str, float]
) -> list[str]:
    """Return a sentence for each limit that B exceeds: a drop from A to B, or a value of B that is too low.

    SettingError if a metric was not compared.
    """
    rows, sentences = comparison["metrics"], []
    for name in (*max_drop, *fail_below):
        if name not in rows:
            raise SettingError(f"{name} was not compared. Rank candidates with --set ranking=100.")
    for name, limit in max_drop.items():
        if -rows[name]["difference"] > limit:
            drop, title = -100 * rows[name]["difference"], LINK_METRICS[name].title
            sentences.append(f"{title} dropped by {drop:.2f} points; the limit is {100 * limit:g}.")
    for name, limit in fail_below.items():
        if rows[name]["b"] < limit:
            value, title = 100 * rows[name]["b"], LINK_METRICS[name].title
            sentences.append(f"{title} of B is {value:.2f} %; the limit is {100 * limit:g} %.")
    return sentences


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
