"""Metrics of link prediction: average precision, area under the ROC curve, mean reciprocal rank, hits.

AP and AUC equal those of scikit-learn: ties count fairly and the order of the scores does not matter. They are computed
for many batches at once. Near-equal scores are made equal before (`cordgt.tasks.ties`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

HITS = (1, 3, 10)
# Metrics of one split and setting, 0-1; None if they are not defined. Besides the names of `LINK_METRICS`:
# "events", the number of true events; "random_negatives", how many negatives are random because the source has none of
# the requested kind (absent with random negatives).
LinkMetrics = dict[str, float | None]


@dataclass(frozen=True)
class SplitScores:
    """Scores of one split, in stream order. A metric is a function of this."""

    positive: np.ndarray = field(default_factory=lambda: np.empty(0))  # (n,) scores of the true events
    negative: np.ndarray = field(default_factory=lambda: np.empty(0))  # (n,) scores of one negative per event
    batch_size: int = 30  # of the means over batches; batches are counted from the first event, the last may be shorter
    ranks: np.ndarray = field(default_factory=lambda: np.empty(0))  # (n,) rank of each true destination, 1 is best

    @cached_property
    def ap_auc(self) -> tuple[float, float]:
        """AP and AUC over the whole split."""
        ap, auc = ap_and_auc(self.positive[None], self.negative[None])
        return float(ap[0]), float(auc[0])

    @cached_property
    def batch_ap_auc(self) -> tuple[float, float]:
        """AP and AUC, each as the mean over batches."""
        size = self.batch_size
        full = len(self.positive) - len(self.positive) % size  # full batches are rows of one array
        rows = [(x[:full].reshape(-1, size), x[full:].reshape(1, -1)) for x in (self.positive, self.negative)]
        batches = [ap_and_auc(p, q) for p, q in zip(*rows, strict=True) if p.size]
        ap, auc = (np.concatenate(values) for values in zip(*batches, strict=True))
        return float(ap.mean()), float(auc.mean())


class LinkMetric(NamedTuple):
    """One metric of link prediction."""

    title: str  # the column of a table; {batch} is replaced by the protocol's
    description: str  # what it is, after "TITLE: "
    compute: Callable[[SplitScores], float]  # called with at least one event
    needs_ranks: bool = False  # True: computed only where the protocol ranks candidates
    checks_baselines: bool = False  # True: a model below a baseline in it is reported
    in_tables: bool = True


# To add a metric, add an entry here. Evaluation, metrics.json, the tables and the report take it from this dictionary.
LINK_METRICS: dict[str, LinkMetric] = {
    "ap": LinkMetric(
        "AP", "average precision over the whole split", lambda scores: scores.ap_auc[0], checks_baselines=True
    ),
    "auc": LinkMetric(
        "AUC", "area under the ROC curve over the whole split", lambda scores: scores.ap_auc[1], checks_baselines=True
    ),
    "ap_batch": LinkMetric(
        "AP/{batch}",
        "mean of AP over batches of {batch} events, as papers report it",
        lambda scores: scores.batch_ap_auc[0],
    ),
    "auc_batch": LinkMetric(
        "AUC/{batch}",
        "mean of AUC over batches of {batch} events, as papers report it",
        lambda scores: scores.batch_ap_auc[1],
    ),
    "mrr": LinkMetric(
        "MRR",
        "mean reciprocal rank of the true destination",
        lambda scores: float((1.0 / scores.ranks).mean()),
        needs_ranks=True,
        checks_baselines=True,
    ),
    **{
        f"hits@{k}": LinkMetric(
            f"hits@{k}",
            f"share of true destinations at rank {k} or better",
            lambda scores, k=k: float((scores.ranks <= k).mean()),  # type: ignore[misc]
            needs_ranks=True,
            in_tables=k == 10,
        )
        for k in HITS
    },
}


def link_metrics(positive: np.ndarray, negative: np.ndarray, batch_size: int = 30) -> LinkMetrics:
    """Return the metrics of scores of true events and of one negative for each, in stream order. Shapes: (n,), (n,).

    All are None if n is 0.
    """
    n = len(positive)
    return _compute(SplitScores(positive, negative, batch_size), n, needs_ranks=False) | {"events": n}


def ranking_metrics(ranks: np.ndarray) -> LinkMetrics:
    """Return ``mrr`` and ``hits@k`` of ranks (n,), 0-1; None if n is 0."""
    return _compute(SplitScores(ranks=ranks), len(ranks), needs_ranks=True)


def _compute(scores: SplitScores, n: int, *, needs_ranks: bool) -> LinkMetrics:
    metrics = {name: metric for name, metric in LINK_METRICS.items() if metric.needs_ranks == needs_ranks}
    return {name: metric.compute(scores) if n else None for name, metric in metrics.items()}


def is_constant(metrics: Mapping[str, Any]) -> bool:
    """Return True if every pair of a split has the same score: AP and AUC are then exactly one half.

    A split of a handful of pairs can reach that by chance. False if the metrics are not defined.
    """
    return metrics["ap"] == 0.5 and metrics["auc"] == 0.5


def ap_and_auc(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return AP and AUC of each row, (R,) and (R,). Scores: (R, P) and (R, N), P and N at least 1."""
    scores = np.concatenate([positive, negative], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=1)
    is_true = order < positive.shape[1]
    places = np.arange(scores.shape[1])
    last_of_tie = np.ones_like(is_true)
    last_of_tie[:, :-1] = ranked[:, 1:] != ranked[:, :-1]
    # the last place of each tie: a threshold at this score accepts everything up to there
    end = np.minimum.accumulate(np.where(last_of_tie, places, scores.shape[1])[:, ::-1], axis=1)[:, ::-1]
    n_true_through = np.take_along_axis(np.cumsum(is_true, axis=1), end, axis=1)
    ap = np.where(is_true, n_true_through / (end + 1), 0.0).sum(axis=1) / positive.shape[1]
    first_of_tie = np.ones_like(is_true)
    first_of_tie[:, 1:] = last_of_tie[:, :-1]
    start = np.maximum.accumulate(np.where(first_of_tie, places, 0), axis=1)
    rank_from_below = scores.shape[1] - (start + end) / 2  # 1 = lowest score, ties share their mean rank
    n_pos, n_neg = positive.shape[1], negative.shape[1]
    above = np.where(is_true, rank_from_below, 0.0).sum(axis=1) - n_pos * (n_pos + 1) / 2
    return ap, above / (n_pos * n_neg)
