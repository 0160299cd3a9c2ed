"""A fast way to score many pairs with the network of `counts`, at one time.

The features of two nodes without a common event are a sum: what depends on the source, and what depends on the
candidate. The candidates' part is computed once for all nodes (`PairTable`). A pair then costs about 0.1 instead of
one microsecond. Pairs with common events are scored by the network itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import nn

from cordgt.history.index import lower_bound_scalar
from cordgt.history.queries import History, Queries
from cordgt.models.counts import Counts
from cordgt.tasks.scoring import score_queries

_CHUNK = 1 << 17  # nodes read at once


@dataclass(frozen=True)
class PairTable:
    """Scores pairs as a `Counts` network does, up to rounding, for one time and one ``cut``. On the CPU only."""

    scorer: Counts
    history: History
    t: float
    cut: int
    nodes: np.ndarray  # (N, K) float32: features of each node as a candidate, without those of no node
    weights: np.ndarray  # (K, D) float32: the first layer's weights for these features

    @classmethod
    def build(cls, scorer: Counts, history: History, t: float, cut: int) -> PairTable:
        """Read the features of every node of the history once: N times K numbers, K is 7."""
        base = _read(scorer, history, t, cut, np.array([-1]), np.array([[-1]]))[0, 0]
        columns = np.empty(0, np.int64)
        table = np.empty((history.index.n_nodes, 0), np.float32)
        for start in range(0, len(table), _CHUNK):
            candidates = np.arange(start, min(start + _CHUNK, len(table)))
            features = _read(scorer, history, t, cut, np.array([-1]), candidates[None])[0] - base
            used = np.union1d(columns, np.flatnonzero(features.any(axis=0)))
            if len(used) > len(columns):
                wider = np.zeros((len(table), len(used)), np.float32)
                wider[:, np.searchsorted(used, columns)] = table
                columns, table = used, wider
            table[candidates] = features[:, columns]
        first = _layers(scorer)[0].weight.detach().numpy()
        return cls(scorer, history, t, cut, table, np.ascontiguousarray(first[:, columns].T))

    def score(self, sources: np.ndarray, pools: list[np.ndarray]) -> np.ndarray:
        """Return the logits of all candidates, one source's after the other: float64. Pools are ascending."""
        first_layer, last_layer = _layers(self.scorer)
        own = _read(self.scorer, self.history, self.t, self.cut, sources, np.full((len(sources), 1), -1))[:, 0]
        with torch.inference_mode():
            hidden = first_layer(torch.from_numpy(own)).numpy()  # (B, D)
        candidates = np.concatenate([np.empty(0, np.int64), *pools])
        first = np.cumsum([0, *(len(pool) for pool in pools)])
        logits, is_met = np.empty(len(candidates)), np.zeros(len(candidates), np.bool_)
        last_weight, last_bias = (x.detach().numpy() for x in (last_layer.weight[0], last_layer.bias))
        _score_pairs(self.nodes, self.weights, hidden, last_weight, float(last_bias[0]), first, candidates, logits)
        index = self.history.index
        pairs: Any = [x.numpy() for x in index.pair_arrays]
        _mark_partners(*pairs, sources, self.cut, first, candidates, is_met)  # type: ignore[call-arg]
        met = np.flatnonzero(is_met)
        source = np.repeat(sources, np.diff(first))[met]
        queries = _queries(self.t, self.cut, source, candidates[met][:, None])
        logits[met] = score_queries(self.scorer, self.history, queries)[:, 0]
        return logits


def _layers(scorer: Counts) -> tuple[nn.Linear, nn.Linear]:
    """Return the two linear layers of the network; between them is a ReLU."""
    first, _, last = (layer for layer in scorer.score)
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    return first, last


def _queries(t: float, cut: int, src: np.ndarray, dst: np.ndarray) -> Queries:
    times, cuts = torch.full((len(src),), t, dtype=torch.float64), torch.full((len(src),), cut, dtype=torch.int64)
    return Queries(torch.from_numpy(src), torch.from_numpy(dst), times, cuts, cuts)


def _read(scorer: Counts, history: History, t: float, cut: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Return the features (B, M, P) of pairs; -1 is no node."""
    return scorer.read(history, _queries(t, cut, src, dst)).numpy()


@njit(cache=True, fastmath={"reassoc", "contract"})  # sums in vector registers
def _score_pairs(nodes, weights, hidden, last_weight, last_bias, first, candidates, logits):  # type: ignore[no-untyped-def]
    dim = len(last_weight)
    h = np.empty(dim, np.float32)
    for b in range(len(first) - 1):
        own = hidden[b]
        for i in range(first[b], first[b + 1]):
            node = nodes[candidates[i]]
            for k in range(dim):
                h[k] = own[k]
            for j in range(len(weights)):
                x, weight = node[j], weights[j]
                for k in range(dim):
                    h[k] += x * weight[k]
            total = np.float32(0)
            for k in range(dim):
                total += max(h[k], np.float32(0)) * last_weight[k]
            logits[i] = total + last_bias


@njit(cache=True)
def _mark_partners(pair_start, pair_nbr, pair_pos_start, pair_pos, sources, cut, first, candidates, is_met):  # type: ignore[no-untyped-def]
    """Set ``is_met`` where the candidate has an event with its source before ``cut``."""
    for b in range(len(sources)):
        if not 0 <= sources[b] < len(pair_start) - 1:
            continue
        for pair in range(pair_start[sources[b]], pair_start[sources[b] + 1]):
            if pair_pos[pair_pos_start[pair]] < cut:
                at = lower_bound_scalar(candidates, first[b], first[b + 1], pair_nbr[pair])
                if at < first[b + 1] and candidates[at] == pair_nbr[pair]:
                    is_met[at] = True
