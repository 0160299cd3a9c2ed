"""Gatherers: cheap sources of candidates for a source node. Each is a pure function of the first ``cut`` events.

`GATHERERS` is the registry. A gatherer returns node indices, the best first. `gather_candidates` joins them. To add
one, write a function of `Question` and a number of nodes, and add a line to `GATHERERS` with its share of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numba import njit

from cordgt.history import rng
from cordgt.history.index import TemporalIndex
from cordgt.inference.retrieval.destinations import WINDOWS, Destinations
from cordgt.inference.retrieval.neighborhood import Neighborhood, NodeRows, find_neighborhood

_HASH_TAG = 0x657870  # makes the random candidates independent of other draws


@dataclass(frozen=True)
class Question:
    """Which destinations will a source interact with at time ``t``, given the first ``cut`` events?"""

    index: TemporalIndex
    destinations: Destinations
    source: int
    cut: int
    t: float  # since the stream's first event
    seed: int = 0  # of the random candidates
    rows: NodeRows | None = None  # of the index; None: made for this question, which copies an index on a GPU

    @cached_property
    def neighborhood(self) -> Neighborhood:
        rows = NodeRows.from_index(self.index) if self.rows is None else self.rows
        return find_neighborhood(rows, self.source, self.cut)


Gatherer = Callable[[Question, int], np.ndarray]  # returns at most so many node indices


def latest_partners(question: Question, n: int) -> np.ndarray:
    """Return the source's partners, the latest first."""
    near = question.neighborhood
    return _largest(near.node, near.last + 1, n)


def frequent_partners(question: Question, n: int) -> np.ndarray:
    """Return the source's partners, the most frequent first."""
    near = question.neighborhood
    return _largest(near.node, near.partner, n)


def partners_of_partners(question: Question, n: int) -> np.ndarray:
    """Return the nodes that walks of two steps reach most often."""
    near = question.neighborhood
    return _largest(near.node, near.two_hops, n)


def co_visited(question: Question, n: int) -> np.ndarray:
    """Return the nodes that walks of three steps reach most often: in a shop, items of users with the same items."""
    near = question.neighborhood
    return _largest(near.node, near.three_hops, n)


def recently_active(question: Question, n: int) -> np.ndarray:
    """Return the destinations of the latest events of the stream."""
    return question.destinations.recent(question.cut, n)


def trending(question: Question, n: int, window: int) -> np.ndarray:
    """Return the most frequent destinations of the latest ``window`` events."""
    return question.destinations.trending(question.cut, window, n)


def popular(question: Question, n: int) -> np.ndarray:
    """Return the most frequent destinations of the whole visible stream."""
    return question.destinations.popular(question.cut, n)


def newest(question: Question, n: int) -> np.ndarray:
    """Return the destinations that appeared last."""
    return question.destinations.newest(question.cut, n)


def random_destinations(question: Question, n: int) -> np.ndarray:
    """Return random destinations: a hash of the seed, the source and ``cut``."""
    visible = question.destinations.visible(question.cut)
    key = rng.mix64_int(question.seed)
    for value in (_HASH_TAG, question.source, question.cut):
        key = rng.fold_in_int(key, value)
    return visible[_draw(np.uint64(key % 2**64), n, len(visible))]


# Name, gatherer, and its share of the pool. The shares add up to more than 1, because gatherers overlap.
GATHERERS: dict[str, tuple[Gatherer, float]] = {
    "latest partners": (latest_partners, 0.15),
    "frequent partners": (frequent_partners, 0.15),
    "partners of partners": (partners_of_partners, 0.15),
    "co-visited": (co_visited, 0.3),
    "recently active": (recently_active, 0.3),
    **{f"popular in {window:,} events": (partial(trending, window=window), 0.1) for window in WINDOWS},
    "popular": (popular, 0.1),
    "newest": (newest, 0.05),
    "random": (random_destinations, 0.05),
}


def gather_candidates(question: Question, n: int) -> np.ndarray:
    """Return about ``n`` destinations, ascending and distinct, without the source itself."""
    found = [gather(question, max(1, int(share * n))) for gather, share in GATHERERS.values()]
    nodes = np.sort(np.concatenate(found).astype(np.int64))
    nodes = nodes[np.diff(nodes, prepend=-1) > 0]  # distinct; faster than np.unique, which hashes
    return nodes[question.destinations.is_visible(nodes, question.cut) & (nodes != question.source)]


@njit(cache=True)
def _draw(key, n, size):  # type: ignore[no-untyped-def]
    """Return ``n`` random numbers below ``size``; none if it is 0."""
    draws = np.empty(n if size else 0, np.int64)
    for i in range(len(draws)):
        draws[i] = rng.randint_u64(rng.fold_in_u64(key, i), size)
    return draws


def _largest(node: np.ndarray, value: np.ndarray, n: int) -> np.ndarray:
    """Return the nodes with the ``n`` largest positive values, the largest first."""
    positive = np.flatnonzero(value > 0)
    if len(positive) > n:  # sort only those that may be among them
        positive = positive[value[positive] >= np.partition(value[positive], -n)[-n]]
    return node[positive[np.argsort(-value[positive], kind="stable")[:n]]]
