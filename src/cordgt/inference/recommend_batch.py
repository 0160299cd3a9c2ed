"""Recommend destinations for many sources at one time, with few model calls.

`Predictor.answer` answers for one source. Here all sources share the time and the number of visible events, so many
sources are scored in one call. The stages are the same: gather candidates, score them with the first scorer, rank the
best with the model (`cordgt.inference.retrieval`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numba import njit

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.arrays import unique_nodes
from cordgt.history.queries import Queries
from cordgt.inference.predictor import Predictor, sigmoid
from cordgt.inference.retrieval.gatherers import Question
from cordgt.inference.retrieval.pair_table import PairTable
from cordgt.inference.retrieval.ranking import (
    POOL_SIZE,
    CandidateFilter,
    candidate_pools,
    rank_destinations,
    resolve_budget,
)
from cordgt.models.base import LinkModel
from cordgt.models.counts import Counts
from cordgt.tasks.scoring import score_queries

MAX_PAIRS = 1 << 20  # pairs in memory at once: some 50 MB
MAX_SOURCES = 1000  # between two progress steps
# Columns of an answer, as in `cordgt recommend`.
COLUMNS = ("src", "rank", "node", "score", "met", "note", "src_note")

Best = tuple[np.ndarray, np.ndarray, np.ndarray]  # row of the batch, node and logit of the best pairs, best first


@dataclass(frozen=True)
class BatchRecommender:
    """Recommends destinations for sources, all at one time.

    The answers are those of `Predictor.answer` up to rounding, because the model scores other batches. If there are
    more destinations than `POOL_SIZE`, a cheap model too scores only so many gathered candidates, or ``budget`` if that
    is larger. The same sources in the same order give the same bits.
    """

    predictor: Predictor
    t: float  # elapsed time of the queries
    cut: int  # number of visible events
    top: int = 10
    allowed: CandidateFilter = CandidateFilter()  # noqa: RUF009  # frozen
    budget: int | None = None  # candidates that the model ranks; None: the default
    exhaustive: bool = False  # True: the model ranks all candidates

    @classmethod
    def at_time(cls, predictor: Predictor, at: float | None, **options: Any) -> BatchRecommender:
        """Return a recommender for a time on the stream's axis; None means after the last event."""
        t, cut = predictor.times_and_cuts(None if at is None else np.array([at]), 1)
        return cls(predictor, float(t[0]), int(cut[0]), **options)

    @cached_property
    def resolved_budget(self) -> int:
        """How many candidates of a source the model ranks: ``budget``, or the default of the run's first scorer."""
        given, model = self.allowed.candidates, self.predictor.model
        n_candidates = self.predictor.destinations.count(self.cut) if given is None else len(given)
        scorer = None if self.exhaustive or model.is_cheap else lambda: self.predictor.first_scorer
        return resolve_budget(self.budget, self.top, n_candidates, scorer)

    def sources(self) -> np.ndarray:
        """Return the node indices (S,) of all sources of the visible history, in order of first appearance."""
        stream = self.predictor.stream
        return unique_nodes(stream.src[: self.cut], stream.n_nodes)

    def recommend(self, sources: np.ndarray, callbacks: Callback = NO_CALLBACK) -> pa.Table:
        """Return the `COLUMNS` of the best destinations of each source, best first, in the order of the sources."""
        found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        n_done = 0
        for batch, pools in self._batches(sources):
            row, node, logit = self._best(batch, pools)
            found.append((row + n_done, node, logit))
            n_done += len(batch)
            callbacks.on_step(len(batch))
        return self._table(sources, *(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _question(self, source: int) -> Question:
        return self.predictor.question(source, self.t, self.cut)

    def _batches(self, sources: np.ndarray) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Yield sources with the candidates of each: at most `MAX_SOURCES`, and about `MAX_PAIRS` pairs."""
        start, n_pairs = 0, 0
        pools: list[np.ndarray] = []
        for i, source in enumerate(sources.tolist()):
            pool = self._first_pool(source)
            if pools and (n_pairs + len(pool) > MAX_PAIRS or len(pools) == MAX_SOURCES):
                yield sources[start:i], pools
                start, n_pairs, pools = i, 0, []
            pools.append(pool)
            n_pairs += len(pool)
        if pools:
            yield sources[start:], pools

    def _first_pool(self, source: int) -> np.ndarray:
        """Return the first candidates of a source, ascending; few or none only if that is what its filters leave."""
        question = self._question(source)
        pools = candidate_pools(
            question, self.allowed, self.resolved_budget, is_cheap=False, exhaustive=self.exhaustive
        )[1]
        pool = next(pools)
        return pool if len(pool) >= self.top else next(pools, pool)

    def _best(self, sources: np.ndarray, pools: list[np.ndarray]) -> Best:
        """Return the best pairs of each source among its candidates."""
        model, budget = self.predictor.model, self.resolved_budget
        if self.allowed.per_group is not None:
            return self._best_one_by_one(sources)
        scorer = self._first_scorer
        large = [i for i, pool in enumerate(pools) if len(pool) > budget]
        if scorer is not None and large:
            row, node, _ = self._score_pools(scorer, sources[large], [pools[i] for i in large], budget, 0.0)
            ends = np.searchsorted(row, np.arange(len(large) + 1))
            for k, i in enumerate(large):
                pools[i] = np.sort(node[ends[k] : ends[k + 1]])
        return self._score_pools(model, sources, pools, self.top, model.score_tolerance)

    @cached_property
    def _first_scorer(self) -> LinkModel | PairTable | None:
        """What chooses the candidates that the model ranks; None: the model ranks all.

        For `counts` itself it is a faster way to compute nearly the same scores.
        """
        model, history = self.predictor.model, self.predictor.history
        if self.exhaustive or (model.is_cheap and not isinstance(model, Counts)):
            return None
        has_gathered = self.predictor.destinations.count(self.cut) > POOL_SIZE
        on_cpu = history.index.device.type == "cpu" and (model.device is None or model.device.type == "cpu")
        if isinstance(model, Counts):
            return PairTable.build(model, history, self.t, self.cut) if has_gathered and on_cpu else None
        return self.predictor.first_scorer

    def _best_one_by_one(self, sources: np.ndarray) -> Best:
        """`_best` for filters that depend on the other answers of a source."""
        predictor = self.predictor
        found = [
            rank_destinations(
                predictor.model,
                predictor.history,
                self._question(source),
                self.top,
                allowed=self.allowed,
                first_scorer=lambda: predictor.first_scorer,
                budget=self.budget,
                exhaustive=self.exhaustive,
            )
            for source in sources.tolist()
        ]
        row = np.repeat(np.arange(len(found)), [len(ranking.node) for ranking in found])
        nodes, logits = ([getattr(ranking, name) for ranking in found] for name in ("node", "logit"))
        return row, np.concatenate(nodes), np.concatenate(logits)

    def _score_pools(
        self, model: LinkModel | PairTable, sources: np.ndarray, pools: list[np.ndarray], top: int, tolerance: float
    ) -> Best:
        """Return the ``top`` candidates of each source by the model's score."""
        history, device = self.predictor.history, self.predictor.device
        size = np.array([len(pool) for pool in pools])
        if not size.sum():
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        valid = np.arange(size.max()) < size[:, None]  # (B, M)
        # Padding repeats a candidate, because not every model has an answer for "no node".
        node = np.repeat(np.array([pool[0] if len(pool) else 0 for pool in pools])[:, None], size.max(), axis=1)
        node[valid] = np.concatenate(pools)
        if isinstance(model, PairTable):
            scores = np.zeros(node.shape)
            scores[valid] = model.score(sources, pools)
        else:
            u, v = (torch.from_numpy(x).to(device) for x in (sources, node))
            cut = torch.full((len(u),), self.cut, dtype=torch.int64, device=device)
            t = torch.full((len(u),), self.t, dtype=torch.float64, device=device)
            scores = score_queries(model, history, Queries(u, v, t, cut, cut))
        row, column, logit = select_best(scores, valid, top, tolerance)
        return row, node[row, column], logit

    def _table(self, sources: np.ndarray, row: np.ndarray, dst: np.ndarray, logit: np.ndarray) -> pa.Table:
        predictor, ids, device = self.predictor, self.predictor.stream.ids, self.predictor.device
        u, v = (torch.from_numpy(x).to(device) for x in (sources[row], dst))
        cut = torch.full((len(row),), self.cut, dtype=torch.int64, device=device)
        met = predictor.history.index.pair_interactions(u, v, cut)[0].cpu().numpy()
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
