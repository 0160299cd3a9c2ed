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
    n_leaves = WALK_EVENTS[0] * (1 + WALK_EVENTS[1] * (1 + WALK_EVENTS[2]))
    node = np.empty(MAX_OWN_EVENTS + n_leaves, np.int64)
    hop, weight, last = np.empty(len(node), np.int8), np.empty(len(node)), np.empty(len(node), np.int64)
    n = _walk(
        rows.row_start, rows.nbr, rows.pos, source, cut, MAX_OWN_EVENTS, np.array(WALK_EVENTS), node, hop, weight, last
    )
    node, hop, weight, last = node[:n], hop[:n], weight[:n], last[:n]
    distinct, at = np.unique(node, return_inverse=True)
    sums = [np.bincount(at[hop == k], weight[hop == k], minlength=len(distinct)) for k in (1, 2, 3)]
    latest = np.full(len(distinct), -1)
    np.maximum.at(latest, at[hop == 1], last[hop == 1])
    return Neighborhood(distinct, sums[0], latest, sums[1], sums[2])


@njit(cache=True)
def _walk(row_start, nbr, pos, source, cut, max_own, width, out_node, out_hop, out_weight, out_last):  # type: ignore[no-untyped-def]
    """Write the nodes of all walks, with their number of steps and weight; return how many."""
    n = 0
    degree = degree_scalar(row_start, pos, source, cut)
    if degree == 0:
        return n
    end = row_start[source] + degree
    for i in range(end - 1, max(end - max_own, row_start[source]) - 1, -1):
        out_node[n], out_hop[n], out_weight[n], out_last[n] = nbr[i], 1, 1.0, pos[i]
        n += 1
    own = min(degree, width[0])
    for i in range(end - own, end):
        v = nbr[i]
        v_end = row_start[v] + degree_scalar(row_start, pos, v, cut)
        v_n = min(v_end - row_start[v], width[1])
        for j in range(v_end - v_n, v_end):
            w = nbr[j]
            two = 1.0 / (own * v_n)
            out_node[n], out_hop[n], out_weight[n], out_last[n] = w, 2, two, -1
            n += 1
            w_end = row_start[w] + degree_scalar(row_start, pos, w, cut)
            w_n = min(w_end - row_start[w], width[2])
            for k in range(w_end - w_n, w_end):
                out_node[n], out_hop[n], out_weight[n], out_last[n] = nbr[k], 3, two / w_n, -1
                n += 1
    return n
