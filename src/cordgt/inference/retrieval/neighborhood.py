"""Partners of a source, partners of partners and co-visited nodes, from each node's latest events before ``cut``.

The cost depends on the constants below, not on the length of the stream or the degree of a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from cordgt.history.index import TemporalIndex, degree_scalar

MAX_OWN_EVENTS = 2048  # latest events of the source
WALK_EVENTS = (32, 16, 16)  # latest events of the source, of its partners, and of their partners
MAX_NODES = MAX_OWN_EVENTS + WALK_EVENTS[0] * (1 + WALK_EVENTS[1] * (1 + WALK_EVENTS[2]))  # reached, at most
TABLE_BITS = 15  # of the hash table that finds a node's place; at most a third of it is used
_HASH_FACTOR, _HASH_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(64 - TABLE_BITS)


@dataclass(frozen=True)
class NodeRows:
    """The events of each node in stream order, in host memory: three arrays of `TemporalIndex`."""

    row_start: np.ndarray  # (N+1,)
    nbr: np.ndarray  # (R,)
    pos: np.ndarray  # (R,)

    @classmethod
    def from_index(cls, index: TemporalIndex) -> NodeRows:
        """Share the arrays of an index; copy them if it is on a GPU. So make them once for many questions."""
        return cls(*(x.cpu().numpy() for x in (index.row_start, index.nbr, index.pos)))


@dataclass(frozen=True)
class Neighborhood:
    """Nodes near a source, as walks over latest events reach them. ``node`` is ascending and distinct."""

    node: np.ndarray  # (n,) int64
    partner: np.ndarray  # (n,) events with the source among its latest ones
    last: np.ndarray  # (n,) position of the last of them; -1 without
    two_hops: np.ndarray  # (n,) share of walks of two steps that end at the node: partners of partners
    three_hops: np.ndarray  # (n,) share of walks of three steps: nodes that share partners with the source's partners


def find_neighborhood(rows: NodeRows, source: int, cut: int) -> Neighborhood:
    """Return the partners of a source, their partners and co-visited nodes, over the first ``cut`` events."""
    node, last = (np.empty(MAX_NODES, np.int64) for _ in range(2))
    sums = np.zeros((3, MAX_NODES))
    slots = np.zeros(1 << TABLE_BITS, np.int32)
    n = _walk(
        rows.row_start, rows.nbr, rows.pos, source, cut, MAX_OWN_EVENTS, np.array(WALK_EVENTS), slots, node, last, sums
    )
    order = np.argsort(node[:n])
    partner, two_hops, three_hops = sums[:, order]
    return Neighborhood(node[order], partner, last[order], two_hops, three_hops)


@njit(inline="always")
def _find_or_add(slots, node, last, n, v, position):  # type: ignore[no-untyped-def]
    """Return the place of ``v`` in ``node`` and the number of nodes; add ``v`` with ``position`` if it is new."""
    slot = np.int64((np.uint64(v) * _HASH_FACTOR) >> _HASH_SHIFT)
    while slots[slot] != 0 and node[slots[slot] - 1] != v:
        slot = (slot + 1) & (len(slots) - 1)
    if slots[slot] == 0:
        node[n], last[n] = v, position
        n += 1
        slots[slot] = n
    return slots[slot] - 1, n


@njit(cache=True)
def _walk(row_start, nbr, pos, source, cut, max_own, width, slots, node, last, sums):  # type: ignore[no-untyped-def]
    """Fill the nodes that walks reach, in order of first arrival, with their sums by steps; return how many.

    ``slots``: an empty hash table, place in ``node`` + 1. ``sums``: (3, nodes) zeros.
    """
    n = 0
    degree = degree_scalar(row_start, pos, source, cut)
    if degree == 0:
        return n
    end = row_start[source] + degree
    for i in range(end - 1, max(end - max_own, row_start[source]) - 1, -1):
        place, n = _find_or_add(slots, node, last, n, nbr[i], pos[i])
        sums[0, place] += 1.0
    own = min(degree, width[0])
    for i in range(end - own, end):
        v = nbr[i]
        v_end = row_start[v] + degree_scalar(row_start, pos, v, cut)
        v_n = min(v_end - row_start[v], width[1])
        for j in range(v_end - v_n, v_end):
            w = nbr[j]
            two = 1.0 / (own * v_n)
            place, n = _find_or_add(slots, node, last, n, w, -1)
            sums[1, place] += two
            w_end = row_start[w] + degree_scalar(row_start, pos, w, cut)
            w_n = min(w_end - row_start[w], width[2])
            for k in range(w_end - w_n, w_end):
                place, n = _find_or_add(slots, node, last, n, nbr[k], -1)
                sums[2, place] += two / w_n
    return n
