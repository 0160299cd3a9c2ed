"""Build the arrays of a `TemporalIndex` in linear time, in memory or for files, without torch.

An *entry* is (node, neighbor, position, number of the neighbor's events strictly earlier in time). An event has two
entries, a self-loop has one. `iter_entries` yields them in stream order; `build_range` builds the index of a range of
nodes from them. `build_index` does so in memory for all nodes; `cordgt.store.index_writer` range by range, with files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from cordgt.events.backing import IndexData
from cordgt.events.times import tie_starts

Ids = npt.NDArray[Any]  # int32 or int64
Mask = npt.NDArray[np.bool_]
Keep = Callable[[slice], Mask]  # returns (n,) for a slice of events, True: index the event; empty: index all
KEEP_ALL = np.zeros(0, np.bool_)
_ENTRY_CHUNK = 1 << 14  # events per chunk of entries: fits into the processor's cache
_COUNT_CHUNK = 1 << 22  # events per chunk when counting degrees


class IndexArrays(NamedTuple):
    """The input of `TemporalIndex.from_arrays`."""

    data: IndexData
    elapsed: npt.NDArray[np.float64]  # (E,)
    tie_start: Ids  # (E,)
    src: Ids  # (E,)

    @classmethod
    def build(
        cls,
        src: npt.NDArray[Any],
        dst: npt.NDArray[Any],
        elapsed: npt.NDArray[Any],
        n_nodes: int,
        keep: npt.NDArray[Any] | None = None,
    ) -> IndexArrays:
        """Index the events where ``keep`` is True (all, if None). ``elapsed`` never decreases."""
        dtype = index_dtype(n_nodes, len(src))
        src, dst = (np.ascontiguousarray(x, dtype) for x in (src, dst))
        elapsed = np.ascontiguousarray(elapsed, np.float64)
        tie_start = tie_starts(elapsed, dtype=dtype)
        keep = None if keep is None else np.ascontiguousarray(keep, np.bool_)
        return cls(build_index(src, dst, tie_start, n_nodes, keep), elapsed, tie_start, src)


def index_dtype(n_nodes: int, n_events: int) -> np.dtype[Any]:
    """Return the type of node ids and positions in an index: int32 if they fit, else int64."""
    return np.dtype(np.int32 if max(n_nodes, 2 * n_events) < 2**31 - 1 else np.int64)


def build_index(src: Ids, dst: Ids, tie_start: Ids, n_nodes: int, keep: Mask | None = None) -> IndexData:
    """Build the index of the events (src, dst), each (E,), where ``keep`` (E,) is True; of all events if it is None."""

    def keep_chunk(chunk: slice) -> Mask:
        return KEEP_ALL if keep is None else keep[chunk]

    dtype = index_dtype(n_nodes, len(src))
    degree = count_degrees(src, dst, n_nodes, keep_chunk)
    entries = iter_entries(src, dst, tie_start, np.zeros(n_nodes, np.int64), keep_chunk, dtype, _ENTRY_CHUNK)
    return build_range((chunk for _, chunk in entries), 0, n_nodes, degree, dtype)


def count_degrees(src: Ids, dst: Ids, n_nodes: int, keep: Keep, start: int = 0) -> npt.NDArray[np.int64]:
    """Return (N,): the number of events of each node from position ``start`` on."""
    degree = np.zeros(n_nodes, np.int64)
    for chunk in _chunks(start, len(src), _COUNT_CHUNK):
        _count(np.asarray(src[chunk]), np.asarray(dst[chunk]), keep(chunk), degree)
    return degree


def iter_entries(
    src: Ids,
    dst: Ids,
    tie_start: Ids,
    before: npt.NDArray[np.int64],
    keep: Keep,
    dtype: Any,
    chunk_size: int,
    start: int = 0,
) -> Iterator[tuple[int, Ids]]:
    """Yield (number of events, their (n, 4) entries) for chunks of ``chunk_size`` events from position ``start`` on.

    ``before``: (N,) number of events of each node before ``start``. The next chunk overwrites the entries.
    """
    tie = int(tie_start[start - 1]) if start else 0
    degree = before.copy()
    visible = before - count_degrees(src[:start], dst[:start], len(before), keep, tie)
    entries = np.empty((2 * min(chunk_size, len(src) - start), 4), dtype)
    for chunk in _chunks(start, len(src), chunk_size):
        n, tie = _fill_entries(src, dst, tie_start, keep(chunk), chunk.start, chunk.stop, tie, degree, visible, entries)
        yield chunk.stop - chunk.start, entries[:n]


def build_range(entries: Iterable[Ids], low: int, high: int, degree: npt.NDArray[np.int64], dtype: Any) -> IndexData:
    """Build the index of the nodes ``low`` to ``high`` (exclusive) from all their entries in stream order.

    ``degree``: (N,) number of entries of each node. Offsets count from the start of the range. Entries get into the
    order (node, neighbor, position) without sorting: grouped by neighbor, then regrouped by node.
    """
    row_start = _offsets(degree[low:high])
    nbr, pos, nbr_degree = (np.empty(row_start[-1], dtype) for _ in range(3))
    fill = row_start[:-1].copy()
    for chunk in entries:
        _add_rows(chunk, low, fill, nbr, pos, nbr_degree)
    if high - low == len(degree):  # all nodes: rows grouped by node are, by symmetry, entries grouped by neighbor
        grouped = row_start, nbr, pos
    else:
        nbr_start = _offsets(np.bincount(nbr, minlength=len(degree)))
        grouped = nbr_start, *_regroup(row_start, nbr, pos, nbr_start)
    by_nbr, pair_pos = _regroup(*grouped, row_start)
    del grouped
    pair_start, pair_nbr, pair_pos_start = _distinct_pairs(row_start, by_nbr)
    arrays = {
        "row_start": row_start,
        "nbr": nbr,
        "pos": pos,
        "nbr_degree": nbr_degree,
        "pair_start": pair_start,
        "pair_nbr": pair_nbr,
        "pair_pos_start": pair_pos_start,
        "pair_pos": pair_pos,
    }
    starts = {"max_degree": row_start, "max_pairs": pair_start, "max_meetings": pair_pos_start}
    return IndexData(arrays, {name: int(np.diff(start).max(initial=0)) for name, start in starts.items()})


def _chunks(start: int, stop: int, chunk_size: int) -> Iterator[slice]:
    for low in range(start, stop, chunk_size):
        yield slice(low, min(low + chunk_size, stop))


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _distinct_pairs(row_start: npt.NDArray[np.int64], by_nbr: Ids) -> tuple[Ids, Ids, Ids]:
    """Return pair_start (n+1,), pair_nbr (U,) and pair_pos_start (U+1,) of rows ordered by neighbor."""
    is_first = np.ones(len(by_nbr), np.bool_)  # of its pair
    is_first[1:] = by_nbr[1:] != by_nbr[:-1]
    is_first[row_start[:-1][np.diff(row_start) > 0]] = True
    pair_pos_start = np.append(np.flatnonzero(is_first), len(by_nbr))
    return np.searchsorted(pair_pos_start, row_start), by_nbr[is_first], pair_pos_start


# --- Numba loops ---


@njit(cache=True, nogil=True)
def _count(src, dst, keep, degree):  # type: ignore[no-untyped-def]
    for e in range(len(src)):
        if len(keep) == 0 or keep[e]:
            degree[src[e]] += 1
            if dst[e] != src[e]:
                degree[dst[e]] += 1


@njit(cache=True, nogil=True)
def _fill_entries(src, dst, tie_start, keep, start, stop, tie, degree, visible, out):  # type: ignore[no-untyped-def]
    """Write the entries of events ``start`` to ``stop``; return their number and the start of the last event's tie.

    ``degree``: (N,) events of each node so far; ``visible``: those of them before the tie that starts at ``tie``.
    """
    n = 0
    for e in range(start, stop):
        if tie_start[e] == e:  # a later time: the events of the previous time become visible
            for g in range(tie, e):
                visible[src[g]] = degree[src[g]]
                visible[dst[g]] = degree[dst[g]]
            tie = e
        if len(keep) == 0 or keep[e - start]:
            u, v = src[e], dst[e]
            out[n, 0], out[n, 1], out[n, 2], out[n, 3] = u, v, e, visible[v]
            n += 1
            degree[u] += 1
            if u != v:
                out[n, 0], out[n, 1], out[n, 2], out[n, 3] = v, u, e, visible[u]
                n += 1
                degree[v] += 1
    return n, tie


@njit(cache=True, nogil=True)
def _add_rows(entries, low, fill, nbr, pos, nbr_degree):  # type: ignore[no-untyped-def]
    """Append each entry to its row; ``fill``: (nodes,) current end of each row."""
    for i in range(len(entries)):
        u = entries[i, 0] - low
        at = fill[u]
        nbr[at], pos[at], nbr_degree[at] = entries[i, 1], entries[i, 2], entries[i, 3]
        fill[u] = at + 1


@njit(cache=True, nogil=True)
def _regroup(start, member, pos, member_start):  # type: ignore[no-untyped-def]
    """Regroup (group, member, pos) from by-group to by-member; each member's groups are in ascending order."""
    group_of, pos_of = np.empty_like(member), np.empty_like(pos)
    fill = member_start[:-1].copy()
    for group in range(len(start) - 1):
        for i in range(start[group], start[group + 1]):
            at = fill[member[i]]
            group_of[at], pos_of[at] = group, pos[i]
            fill[member[i]] = at + 1
    return group_of, pos_of
