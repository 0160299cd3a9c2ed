"""Two runs on the same queries: how far apart they are, and how sure that is.

Both are asked anew, under one protocol, about the same events and the same negatives. The interval comes from drawing
the events again with replacement, each with its negative and both runs' scores: what differs between the events
cancels, what differs between the runs stays. It says nothing of other seeds; `cordgt train --seeds` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from cordgt.api import Run
from cordgt.errors import DataError, RunError
from cordgt.run import fingerprint, ids_fingerprint
from cordgt.tasks.link import LinkTask, rank, split_scores
from cordgt.tasks.protocol import Protocol

FIGURES = {"ap": "AP", "auc": "AUC", "mrr": "MRR"}
AT_ONCE = 2_000_000  # weights of events held at a time


def compare_runs(
    a: Run,
    b: Run,
    *,
    part: str = "test",
    setting: str = "transductive",
    bootstrap: int = 2000,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Figures of both runs, B's minus A's, and its 95 % interval; ``changes`` of the protocol as in `Run.evaluate`.

    RunError where the two were not measured on the same data, or not under the same protocol.
    """
    found = [run.measured(**(changes or {})) for run in (a, b)]
    _check_same(a, b, *(task for _, task in found))
    protocol = found[0][1].protocol
    silent = [str(run.path) for run, (model, _) in zip((a, b), found, strict=True) if model.is_transductive]
    if setting == "inductive" and silent:
        raise DataError(f"There is nothing to compare: {silent[0]} has no answer for nodes that training has not seen.")
    scores = [split_scores(model, task, part, setting, progress)[:2] for model, task in found]
    n = len(scores[0][0])
    if n == 0:
        raise DataError(f"There is nothing to compare: no event of {part}, {setting}.")
    ranks = None
    if protocol.ranking != "none":
        ranks = [rank(model, task, part, setting, progress=progress) for model, task in found]
    figures = paired(scores, ranks, resamples=bootstrap, seed=seed)
    return {
        "a": {"run": str(a.path), "model": a.settings.model, "seed": a.settings.seed},
        "b": {"run": str(b.path), "model": b.settings.model, "seed": b.settings.seed},
        "data": a.metrics["data"],
        "part": part,
        "setting": setting,
        "events": n,
        "protocol": dict(vars(protocol)),
        "bootstrap": {"resamples": bootstrap, "seed": seed, "interval": 0.95},
        "figures": figures,
        "says": [sentence(name, row) for name, row in figures.items()],
    }


def _check_same(a: Run, b: Run, task_a: LinkTask, task_b: LinkTask) -> None:
    if not on_same_data(task_a, task_b):
        told = " and ".join(f"{run.path} on {data_words(task)}" for run, task in ((a, task_a), (b, task_b)))
        raise RunError(f"These runs cannot be compared, they were measured on other data: {told}.")
    differing = protocol_differences(task_a.protocol, task_b.protocol)
    if differing:
        raise RunError(
            f"These runs cannot be compared, their protocols differ in {', '.join(differing)}. What only concerns the "
            "evaluation can be set for both with --set; anything else takes another training."
        )


def on_same_data(a: LinkTask, b: LinkTask) -> bool:
    """Whether two tasks are of the same events under the same ids."""
    return all(mark(a.stream) == mark(b.stream) for mark in (fingerprint, ids_fingerprint))


def protocol_differences(a: Protocol, b: Protocol) -> list[str]:
    """What two protocols have otherwise, as in ``eval_batch_size (30 and 200)``; empty where they are the same."""
    theirs = vars(b)
    return [f"{key} ({value} and {theirs[key]})" for key, value in vars(a).items() if theirs[key] != value]


def data_words(task: LinkTask) -> str:
    """What a task is of, for people: ``uci (59,835 events)``."""
    return f"{task.stream.name or 'events'} ({task.stream.n_events:,} events)"


# -------------------- the bootstrap


def paired(
    scores: list[tuple[np.ndarray, np.ndarray]],
    ranks: list[np.ndarray] | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """``{figure: {a, b, difference, low, high}}``, 0–1: the difference is B's minus A's, with its 95 % interval.

    Shapes: two times positive and negative scores (n,), and two times ranks (n,), in one order of events. The interval
    is that of the percentiles 2.5 and 97.5 over resamples of the events, the same ones for A and B.
    """
    curves = [Curve.of(*x) for x in scores]
    inverse = None if ranks is None else [1.0 / x for x in ranks]
    n = len(scores[0][0])
    whole = _figures(curves, inverse, np.ones((1, n)))
    rng = np.random.default_rng(seed)
    step = max(1, AT_ONCE // n)
    parts = [
        _figures(curves, inverse, _resamples(rng, n, min(step, resamples - done))) for done in range(0, resamples, step)
    ]
    found = {}
    for name, (one, other) in whole.items():
        differences = np.concatenate([part[name][1] - part[name][0] for part in parts])
        low, high = np.quantile(differences, [0.025, 0.975])
        first, second = float(one[0]), float(other[0])
        found[name] = {"a": first, "b": second, "difference": second - first, "low": float(low), "high": float(high)}
    return found


def _resamples(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    """(rows, n): how often each event was drawn in n draws with replacement."""
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.reshape(-1), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _figures(
    curves: list[Curve], inverse: list[np.ndarray] | None, weight: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each figure of A and of B for every row of weights."""
    (ap_a, auc_a), (ap_b, auc_b) = (curve.ap_and_auc(weight) for curve in curves)
    found = {"ap": (ap_a, ap_b), "auc": (auc_a, auc_b)}
    if inverse is not None:
        total = weight.sum(axis=1)
        found["mrr"] = (weight @ inverse[0] / total, weight @ inverse[1] / total)
    return found


@dataclass(frozen=True)
class Curve:
    """Scores sorted once, so that AP and AUC for other weights of the events are sums along them."""

    event: np.ndarray  # (2n,) whose score stands there, best score first
    true: np.ndarray  # (2n,) True: that of the event, False: that of its negative
    last: np.ndarray  # (2n,) True: the next score is lower

    @classmethod
    def of(cls, positive: np.ndarray, negative: np.ndarray) -> Curve:
        scores = np.concatenate([positive, negative])
        order = np.argsort(-scores, kind="stable")
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = np.diff(scores[order]) != 0
        return cls(order % len(positive), order < len(positive), last)

    def ap_and_auc(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """AP and AUC where event i counts ``weight[:, i]`` times. Shapes: (R, n), no row all 0; (R,) and (R,)."""
        ap, auc = np.empty(len(weight)), np.empty(len(weight))
        _walk(self.event, self.true, self.last, weight, ap, auc)
        return ap, auc


@njit(cache=True)
def _walk(event, true, last, weight, ap, auc):  # type: ignore[no-untyped-def]
    """Down the scores, tie by tie: what a threshold at each lets through."""
    for r in range(len(weight)):
        n = weight[r].sum()  # of true events, and as many negatives
        hits = false = new_hits = new_false = 0.0
        precision = above = 0.0
        for k in range(len(event)):
            w = weight[r, event[k]]
            if true[k]:
                new_hits += w
            else:
                new_false += w
            if last[k]:
                hits += new_hits
                false += new_false
                if new_hits > 0:
                    precision += new_hits * hits / (hits + false)
                    above += new_hits * (n - false + new_false / 2)
                new_hits = new_false = 0.0
        ap[r], auc[r] = precision / n, above / n / n


# -------------------- in words


def sentence(name: str, row: dict[str, float]) -> str:
    """Which of the two is better, by how many points, if that can be told."""
    title = FIGURES[name]
    difference, low, high = (100 * row[key] for key in ("difference", "low", "high"))
    if low > 0:
        return f"B is better on {title}: +{difference:.2f} points ({low:.2f} to {high:.2f})."
    if high < 0:
        return f"A is better on {title}: +{-difference:.2f} points ({-high:.2f} to {-low:.2f})."
    return f"No difference in {title} can be told: {difference:+.2f} points ({low:+.2f} to {high:+.2f})."


def table_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparison in percent, a row a figure."""
    return [
        {
            "figure": FIGURES[name],
            "A": f"{100 * row['a']:.2f}",
            "B": f"{100 * row['b']:.2f}",
            "B - A": f"{100 * row['difference']:+.2f}",
            "95 % interval": f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}",
        }
        for name, row in found["figures"].items()
    ]
