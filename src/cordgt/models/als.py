"""ALS: matrix factorization of implicit feedback, by alternating least squares.

Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, 2008. Before the evaluation, the pairs
of the training events give a vector for each destination. A source's vector is computed at the query from its latest
partners before ``cut`` (folded in), so new sources and later events count. A destination that is not in the training
events has no vector: its score is 0, and metrics on unseen nodes are not defined.

Differs: each side is solved by a few steps of conjugate gradients, as in the package implicit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.errors import SettingError
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.history.recent import recent_events
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_non_negative, check_positive

CG_STEPS = 3
START = 0.3  # standard deviation of the first vectors; much smaller ones stay near a single direction for long
MAX_MATRIX_ENTRIES = 2**18  # of the folded-in systems in memory at a time: they stay in cache
MANY_CANDIDATES = 8  # with an eighth of all nodes as candidates, one product with all vectors is faster


@dataclass(frozen=True)
class AlsSettings:
    """Settings of ALS."""

    dim: int = 64  # D, length of a vector
    iterations: int = 15  # passes over sources and destinations
    regularization: float = 0.1
    confidence: float = 10.0  # weight of an event, relative to that of a pair without events
    num_partners: int = 50  # latest partners that a source's vector is made from

    def __post_init__(self) -> None:
        check_positive(self, "dim", "iterations", "num_partners")
        check_non_negative(self, "confidence")
        if not 0 < self.regularization < float("inf"):
            raise SettingError(f"regularization={self.regularization}: it must be above 0.")


class Partners(NamedTuple):
    """What ALS reads for B queries with M candidates."""

    partner: Tensor  # (B, P) int64, latest partners of the source; -1 for padding
    dst: Tensor  # (B, M) int64


@dataclass(frozen=True)
class AlsReader:
    """Reads the source's latest partners."""

    num_partners: int

    def read(self, history: History, queries: Queries) -> Partners:
        partner = recent_events(history.index, queries.src, queries.t, queries.cut, self.num_partners).node
        return Partners(partner, queries.dst)


class Als(LinkModel):
    """The product of the source's and the candidate's vector; float64."""

    is_trainable = False
    is_transductive = True
    uses_features = False
    uses_node_ids = True
    is_cheap = True
    learns_ranking = True
    max_pairs_per_batch = 200_000
    score_tolerance = 1e-9  # float64
    vectors: Tensor  # (N, D) float64, of destinations; zero without training events

    def __init__(self, settings: AlsSettings, *, edge_dim: int, node_dim: int, n_nodes: int) -> None:
        super().__init__()
        self.settings = settings
        self.reader = AlsReader(settings.num_partners)
        self.register_buffer("vectors", torch.zeros(n_nodes, settings.dim, dtype=torch.float64))

    def prepare(self, history: History, cut: int) -> None:
        """Fit the vectors of the destinations to the first ``cut`` events."""
        vectors = fit_vectors(history.index, cut, self.settings, history.seed)
        self.vectors.copy_(torch.from_numpy(vectors))

    def is_unknown(self, node: Tensor) -> Tensor:
        """Return (...,) bool, True: the node has no vector."""
        return (self._vectors(node) == 0).all(dim=-1)

    def forward(self, batch: Partners) -> Tensor:
        """Return products (B, M); 0 if either end has no vector."""
        source, dst = self._fold_in(batch.partner), batch.dst
        if dst.shape[1] * MANY_CANDIDATES < len(self.vectors) or not len(self.vectors):
            return (source.unsqueeze(1) * self._vectors(dst)).sum(-1)
        known = (dst >= 0) & (dst < len(self.vectors))
        return torch.where(known, (source @ self.vectors.T).gather(1, torch.where(known, dst, 0)), 0.0)

    def embed(self, batch: Partners) -> Tensor:
        """Return folded-in vectors (B, D)."""
        return self._fold_in(batch.partner)

    def _vectors(self, node: Tensor) -> Tensor:
        known = (node >= 0) & (node < len(self.vectors))
        if not len(self.vectors):
            return self.vectors.new_zeros(*node.shape, self.settings.dim)
        return torch.where(known.unsqueeze(-1), self.vectors[torch.where(known, node, 0)], 0.0)

    def _fold_in(self, partner: Tensor) -> Tensor:
        """Return the vector of a source with these partners, (B, D): the solution of its least squares problem."""
        own, size = self.settings, self.settings.dim
        base = self.vectors.T @ self.vectors + own.regularization * torch.eye(size, device=partner.device).double()
        step = max(1, MAX_MATRIX_ENTRIES // (size * size))
        found = []
        for rows in partner.split(step):
            y = self._vectors(rows)  # (B, P, D)
            matrix = base + own.confidence * y.transpose(1, 2) @ y
            target = (1 + own.confidence) * y.sum(dim=1)
            found.append(torch.linalg.solve(matrix, target))
        return torch.cat(found) if found else self.vectors.new_zeros(0, size)


def fit_vectors(index: TemporalIndex, cut: int, settings: AlsSettings, seed: int) -> np.ndarray:
    """Return (N, D) float64 vectors of the destinations of the first ``cut`` events; zero for other nodes."""
    users, items = _pair_table(index, cut)
    n, rng = index.n_nodes, np.random.default_rng(abs(seed))
    x = np.where(np.diff(users[0])[:, None] > 0, START * rng.standard_normal((n, settings.dim)), 0.0)
    y = np.where(np.diff(items[0])[:, None] > 0, START * rng.standard_normal((n, settings.dim)), 0.0)
    for _ in range(settings.iterations):
        _solve_side(*users, x, y, y.T @ y, settings.regularization, settings.confidence)
        _solve_side(*items, y, x, x.T @ x, settings.regularization, settings.confidence)
    return y


Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # (N+1,) starts, then other end and number of events of each pair


def _pair_table(index: TemporalIndex, cut: int) -> tuple[Table, Table]:
    """Return the pairs of the first ``cut`` events by source and by destination."""
    row_start, nbr, pos, src = (x.cpu().numpy() for x in (index.row_start, index.nbr, index.pos, index.src))
    owner = np.repeat(np.arange(index.n_nodes), np.diff(row_start))
    if len(pos):
        is_source = (pos < cut) & (src[pos] == owner)
        owner, nbr = owner[is_source], nbr[is_source]
    pairs, count = np.unique(np.stack([owner, nbr], axis=1).astype(np.int64), axis=0, return_counts=True)
    return _group(pairs[:, 0], pairs[:, 1], count, index.n_nodes), _group(
        pairs[:, 1], pairs[:, 0], count, index.n_nodes
    )


def _group(node: np.ndarray, other: np.ndarray, count: np.ndarray, n_nodes: int) -> Table:
    order = np.argsort(node, kind="stable")
    start = np.searchsorted(node[order], np.arange(n_nodes + 1))
    return start, other[order], count[order].astype(np.float64)


@njit(parallel=True, cache=True)
def _solve_side(start, other, count, x, y, gram, regularization, confidence):  # type: ignore[no-untyped-def]
    """Improve each row of ``x`` by conjugate gradients, given ``y``; rows without pairs stay as they are."""
    for u in prange(len(start) - 1):
        if start[u] == start[u + 1]:
            continue
        own = x[u].copy()
        r = -(gram @ own) - regularization * own
        for k in range(start[u], start[u + 1]):
            weight = confidence * count[k]
            v = y[other[k]]
            r += (1 + weight - weight * (v @ own)) * v
        p = r.copy()
        size = r @ r
        for _ in range(CG_STEPS):
            if size < 1e-20:
                break
            q = gram @ p + regularization * p
            for k in range(start[u], start[u + 1]):
                v = y[other[k]]
                q += confidence * count[k] * (v @ p) * v
            step = size / (p @ q)
            own += step * p
            r -= step * q
            new_size = r @ r
            p = r + (new_size / size) * p
            size = new_size
        x[u] = own
