"""Average precision and area under the ROC curve, over a whole split and averaged over batches of it; ranks.

AP and AUC are those of scikit-learn (ties counted fairly, order of no consequence), computed for many batches at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np

HITS = (1, 3, 10)
ALIKE = (
    "training collapsed, where a smaller learning rate often helps (--set lr=0.0003), or this model sees nothing in "
    "these data that tells pairs apart"
)  # what `all_alike` may mean


JUDGED = {"ap": "AP", "auc": "AUC", "mrr": "MRR"}  # the figures in which a model is held against its floors


class LinkMetrics(TypedDict):
    """Figures of one split, 0–1; None where the split has no event."""

    ap: float | None
    auc: float | None
    ap_batch: float | None
    auc_batch: float | None
    events: int
    random_negatives: NotRequired[int]  # how many negatives are random because none of the kind asked for existed
    mrr: NotRequired[float | None]  # and hits@k, where ranks were asked for


def link_metrics(positive: np.ndarray, negative: np.ndarray, batch_size: int = 30) -> LinkMetrics:
    """Figures for scores of true events and of one sampled destination for each, in stream order.

    ``ap`` and ``auc`` are taken over all scores; ``ap_batch`` and ``auc_batch`` are means over batches of
    ``batch_size`` events counted from the first, the last one possibly shorter.
    """
    n = len(positive)
    if n == 0:
        return LinkMetrics(ap=None, auc=None, ap_batch=None, auc_batch=None, events=0)
    ap, auc = ap_and_auc(positive[None], negative[None])
    whole = n - n % batch_size  # full batches stand side by side as rows; a shorter last one follows by itself
    rows = [(x[:whole].reshape(-1, batch_size), x[whole:].reshape(1, -1)) for x in (positive, negative)]
    batches = [ap_and_auc(p, q) for p, q in zip(*rows, strict=True) if p.size]
    ap_rows, auc_rows = (np.concatenate(values) for values in zip(*batches, strict=True))
    return LinkMetrics(
        ap=float(ap[0]), auc=float(auc[0]), ap_batch=float(ap_rows.mean()), auc_batch=float(auc_rows.mean()), events=n
    )


def all_alike(figures: Mapping[str, Any]) -> bool:
    """Whether every pair of a split had the same score, by its figures: AP and AUC are exactly a half then.

    So they are where each group of tied scores is half of true pairs, which only a handful of pairs comes to by
    chance. False where there are no figures.
    """
    return figures["ap"] == 0.5 and figures["auc"] == 0.5


def known_before(metrics: Mapping[str, Any]) -> list[str]:
    """A sentence where the run that this one started from (`--init`) has seen what it is measured on."""
    init = metrics.get("init", {})
    knows = init.get("knows")
    return [f"The figures may flatter: this run started from {init['run']}; {knows}."] if knows else []


def ap_and_auc(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AP and AUC of each row. Shapes: (R, P) and (R, N) scores, P and N at least 1; (R,) and (R,) come back."""
    scores = np.concatenate([positive, negative], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=1)
    true = order < positive.shape[1]
    places = np.arange(scores.shape[1])
    last_of_tie = np.ones_like(true)
    last_of_tie[:, :-1] = ranked[:, 1:] != ranked[:, :-1]
    # the end of each tie: what a threshold at this score lets through
    end = np.minimum.accumulate(np.where(last_of_tie, places, scores.shape[1])[:, ::-1], axis=1)[:, ::-1]
    true_through = np.take_along_axis(np.cumsum(true, axis=1), end, axis=1)
    ap = np.where(true, true_through / (end + 1), 0.0).sum(axis=1) / positive.shape[1]
    first_of_tie = np.ones_like(true)
    first_of_tie[:, 1:] = last_of_tie[:, :-1]
    start = np.maximum.accumulate(np.where(first_of_tie, places, 0), axis=1)
    rank_from_below = scores.shape[1] - (start + end) / 2  # 1 = lowest score, ties share their mean rank
    n_pos, n_neg = positive.shape[1], negative.shape[1]
    above = np.where(true, rank_from_below, 0.0).sum(axis=1) - n_pos * (n_pos + 1) / 2
    return ap, above / (n_pos * n_neg)


def mean_ranks(true: np.ndarray, others: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The rank of each true score among its candidates, 1 the best: the mean of the optimistic and the pessimistic one.

    Shapes: true (B,); others (B, M), of which only those ``counted`` (B, M) compete; (B,) float64 comes back.
    """
    above = ((others > true[:, None]) & counted).sum(axis=1)
    tied = ((others == true[:, None]) & counted).sum(axis=1)
    return 1.0 + above + tied / 2


def ranking_metrics(ranks: np.ndarray) -> dict[str, float | None]:
    """``mrr`` and ``hits@k``, 0–1; None where there are no ranks."""
    if len(ranks) == 0:
        return dict.fromkeys(("mrr", *(f"hits@{k}" for k in HITS)))
    hits: dict[str, float | None] = {f"hits@{k}": float((ranks <= k).mean()) for k in HITS}
    return {"mrr": float((1.0 / ranks).mean())} | hits
