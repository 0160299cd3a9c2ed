"""Builds the arrays of a `TemporalIndex` in linear time, in memory or for files, without torch.

An *entry* is (node, neighbour, position, number of the neighbour's events strictly earlier in time). An event has two
entries, a self-loop one. `entries_of` lists them in stream order; `build_range` makes index arrays of those of a range
of nodes. `build_index` does so in memory, for all nodes at once; `cordgt.store.index_writer` range by range, with files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cordgt.events.backing import IndexData

Ids = npt.NDArray[Any]  # int32 or int64
Mask = npt.NDArray[np.bool_]
Keep = Callable[[slice], Mask]  # which events of a slice count, (n,); an empty mask: all of them
ALL = np.zeros(0, np.bool_)
EVENTS_IN_MEMORY = 1 << 14  # events whose entries are listed together: they fit into a processor's cache
EVENTS_COUNTED = 1 << 22


def index_dtype(n_nodes: int, n_events: int) -> np.dtype[Any]:
    """The type of node ids and positions in an index: int32 where they fit, else int64."""
    return np.dtype(np.int32 if max(n_nodes, 2 * n_events) < 2**31 - 1 else np.int64)


def build_index(src: Ids, dst: Ids, tie_start: Ids, n_nodes: int, keep: Mask | None = None) -> IndexData:
    """The index of the events (src, dst), each (E,), where ``keep`` (E,) is True; of all of them if it is None."""

    def keep_part(part: slice) -> Mask:
        return ALL if keep is None else keep[part]

    dtype = index_dtype(n_nodes, len(src))
    degree = count_degrees(src, dst, n_nodes, keep_part)
    entries = entries_of(src, dst, tie_start, np.zeros(n_nodes, np.int64), keep_part, dtype, EVENTS_IN_MEMORY)
    return build_range((lines for _, lines in entries), 0, n_nodes, degree, dtype)


def count_degrees(src: Ids, dst: Ids, n_nodes: int, keep: Keep, start: int = 0) -> npt.NDArray[np.int64]:
    """(N,) number of events each node has from position ``start`` on."""
    degree = np.zeros(n_nodes, np.int64)
    for part in _slices(start, len(src), EVENTS_COUNTED):
        _count(np.asarray(src[part]), np.asarray(dst[part]), keep(part), degree)
    return degree


def entries_of(
    src: Ids,
    dst: Ids,
    tie_start: Ids,
    before: npt.NDArray[np.int64],
    keep: Keep,
    dtype: Any,
    at_once: int,
    start: int = 0,
) -> Iterator[tuple[int, Ids]]:
    """Yields a number of events and their (n, 4) entries, from the event at ``start`` on, ``at_once`` events at a time.

    ``before``: (N,) number of events each node has before ``start``. The next step overwrites the entries.
    """
    tie = int(tie_start[start - 1]) if start else 0
    degree = before.copy()
    visible = before - count_degrees(src[:start], dst[:start], len(before), keep, tie)
    entries = np.empty((2 * min(at_once, len(src) - start), 4), dtype)
    for part in _slices(start, len(src), at_once):
        n, tie = _list_entries(src, dst, tie_start, keep(part), part.start, part.stop, tie, degree, visible, entries)
        yield part.stop - part.start, entries[:n]


def build_range(entries: Iterable[Ids], low: int, high: int, degree: npt.NDArray[np.int64], dtype: Any) -> IndexData:
    """The index of the nodes from ``low`` to ``high``, from all their entries in stream order.

    ``degree``: (N,) number of entries of each node. Offsets count from the start of the range. A row is ordered by
    (neighbour, position) without sorting: rows grouped by neighbour, then regrouped by node.
    """
    row_start = _offsets(degree[low:high])
    nbr, pos, nbr_degree = (np.empty(row_start[-1], dtype) for _ in range(3))
    fill = row_start[:-1].copy()
    for lines in entries:
        _add_rows(lines, low, fill, nbr, pos, nbr_degree)
    if high - low == len(degree):  # every event is in both of its rows: the rows are grouped by neighbour already
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


def _slices(start: int, stop: int, at_once: int) -> Iterator[slice]:
    for low in range(start, stop, at_once):
        yield slice(low, min(low + at_once, stop))


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


# -------------------- compiled


@njit(cache=True)
def _count(src, dst, keep, degree):  # type: ignore[no-untyped-def]
    for e in range(len(src)):
        if len(keep) == 0 or keep[e]:
            degree[src[e]] += 1
            if dst[e] != src[e]:
                degree[dst[e]] += 1


@njit(cache=True)
def _list_entries(src, dst, tie_start, keep, start, stop, tie, degree, visible, out):  # type: ignore[no-untyped-def]
    """Writes the entries of events ``start`` to ``stop``; returns their number, and where the last event's tie starts.

    ``degree``: (N,) events of each node so far; ``visible``: those of them before the tie that starts at ``tie``.
    """
    n = 0
    for e in range(start, stop):
        if tie_start[e] == e:  # time moved on: the events of the last moment become visible
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


@njit(cache=True)
def _add_rows(entries, low, fill, nbr, pos, nbr_degree):  # type: ignore[no-untyped-def]
    """Writes each entry behind those its row has; ``fill``: (nodes,) where each row ends so far."""
    for i in range(len(entries)):
        u = entries[i, 0] - low
        at = fill[u]
        nbr[at], pos[at], nbr_degree[at] = entries[i, 1], entries[i, 2], entries[i, 3]
        fill[u] = at + 1


@njit(cache=True)
def _regroup(start, member, pos, member_start):  # type: ignore[no-untyped-def]
    """Groups (group, member, pos), listed by group, by member instead: each member's groups come in ascending order."""
    group_of, pos_of = np.empty_like(member), np.empty_like(pos)
    fill = member_start[:-1].copy()
    for group in range(len(start) - 1):
        for i in range(start[group], start[group + 1]):
            at = fill[member[i]]
            group_of[at], pos_of[at] = group, pos[i]
            fill[member[i]] = at + 1
    return group_of, pos_of


@njit(cache=True)
def _distinct_pairs(row_start, by_nbr):  # type: ignore[no-untyped-def]
    """Where each node's pairs start, (n+1,); their neighbours, (U,); where each pair's events start, (U+1,)."""
    n_pairs = 0
    for u in range(len(row_start) - 1):
        for i in range(row_start[u], row_start[u + 1]):
            if i == row_start[u] or by_nbr[i] != by_nbr[i - 1]:
                n_pairs += 1
    pair_start = np.zeros(len(row_start), np.int64)
    pair_nbr = np.empty(n_pairs, by_nbr.dtype)
    pair_pos_start = np.full(n_pairs + 1, len(by_nbr), np.int64)
    at = 0
    for u in range(len(row_start) - 1):
        for i in range(row_start[u], row_start[u + 1]):
            if i == row_start[u] or by_nbr[i] != by_nbr[i - 1]:
                pair_nbr[at], pair_pos_start[at] = by_nbr[i], i
                at += 1
        pair_start[u + 1] = at
    return pair_start, pair_nbr, pair_pos_start
