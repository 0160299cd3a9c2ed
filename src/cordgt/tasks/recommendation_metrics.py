"""Metrics of recommendation lists: the ``TOP`` best destinations of each query, as a shop would show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange

from cordgt.tasks.metrics import ndcg

TOP = 10  # length of a list
# Names and bounds of the groups by the number of earlier events of a node.
DEGREE_BINS = (("none", 0, 0), ("1–2", 1, 2), ("3–9", 3, 9), ("10–31", 10, 31), ("32–99", 32, 99), ("100+", 100, 2**62))
GROUP_METRICS = ("mrr", f"hits@{TOP}", f"ndcg@{TOP}")
RECALL, COVERAGE, NOVELTY, LIFT = (f"{name}@{TOP}" for name in ("recall", "coverage", "novelty", "lift"))
# Title and definition of each metric, besides those of ranks in `LINK_METRICS`.
DESCRIPTIONS = {
    RECALL: ("recall", "hits@10 of each source, then the mean over the sources"),
    COVERAGE: ("coverage", "share of the known destinations that are in at least one list of ten"),
    NOVELTY: ("novelty", "mean of -log2 of the share of events that a listed destination has; higher is rarer"),
    LIFT: ("lift", "hits@10 divided by hits@10 of the baseline popularity"),
}


@dataclass(frozen=True)
class RecommendationLists:
    """The list of each query, with the rank of its true destination. n queries."""

    rank: np.ndarray  # (n,) float64, 1 is best
    src: np.ndarray  # (n,) the source
    history: np.ndarray  # (n,) number of earlier events of the source
    top: np.ndarray  # (n, TOP) int64, the listed nodes; -1 for padding
    novelty: np.ndarray  # (n,) float64, mean over the listed nodes; NaN for an empty list
    n_known: int  # destinations that can be listed at the end of the split

    def metrics(self) -> dict[str, Any]:
        """Return recall, coverage, novelty and the groups by length of history; None if there are no queries."""
        if not len(self.rank):
            return {RECALL: None, COVERAGE: None, NOVELTY: None, "by_history": {}}
        _, source = np.unique(self.src, return_inverse=True)
        hits = np.bincount(source, self.rank <= TOP) / np.bincount(source)
        listed = np.unique(self.top)
        n_listed = int((listed >= 0).sum())
        has_list = ~np.isnan(self.novelty)
        return {
            RECALL: float(hits.mean()),
            COVERAGE: n_listed / max(self.n_known, n_listed, 1),
            NOVELTY: float(self.novelty[has_list].mean()) if has_list.any() else None,
            "by_history": self._by_history(),
        }

    def _by_history(self) -> dict[str, dict[str, float | int]]:
        """Return the metrics of the queries whose source has so many earlier events; without empty groups."""
        groups = {}
        for name, low, high in DEGREE_BINS:
            rank = self.rank[(self.history >= low) & (self.history <= high)]
            if len(rank):
                values = (float((1 / rank).mean()), float((rank <= TOP).mean()), ndcg(rank))
                groups[name] = {"events": len(rank), **dict(zip(GROUP_METRICS, values, strict=True))}
        return groups


def add_lift(metrics: dict[str, Any], popularity: Mapping[str, Any]) -> None:
    """Add the lift over popularity to the metrics of a model or a baseline; None if popularity has no hit."""
    own, other = metrics.get(f"hits@{TOP}"), popularity.get(f"hits@{TOP}")
    if RECALL in metrics:
        metrics[LIFT] = own / other if own is not None and other else None


def top_candidates(scores: np.ndarray, nodes: np.ndarray, allowed: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the ``TOP`` best nodes of each query, (B, TOP) int64, -1 for padding; their order has no meaning.

    Of near-equal scores those with the lowest node index are listed. Shapes: (B, M), nodes ascending in each row.
    """
    out = np.full((len(scores), TOP), -1, dtype=np.int64)
    _fill_top(np.ascontiguousarray(scores), np.ascontiguousarray(nodes), allowed, tolerance, out)
    return out


@njit(parallel=True, cache=True)
def _fill_top(scores, nodes, allowed, tolerance, out):  # type: ignore[no-untyped-def]
    k = out.shape[1]
    for i in prange(len(scores)):
        best = np.empty(k)  # descending
        n = 0
        for j in range(scores.shape[1]):
            if not allowed[i, j]:
                continue
            score = scores[i, j]
            if n == k and score - best[k - 1] <= tolerance * max(1.0, abs(best[k - 1])):
                continue
            n = min(n + 1, k)
            at = n - 1
            while at > 0 and score > best[at - 1]:
                best[at], out[i, at] = best[at - 1], out[i, at - 1]
                at -= 1
            best[at], out[i, at] = score, nodes[i, j]
