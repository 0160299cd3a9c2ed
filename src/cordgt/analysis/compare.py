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
from cordgt.tasks.metrics import LINK_METRICS, SplitScores, compute_metric, summary_metrics
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
    metrics = paired_bootstrap(scores, ranks, resamples=bootstrap, seed=seed, batch_size=protocol.eval_batch_size)
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
    """Return the limits of ``METRIC=VALUE`` options. SettingError for an unknown metric, or a value it cannot have."""
    limits = {}
    for text in assignments:
        name, _, value = text.partition("=")
        check_choice(f"{option} {text}: metric", name, summary_metrics(ranks=True))
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = np.nan
        is_share = LINK_METRICS[name].is_share
        if not (0 <= limits[name] <= 1 if is_share else np.isfinite(limits[name])):
            allowed = "a number from 0 to 1" if is_share else "a number"
            raise SettingError(f"{option} {text}: give {allowed}, for example {option} {name}=0.02.")
    return limits


def exceeded_limits(
    comparison: dict[str, Any], max_drop: Mapping[str, float], fail_below: Mapping[str, float]
) -> list[str]:
    """Return a sentence for each limit that B exceeds: worse than A by more, or a value of B that is too bad.

    SettingError if a metric was not compared.
    """
    rows, sentences = comparison["metrics"], []
    for name in (*max_drop, *fail_below):
        if name not in rows:
            raise SettingError(f"{name} was not compared. Rank candidates with --set ranking=100.")
    for name, limit in max_drop.items():
        metric, rise = LINK_METRICS[name], rows[name]["difference"]
        drop = -rise if metric.higher_is_better else rise
        if drop > limit:
            verb = "dropped" if metric.higher_is_better else "rose"
            sentences.append(
                f"{metric.title} {verb} by {metric.format(drop)}{metric.points}; the limit is {metric.scale * limit:g}."
            )
    for name, limit in fail_below.items():
        metric, value = LINK_METRICS[name], rows[name]["b"]
        if metric.is_better(limit, value):
            shown = f"{metric.format(value)}{metric.unit}; the limit is {metric.scale * limit:g}{metric.unit}"
            sentences.append(f"{metric.title} of B is {shown}.")
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
    batch_size: int = 30,
) -> dict[str, dict[str, float]]:
    """``{metric: {a, b, difference, low, high}}``: the difference is B minus A, low and high its 95 % interval.

    ``scores`` holds positive and negative scores, (n,) each, of A and of B; ``ranks`` holds (n,) of A and of B; all in
    the same order of events. The interval spans the percentiles 2.5 and 97.5 over resamples of the events, the same
    resamples for A and B. A registered metric is computed on the scores of each resample; ``batch_size`` is for it.
    """
    n = len(scores[0][0])
    both_ranks = [np.empty(0)] * 2 if ranks is None else ranks
    runs = [
        SplitScores(positive, negative, batch_size, own)
        for (positive, negative), own in zip(scores, both_ranks, strict=True)
    ]
    compute = _ResampledMetrics(runs, summary_metrics(ranks=ranks is not None))
    observed = compute(np.ones((1, n)))
    rng = np.random.default_rng(seed)
    step = max(1, MAX_WEIGHTS // n)
    resampled = [compute(_resample_counts(rng, n, min(step, resamples - done))) for done in range(0, resamples, step)]
    metrics = {}
    for name, (of_a, of_b) in observed.items():
        differences = np.concatenate([some[name][1] - some[name][0] for some in resampled])
        a, b = float(of_a[0]), float(of_b[0])
        if not np.isfinite([a, b]).all():
            continue  # not defined for one of the runs
        differences = differences[np.isfinite(differences)]
        low, high = np.quantile(differences, [0.025, 0.975]) if len(differences) else (-np.inf, np.inf)
        metrics[name] = {"a": a, "b": b, "difference": b - a, "low": float(low), "high": float(high)}
    return metrics


def _resample_counts(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    """(rows, n): how often each event occurs in n draws with replacement."""
    draws = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(draws.reshape(-1), minlength=rows * n).reshape(rows, n).astype(np.float64)


class _ResampledMetrics:
    """Metrics of A and of B under event weights: AP, AUC and MRR as weighted sums, others on the resampled scores."""

    def __init__(self, runs: list[SplitScores], names: list[str]) -> None:
        self.runs, self.names = runs, names
        self.curves = [SortedScores.from_scores(run.positive, run.negative) for run in runs]

    def __call__(self, weight: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Each metric of A and of B, (R,) each, for event weights (R, n)."""
        (ap_a, auc_a), (ap_b, auc_b) = (curve.ap_and_auc(weight) for curve in self.curves)
        found = {"ap": (ap_a, ap_b), "auc": (auc_a, auc_b)}
        for name in self.names:
            if name == "mrr":
                a, b = (weight @ (1.0 / run.ranks) / weight.sum(axis=1) for run in self.runs)
                found[name] = a, b
            elif name not in found:
                samples = ([run.resample(count) for run in self.runs] for count in weight)
                values = [[compute_metric(name, one) for one in pair] for pair in samples]
                a, b = np.array(values, dtype=np.float64).T  # None becomes NaN
                found[name] = a, b
        return found


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
    """The result of `compare_runs`, one row per metric; shares in percent."""
    rows = []
    for name, row in comparison["metrics"].items():
        metric = LINK_METRICS[name]
        low, high = (metric.format(row[key], "+") for key in ("low", "high"))
        rows.append(
            {
                "metric": metric.title,
                "A": metric.format(row["a"]),
                "B": metric.format(row["b"]),
                "B - A": metric.format(row["difference"], "+"),
                "95 % interval": f"{low} to {high}",
            }
        )
    return rows
