"""Which candidates compete with a true destination: every one, known ones only, or those the source has not met.

A shop recommends what it knows at the time of the query, and often only what the customer has not bought yet.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange

from cordgt.history.index import TemporalIndex, degree_scalar, run_loop
from cordgt.history.queries import Queries
from cordgt.tasks.link import LinkTask


def can_be_recommended(task: LinkTask, queries: Queries, candidates: np.ndarray) -> np.ndarray:
    """Return (B, M) bool: whether the protocol's ``filter`` lets each candidate compete. -1 never competes.

    "known": the candidate is the destination of an event before ``cut``. "seen": it is also no partner of the source
    before ``pair_cut``. Candidates: (B, M) int64.
    """
    allowed = candidates >= 0
    if task.protocol.filter == "none":
        return allowed
    allowed &= first_as_destination(task)[candidates] < queries.cut.cpu().numpy()[:, None]
    if task.protocol.filter == "seen":
        src, cut = (x.cpu().numpy() for x in (queries.src, queries.pair_cut))
        allowed &= ~is_partner(task.host_index, src, cut, candidates)
    return allowed


def first_as_destination(task: LinkTask) -> np.ndarray:
    """Return (N,) the position of each node's first event as a destination; the number of events if it has none."""
    if "first_as_destination" not in task.cache:
        dst, n = np.asarray(task.stream.dst), task.stream.n_events
        first = np.full(task.stream.n_nodes, n, dtype=np.int64)
        first[dst[::-1]] = np.arange(n)[::-1]
        task.cache["first_as_destination"] = first
    found: np.ndarray = task.cache["first_as_destination"]
    return found


def is_partner(index: TemporalIndex, src: np.ndarray, cut: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return (B, M) bool: whether each candidate has an event with its source among the first ``cut``.

    It reads each source's partners once, so it is faster than a search per pair. The index is on the CPU.
    """
    out = np.zeros(candidates.shape, dtype=np.bool_)
    rows = index.row_start, index.nbr, index.pos
    run_loop(_fill_is_partner, *rows, src, cut, np.ascontiguousarray(candidates), get_num_threads(), out)
    return out


@njit(parallel=True, cache=True)
def _fill_is_partner(row_start, nbr, pos, src, cut, candidates, n_parts, out):  # type: ignore[no-untyped-def]
    n_nodes = len(row_start) - 1
    for part in prange(n_parts):
        met = np.zeros(n_nodes, dtype=np.bool_)
        for i in range(part, len(src), n_parts):
            degree = degree_scalar(row_start, pos, src[i], cut[i])
            if degree == 0:
                continue
            start = row_start[src[i]]
            for k in range(start, start + degree):
                met[nbr[k]] = True
            for j in range(candidates.shape[1]):
                out[i, j] = 0 <= candidates[i, j] < n_nodes and met[candidates[i, j]]
            for k in range(start, start + degree):
                met[nbr[k]] = False
