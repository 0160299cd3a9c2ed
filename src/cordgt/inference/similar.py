"""Nodes that are alike: they interact with the same partners (co-visitation), or have near embeddings.

Two nodes are alike if they share partners: two products that the same customers bought. A node is the vector of its
decayed numbers of events with each partner. All of it is a pure function of the first ``cut`` events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from cordgt.errors import DataError, SettingError, check_choice
from cordgt.history.index import TemporalIndex, lower_bound_scalar
from cordgt.inference.predictor import Predictor
from cordgt.tasks.ties import merge_near_ties

MEASURES = ("cosine", "bm25", "embedding")
HALF_LIFE_SHARE = 0.25  # default half-life: this share of the time from the first event to the query
SATURATION = 1.2  # k1 of BM25: a larger one lets repeated events count more
LENGTH_PENALTY = 0.75  # b of BM25: 1 divides by the number of events of the node, 0 ignores it
SCORE_TOLERANCE = 1e-12  # sums of equal terms in another order differ by less; relative to max(1, score)
EMBEDDING_TOLERANCE = 1e-5


@dataclass(frozen=True)
class SimilarNode:
    """One node that is like the given one."""

    node: Any  # id as in the user's data
    score: float  # cosine: between 0 and 1 (embeddings: -1 and 1); bm25: 0 or more
    shared: int  # number of shared partners before the time of the query


def find_similar(
    predictor: Predictor,
    node: int,
    at: float | None = None,
    top: int = 10,
    *,
    by: str = "cosine",
    half_life: float | None = None,
) -> list[SimilarNode]:
    """Return the ``top`` nodes most like a node index, best first; nodes with equal scores by first appearance.

    ``by``: "cosine" and "bm25" compare the partners of the nodes, "embedding" the model's embeddings. ``half_life``:
    time after which an event counts half, in the unit of `EventStream.elapsed`; None: a quarter of the visible
    history; ``math.inf``: no decay. If sources and destinations have separate ids, all answers are of the node's own
    side, because partners are of the other one.
    """
    check_choice("by", by, MEASURES)
    if half_life is not None and not half_life > 0:
        raise SettingError(f"half_life={half_life}: give a time above 0, or math.inf for no decay.")
    if half_life is not None and by == "embedding":
        raise SettingError("half_life applies to by=cosine and by=bm25 only.")
    times, cuts = predictor.times_and_cuts(None if at is None else np.array([at]), 1)
    t, cut = float(times[0]), int(cuts[0])
    index = predictor.history.index
    if index.device.type != "cpu":
        index = index.to("cpu")
    rate = math.log(2) / (HALF_LIFE_SHARE * t if half_life is None else half_life) if t > 0 else 0.0
    nodes, weight, shared = shared_partners(index, node, t, cut, rate, use_bm25=by == "bm25")
    if by == "embedding":
        n_shared = dict(zip(nodes.tolist(), shared.tolist(), strict=True))
        nodes, score = _embedding_cosines(predictor, node, at, cut)
        shared = np.array([n_shared.get(n, 0) for n in nodes.tolist()], np.int64)
        tolerance = EMBEDDING_TOLERANCE
    else:
        score, tolerance = weight, SCORE_TOLERANCE
        if by == "cosine":
            score = to_cosine(index, node, nodes, weight, t, cut, rate)
    other = nodes != node
    nodes, shared, score = nodes[other], shared[other], merge_near_ties(score[other], tolerance)
    best = np.lexsort((nodes, -score))[:top]
    ids = predictor.stream.ids.decode(nodes[best]).to_pylist()
    rows = zip(ids, score[best].tolist(), shared[best].tolist(), strict=True)
    return [SimilarNode(*row) for row in rows]


def node_index(predictor: Predictor, node: Any, side: str | None = None) -> int:
    """Return the node index of an id. DataError if the history has no such node, or a source and a destination."""
    found = int(predictor.node_indices_of_either_side([node], None if side is None else [side])[0])
    if found >= predictor.stream.n_nodes:
        raise DataError(f"There is no node {str(node)!r} in the history.")
    return found


def shared_partners(
    index: TemporalIndex, node: int, t: float, cut: int, rate: float, *, use_bm25: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nodes that share a partner with ``node``, ascending, and for each its weight and number of partners.

    The weight is the sum of the products of both nodes' weights with each shared partner. A weight is the sum of
    ``exp(-rate * age)`` over the events of the pair among the first ``cut``. ``node`` itself is included.
    """
    arrays: Any = (*(x.numpy() for x in index.pair_arrays), index.elapsed.numpy())
    partners, own = _pair_weights(*arrays, node, t, cut, rate)  # type: ignore[call-arg]
    first, other, weight = _two_hops(*arrays, partners, t, cut, rate)  # type: ignore[call-arg]
    if use_bm25:
        n_partners = np.diff(np.append(first, len(other)))  # of each partner of the node
        n_nodes, mean_degree = _visible_nodes(index, cut)
        rarity = np.log1p(n_nodes / np.maximum(n_partners, 1))
        ends = np.append(other, node)
        degree = _degrees(index.row_start.numpy(), index.pos.numpy(), ends, cut)
        length = SATURATION * (1 - LENGTH_PENALTY + LENGTH_PENALTY * degree / mean_degree)
        own = rarity * own * (SATURATION + 1) / (own + length[-1])
        weight = np.repeat(rarity, n_partners) * weight * (SATURATION + 1) / (weight + length[:-1])
    product = weight * np.repeat(own, np.diff(np.append(first, len(other))))
    nodes, place = np.unique(other, return_inverse=True)
    return nodes, np.bincount(place, product, len(nodes)), np.bincount(place, minlength=len(nodes))


def to_cosine(
    index: TemporalIndex, node: int, nodes: np.ndarray, weight: np.ndarray, t: float, cut: int, rate: float
) -> np.ndarray:
    """Divide the weights (n,) of `shared_partners` by the lengths of both vectors; 0 if one has decayed to nothing."""
    arrays: Any = (*(x.numpy() for x in index.pair_arrays), index.elapsed.numpy())
    squares = _squared_norms(*arrays, np.append(nodes, node), t, cut, rate)  # type: ignore[call-arg]
    norms = np.sqrt(squares)
    length = norms[:-1] * norms[-1]
    return np.divide(weight, length, out=np.zeros(len(weight)), where=length > 0)


def _visible_nodes(index: TemporalIndex, cut: int) -> tuple[int, float]:
    """Return how many nodes have an event among the first ``cut``, and how many events they have on average.

    Nodes are numbered by first appearance, so a binary search finds their number.
    """
    row_start, pos = index.row_start, index.pos
    low, high = 0, index.n_nodes
    while low < high:
        middle = (low + high) // 2
        start = int(row_start[middle])
        if start < int(row_start[middle + 1]) and int(pos[start]) < cut:
            low = middle + 1
        else:
            high = middle
    return low, max(1.0, 2 * cut / max(low, 1))


def _embedding_cosines(
    predictor: Predictor, node: int, at: float | None, cut: int, batch_size: int = 10_000
) -> tuple[np.ndarray, np.ndarray]:
    """Return the visible nodes of the same side, and the cosine of the embedding of each with that of ``node``."""
    query = predictor.embed(np.array([node]), at)[0].astype(np.float64)
    side = predictor.stream.ids.side
    nodes = np.arange(_visible_nodes(predictor.history.index, cut)[0])
    nodes = nodes if side is None else nodes[side[: len(nodes)] == side[node]]
    cosines = [np.empty(0)]
    for start in range(0, len(nodes), batch_size):
        vectors = predictor.embed(nodes[start : start + batch_size], at).astype(np.float64)
        length = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        cosines.append(vectors @ query / np.maximum(length, 1e-300))
    return nodes, np.concatenate(cosines)


@njit(cache=True)
def _pair_weights(pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, node, t, cut, rate):  # type: ignore[no-untyped-def]
    """Return the partners of a node before ``cut``, ascending, and the decayed number of events with each."""
    start, stop = pair_start[node], pair_start[node + 1]
    partner = np.empty(stop - start, np.int64)
    weight = np.empty(stop - start)
    n = 0
    for pair in range(start, stop):
        first = pair_pos_start[pair]
        end = lower_bound_scalar(pair_pos, first, pair_pos_start[pair + 1], cut)
        if end == first:
            continue
        total = 0.0
        for k in range(first, end):
            total += math.exp(-rate * (t - elapsed[pair_pos[k]]))
        partner[n] = pair_nbr[pair]
        weight[n] = total
        n += 1
    return partner[:n], weight[:n]


@njit(cache=True)
def _two_hops(pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, partners, t, cut, rate):  # type: ignore[no-untyped-def]
    """Return the partners of all ``partners``, one after the other, their weights, and where those of each begin."""
    size = 0
    for p in partners:
        size += pair_start[p + 1] - pair_start[p]
    first = np.empty(len(partners), np.int64)
    other = np.empty(size, np.int64)
    weight = np.empty(size)
    n = 0
    for i in range(len(partners)):
        nodes, weights = _pair_weights(
            pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, partners[i], t, cut, rate
        )
        first[i] = n
        other[n : n + len(nodes)] = nodes
        weight[n : n + len(nodes)] = weights
        n += len(nodes)
    return first, other[:n], weight[:n]


@njit(cache=True)
def _squared_norms(pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, nodes, t, cut, rate):  # type: ignore[no-untyped-def]
    norms = np.empty(len(nodes))
    for i in range(len(nodes)):
        weights = _pair_weights(pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, nodes[i], t, cut, rate)[1]
        norms[i] = (weights * weights).sum()
    return norms


@njit(cache=True)
def _degrees(row_start, pos, nodes, cut):  # type: ignore[no-untyped-def]
    degree = np.empty(len(nodes), np.int64)
    for i in range(len(nodes)):
        degree[i] = lower_bound_scalar(pos, row_start[nodes[i]], row_start[nodes[i] + 1], cut) - row_start[nodes[i]]
    return degree
