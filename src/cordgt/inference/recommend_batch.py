"""Recommend destinations for many sources at one time, with few model calls.

`Predictor.recommend` answers for one source. Here all sources share the time and the number of visible events, so
what does not depend on the source is found once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numba import njit

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.arrays import unique_nodes
from cordgt.history.queries import Queries
from cordgt.inference.predictor import Predictor, sigmoid
from cordgt.tasks.scoring import score_queries

MAX_PAIRS = 1 << 20  # scored between two progress steps; bounds the memory to a few times 8 MB
# Columns of an answer, as in `cordgt recommend`.
COLUMNS = ("src", "rank", "node", "score", "met", "note", "src_note")


@dataclass(frozen=True)
class BatchRecommender:
    """Recommends destinations for sources, all at one time.

    The candidates of a source are ``candidates`` without the source itself. The answers are those of
    `Predictor.recommend` up to rounding, because the model scores other batches. The same sources give the same bits.
    """

    predictor: Predictor
    candidates: np.ndarray  # (M,) node indices, ascending
    t: float  # elapsed time of the queries
    cut: int  # number of visible events
    top: int = 10
    new_only: bool = False  # True: leave out earlier partners

    @classmethod
    def at_time(
        cls,
        predictor: Predictor,
        at: float | None,
        *,
        top: int = 10,
        new_only: bool = False,
        candidates: np.ndarray | None = None,
    ) -> BatchRecommender:
        """Return a recommender for a time on the stream's axis; None means after the last event.

        ``candidates`` are node indices; None means all destinations of the visible history.
        """
        t, cut = predictor.times_and_cuts(None if at is None else np.array([at]), 1)
        n_visible = int(cut[0])
        if candidates is None:
            candidates = unique_nodes(predictor.stream.dst[:n_visible], predictor.stream.n_nodes)
        return cls(predictor, np.unique(candidates), float(t[0]), n_visible, top, new_only)

    def sources(self) -> np.ndarray:
        """Return the node indices (S,) of all sources of the visible history, in order of first appearance."""
        stream = self.predictor.stream
        return unique_nodes(stream.src[: self.cut], stream.n_nodes)

    def recommend(self, sources: np.ndarray, callbacks: Callback = NO_CALLBACK) -> pa.Table:
        """Return the `COLUMNS` of the best destinations of each source, best first, in the order of the sources."""
        step = max(1, MAX_PAIRS // max(1, len(self.candidates)))
        row, dst, logit, met = ([np.empty(0, dtype)] for dtype in (np.int64, np.int64, np.float64, np.int64))
        for start in range(0, len(sources), step):
            batch = sources[start : start + step]
            found = self._best(batch)
            for parts, values in zip((row, dst, logit, met), found, strict=True):
                parts.append(values)
            row[-1] = row[-1] + start
            callbacks.on_step(len(batch))
        return self._table(sources, *(np.concatenate(parts) for parts in (row, dst, logit, met)))

    def _best(self, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return row, destination, logit and number of earlier events of the best pairs of each source."""
        predictor, device = self.predictor, self.predictor.device
        n, width = len(sources), len(self.candidates)
        u, v = (torch.from_numpy(x).to(device) for x in (sources, self.candidates))
        dst = v[None].expand(n, width)
        cut = torch.full((n,), self.cut, dtype=torch.int64, device=device)
        t = torch.full((n,), self.t, dtype=torch.float64, device=device)
        logits = score_queries(predictor.model, predictor.history, Queries(u, dst, t, cut, cut))
        allowed = self.candidates[None] != sources[:, None]
        if self.new_only:
            n_met = predictor.history.index.pair_interactions(u[:, None], dst, cut[:, None])[0]
            allowed &= n_met.cpu().numpy() == 0
        row, column, best = select_best(logits, allowed, self.top, predictor.model.score_tolerance)
        chosen = self.candidates[column]
        pairs = (torch.from_numpy(x).to(device) for x in (sources[row], chosen))
        met = predictor.history.index.pair_interactions(*pairs, torch.full((len(row),), self.cut, device=device))[0]
        return row, chosen, best, met.cpu().numpy()

    def _table(
        self, sources: np.ndarray, row: np.ndarray, dst: np.ndarray, logit: np.ndarray, met: np.ndarray
    ) -> pa.Table:
        predictor, ids = self.predictor, self.predictor.stream.ids
        count = np.bincount(row, minlength=len(sources))
        rank = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + 1
        notes = predictor.notes(dst, np.full(len(dst), self.cut))
        src_notes = predictor.notes(sources, np.full(len(sources), self.cut))[row]
        columns = (ids.decode(sources[row]), rank, ids.decode(dst), sigmoid(logit), met, notes, src_notes)
        arrays = [pa.array(x.tolist(), pa.string()) if x is notes or x is src_notes else pa.array(x) for x in columns]
        return pa.table(dict(zip(COLUMNS, arrays, strict=True)))


def select_best(
    logits: np.ndarray, allowed: np.ndarray, top: int, tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, column and logit of the ``top`` allowed scores of each row, best first; fewer if there are fewer.

    Near-equal scores are made equal as in `merge_near_ties`, and equal ones stand in the order of the columns.
    Shapes: logits (B, M) float64; allowed (B, M) bool.
    """
    n, width = logits.shape
    size = min(top, width)
    column = np.full((n, size), -1, np.int64)
    value = np.empty((n, size))
    _select_rows(np.ascontiguousarray(logits), np.ascontiguousarray(allowed), size, tolerance, column, value)
    row, slot = np.nonzero(column >= 0)
    return row, column[row, slot], value[row, slot]


@njit(cache=True)
def _select_rows(logits, allowed, top, tolerance, column, value):  # type: ignore[no-untyped-def]
    """Fill ``column`` (-1: none) and ``value`` (B, top) for `select_best`.

    Ties form from the highest score down. So only scores down to the tie of the last chosen one need sorting, and that
    tie ends at most one margin below it.
    """
    width = logits.shape[1]
    at = np.empty(width, np.int64)
    for i in range(len(logits)):
        n = 0
        for j in range(width):
            if allowed[i, j]:
                at[n] = j
                n += 1
        k = min(top, n)
        if k == 0:
            continue
        scores = logits[i][at[:n]]
        last = np.partition(scores, n - k)[n - k]
        near = np.flatnonzero(scores >= last - tolerance * max(1.0, abs(last)))
        scores = scores[near]
        merged = np.empty_like(scores)
        highest, margin = 0.0, -1.0
        for m, j in enumerate(np.argsort(-scores, kind="mergesort")):
            if m == 0 or highest - scores[j] > margin:
                highest = scores[j]
                margin = tolerance * max(1.0, abs(highest))
            merged[j] = highest
        for m, j in enumerate(np.argsort(-merged, kind="mergesort")[:k]):
            column[i, m] = at[near[j]]
            value[i, m] = merged[j]
