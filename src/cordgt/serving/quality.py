"""QualityMonitor: how well a model predicts the events that arrive, each scored before the model could see it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from cordgt.history.index import as_tensor
from cordgt.history.queries import Queries
from cordgt.serving.answerer import Answerer
from cordgt.serving.live_history import LiveHistory
from cordgt.tasks.metrics import link_metrics, ranking_metrics
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import mean_ranks

WINDOW = 1000  # events
N_NEGATIVES = 10  # random partners of an event, and as many popular ones
EVENTS_PER_STEP = 8
MAX_WAITING = 2000  # events; when more arrive than can be scored, the oldest are left out
EVENTS_PER_POINT = 50  # of the curve over time
MAX_POINTS = 500
WARNING_DROP = 0.05  # of AP, below that of the first full window
N_BINS = 10


class QualityMonitor:
    """Prequential quality over a sliding window: each event is compared with random and with popular partners.

    An event is scored at the number of events before its time, so its own batch does not help.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._waiting: deque[int] = deque(maxlen=MAX_WAITING)
        self._scores: deque[np.ndarray] = deque(maxlen=window)  # (1 + 2 * N_NEGATIVES,) logits each
        self._ranks: deque[tuple[float, float]] = deque(maxlen=window)
        self._points: deque[dict[str, Any]] = deque(maxlen=MAX_POINTS)
        self._lock = threading.Lock()
        self._reference: float | None = None
        self._n_since_reference = 0
        self.n_scored = 0
        self.n_skipped = 0

    def reset(self) -> None:
        """Forget the scores, because another model answers from now on."""
        with self._lock:
            self._scores.clear()
            self._ranks.clear()
            self._reference, self._n_since_reference = None, 0

    def on_append(self, live: LiveHistory, start: int) -> None:
        """Note the events from position ``start`` on."""
        n_dropped = len(self._waiting) + live.n_events - start - MAX_WAITING
        self.n_skipped += max(0, n_dropped)
        self._waiting.extend(range(start, live.n_events))

    def step(self, live: LiveHistory, answerer: Answerer) -> bool:
        """Score a few waiting events. Return whether more wait."""
        if not self._waiting:
            return False
        positions = np.array([self._waiting.popleft() for _ in range(min(EVENTS_PER_STEP, len(self._waiting)))])
        index = live.index_builder
        cut = np.asarray(index.tie_start[positions], np.int64)
        positions, cut = positions[cut > 0], cut[cut > 0]
        if len(positions):
            self._score(live, answerer, positions, cut)
        return bool(self._waiting)

    def _score(self, live: LiveHistory, answerer: Answerer, positions: np.ndarray, cut: np.ndarray) -> None:
        index = live.index_builder
        src, true = (np.asarray(x[positions], np.int64) for x in (index.src, index.dst))
        rng = np.random.default_rng(int(positions[0]))
        known = live.destinations_at(int(cut.min()))
        size = (len(positions), N_NEGATIVES)
        random = rng.choice(known, size)
        popular = np.asarray(index.dst[rng.integers(0, cut[:, None], size)], np.int64)
        dst = np.concatenate([true[:, None], random, popular], axis=1)
        t, cuts = as_tensor(index.elapsed[positions]), as_tensor(cut)
        predictor = answerer.predictor()
        queries = Queries(as_tensor(src), as_tensor(dst), t, cuts, cuts)
        logits = score_queries(predictor.model, predictor.history, queries)
        tolerance = predictor.model.score_tolerance
        ranks = [
            mean_ranks(logits[:, 0], logits[:, part], dst[:, part] != true[:, None], tolerance)
            for part in (slice(1, 1 + N_NEGATIVES), slice(1 + N_NEGATIVES, None))
        ]
        with self._lock:
            self._scores.extend(logits)
            self._ranks.extend(zip(*(rank.tolist() for rank in ranks), strict=True))
            is_point = (self.n_scored + len(positions)) // EVENTS_PER_POINT > self.n_scored // EVENTS_PER_POINT
            self.n_scored += len(positions)
            self._n_since_reference += len(positions)
        if is_point:
            self._points.append(_point(int(positions[-1]) + 1, self.summary()))

    def summary(self) -> dict[str, Any]:
        """Return the metrics of the window: AP, MRR and hits@10 against random and popular partners."""
        with self._lock:
            scores, ranks = np.array(self._scores), np.array(self._ranks)
            is_full = len(scores) == self._scores.maxlen
        result: dict[str, Any] = {
            "events": len(scores),
            "window": self._scores.maxlen,
            "scored": self.n_scored,
            "skipped": self.n_skipped,
            "warning": "",
            "points": list(self._points),
        }
        if not len(scores):
            return result
        for i, kind in enumerate(("random", "popular")):
            ap = link_metrics(scores[:, 0], scores[:, 1 + i * N_NEGATIVES])["ap"]
            ranking = ranking_metrics(ranks[:, i])
            result[kind] = {"ap": ap} | {name: ranking[name] for name in ("mrr", "hits@1", "hits@3") if name in ranking}
        result["calibration_error"] = calibration_error(scores[:, 0], scores[:, 1])
        ap = result["random"]["ap"]
        if is_full and self._reference is None:
            self._reference = ap
        result["reference_ap"] = self._reference
        if self._reference is not None and ap < self._reference - WARNING_DROP:
            result["warning"] = (
                f"AP fell from {self._reference:.3f} to {ap:.3f}. Train the model again on the latest events."
            )
        return result


def _point(cut: int, summary: dict[str, Any]) -> dict[str, Any]:
    """Return a point of the curve over time: the metrics of the window that ends before event ``cut``."""
    random, popular = summary["random"], summary["popular"]
    return {"cut": cut, "ap": random["ap"], "ap_popular": popular["ap"], "mrr": random.get("mrr")}


def calibration_error(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the mean distance between score and share of true events, over ten bins of the score (logits in)."""
    score = 1 / (1 + np.exp(-np.clip(np.concatenate([positive, negative]), -50, 50)))
    truth = np.repeat([1.0, 0.0], [len(positive), len(negative)])
    which = np.minimum((score * N_BINS).astype(int), N_BINS - 1)
    bins = [which == k for k in range(N_BINS)]
    return float(sum(abs(score[b].sum() - truth[b].sum()) for b in bins) / len(score))
