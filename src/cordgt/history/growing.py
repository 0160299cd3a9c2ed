"""GrowingIndex: a `TemporalIndex` that takes new events at once.

Every row has spare entries at its end. A spare entry has a position past the last event, so no ``cut`` ever sees it,
and the lookups of `TemporalIndex` work unchanged. When the spare entries of one row, or the spare nodes or events, are
used up, the whole index is built again with new spare entries. Building is linear in the number of events.

A query at ``cut`` gives the same answer before and after an append, so a snapshot is just a number. One thread at a
time may append or look something up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cordgt.events.backing import IndexData
from cordgt.events.times import tie_starts
from cordgt.history.index import TemporalIndex, lower_bound_scalar
from cordgt.history.index_builder import build_index, index_dtype

Ids = npt.NDArray[Any]
MIN_SPARE = 8  # entries per row
MIN_SPARE_NODES = 1024
MIN_SPARE_EVENTS = 10_000


class GrowingIndex:
    """The index of a stream that grows. `index` returns it as a `TemporalIndex`.

    Shapes: N nodes and E events with room for more of both.
    """

    def __init__(
        self,
        src: Ids,
        dst: Ids,
        elapsed: npt.NDArray[np.float64],
        n_nodes: int,
        *,
        min_spare: int = MIN_SPARE,
        min_spare_nodes: int = MIN_SPARE_NODES,
        min_spare_events: int = MIN_SPARE_EVENTS,
    ) -> None:
        self._min_spare = min_spare
        self._min_spare_nodes = min_spare_nodes
        self._min_spare_events = min_spare_events
        self.n_events = len(src)
        self.n_nodes = n_nodes
        self.n_builds = 0
        self._recent = np.zeros(0, np.int64)  # (N,) entries of each row since the last build
        self._build(np.asarray(src), np.asarray(dst), np.asarray(elapsed, np.float64), tie_starts(np.asarray(elapsed)))

    @property
    def elapsed(self) -> npt.NDArray[np.float64]:
        """(E,) time since the first event."""
        return self._elapsed[: self.n_events]

    @property
    def tie_start(self) -> Ids:
        """(E,) position of the first event with the same time."""
        return self._tie_start[: self.n_events]

    @property
    def src(self) -> Ids:
        """(E,) source of each event."""
        return self._src[: self.n_events]

    @property
    def dst(self) -> Ids:
        """(E,) destination of each event."""
        return self._dst[: self.n_events]

    def index(self) -> TemporalIndex:
        """Return the index of all events so far. Nothing is copied; an append changes it, at later positions only.

        Its arrays of events have room for more, because lookups also read the position of a spare entry.
        """
        return TemporalIndex.from_arrays(self._data(), self._elapsed, self._tie_start, self._src)

    def append(self, src: Ids, dst: Ids, elapsed: npt.NDArray[np.float64], n_nodes: int) -> None:
        """Add later events. ``elapsed`` never decreases. ``n_nodes``: number of nodes with those of the new events."""
        start, stop = self.n_events, self.n_events + len(src)
        if start == stop:
            return
        tied = start and elapsed[0] == self._elapsed[start - 1]
        ties = tie_starts(elapsed, start=start, first=int(self._tie_start[start - 1]) if tied else None)
        has_room = stop < len(self._src) and n_nodes <= len(self._row_length)
        if has_room:
            for buffer, new in self._buffers(src, dst, elapsed, ties):
                buffer[start:stop] = new
            has_room = self._append_entries(start, stop)
        self.n_events, self.n_nodes = stop, n_nodes
        if not has_room:
            joined = (np.concatenate([buffer[:start], new]) for buffer, new in self._buffers(src, dst, elapsed, ties))
            self._build(*joined)

    def _data(self) -> IndexData:
        """Return the arrays with their spare entries, and the lengths of the longest rows."""
        starts = {"max_degree": "row_start", "max_pairs": "pair_start", "max_meetings": "row_start"}
        longest = {name: int(np.diff(self._arrays[start]).max(initial=0)) for name, start in starts.items()}
        return IndexData(self._arrays, longest)

    def _append_entries(self, start: int, stop: int) -> bool:
        """Add the events from ``start`` to ``stop``, which the buffers hold. Return False if a row has no room."""
        arrays = self._arrays
        rows = (arrays[name] for name in ("row_start", "nbr", "pos", "nbr_degree"))
        entries = np.empty((2 * (stop - start), 3), np.int64)
        events = self._src, self._dst, self._tie_start, start, stop
        n = _append_rows(*rows, self._row_length, self._recent, *events, entries)  # type: ignore[call-arg]
        if n < 0:
            return False
        entries = entries[:n]
        entries = entries[np.lexsort((entries[:, 2], entries[:, 1], entries[:, 0]))]
        pairs = (arrays[name] for name in ("row_start", "pair_start", "pair_nbr", "pair_pos_start", "pair_pos"))
        _append_pairs(*pairs, self._row_length, self._pair_length, entries)  # type: ignore[call-arg]
        return True

    def _buffers(self, src: Ids, dst: Ids, elapsed: Ids, ties: Ids) -> list[tuple[Ids, Ids]]:
        return [(self._src, src), (self._dst, dst), (self._elapsed, elapsed), (self._tie_start, ties)]

    def _build(self, src: Ids, dst: Ids, elapsed: npt.NDArray[np.float64], ties: Ids) -> None:
        """Build the index of all events, with spare entries; rows that grew since the last build get more of them."""
        n_events = len(src) + max(self._min_spare_events, len(src) // 4)
        n_nodes = self.n_nodes + max(self._min_spare_nodes, self.n_nodes // 8)
        dtype = index_dtype(n_nodes, n_events)
        src, dst, ties = (np.ascontiguousarray(x, dtype) for x in (src, dst, ties))
        dense = build_index(src, dst, ties, self.n_nodes)
        length = np.zeros(n_nodes, np.int64)
        length[: self.n_nodes] = np.diff(dense.arrays["row_start"])
        n_pairs = np.zeros(n_nodes, np.int64)
        n_pairs[: self.n_nodes] = np.diff(dense.arrays["pair_start"])
        recent = np.zeros(n_nodes, np.int64)
        known = min(n_nodes, len(self._recent))
        recent[:known] = self._recent[:known]
        spare = self._min_spare + length // 4 + 2 * recent
        row_start, pair_start = (np.concatenate([[0], np.cumsum(x)]) for x in (length + spare, n_pairs + spare + 1))
        no_node = np.iinfo(dtype).max
        arrays = {
            "row_start": row_start,
            "nbr": np.full(row_start[-1], -1, dtype),
            "pos": np.full(row_start[-1], n_events, dtype),
            "nbr_degree": np.zeros(row_start[-1], dtype),
            "pair_start": pair_start,
            "pair_nbr": np.full(pair_start[-1], no_node, dtype),
            "pair_pos_start": np.empty(pair_start[-1] + 1, np.int64),
            "pair_pos": np.full(row_start[-1], n_events, dtype),
        }
        old = (dense.arrays[name] for name in arrays)
        _spread(*old, *arrays.values())
        self._arrays: dict[str, npt.NDArray[Any]] = arrays
        self._row_length, self._pair_length, self._recent = length, n_pairs, np.zeros(n_nodes, np.int64)
        # One entry more than there are positions, so that the position of a spare entry can be read too.
        self._src, self._dst, self._tie_start = (_with_room(x, n_events + 1) for x in (src, dst, ties))
        self._elapsed = _with_room(elapsed, n_events + 1)
        self.n_builds += 1


def _with_room(values: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    buffer = np.zeros(n, values.dtype)
    buffer[: len(values)] = values
    return buffer


# --- Numba loops ---


@njit(cache=True)
def _spread(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, pair_start, pair_nbr, pair_pos_start, pair_pos,
    new_row_start, new_nbr, new_pos, new_nbr_degree, new_pair_start, new_pair_nbr, new_pair_pos_start, new_pair_pos,
):  # fmt: skip
    """Copy every row of an index into rows with spare entries."""
    n_old = len(row_start) - 1
    for u in range(len(new_row_start) - 1):
        n_copied = 0
        if u < n_old:
            shift = new_row_start[u] - row_start[u]
            for i in range(row_start[u], row_start[u + 1]):
                new_nbr[i + shift], new_pos[i + shift] = nbr[i], pos[i]
                new_nbr_degree[i + shift], new_pair_pos[i + shift] = nbr_degree[i], pair_pos[i]
            n_copied = pair_start[u + 1] - pair_start[u]
            for k in range(n_copied):
                old = pair_start[u] + k
                new_pair_nbr[new_pair_start[u] + k] = pair_nbr[old]
                new_pair_pos_start[new_pair_start[u] + k] = pair_pos_start[old] + shift
        for k in range(new_pair_start[u] + n_copied, new_pair_start[u + 1]):
            new_pair_pos_start[k] = new_row_start[u + 1]
    new_pair_pos_start[-1] = new_row_start[-1]


@njit(cache=True)
def _append_rows(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, row_length, recent, src, dst, tie_start, start, stop, entries
):
    """Add the events from ``start`` to ``stop`` to the rows, and write the entries (node, neighbor, position).

    Returns the number of entries; -1 as soon as a row is full.
    """
    n = 0
    for e in range(start, stop):
        u, v, tie = src[e], dst[e], tie_start[e]
        u_visible = lower_bound_scalar(pos, row_start[u], row_start[u + 1], tie) - row_start[u]
        v_visible = lower_bound_scalar(pos, row_start[v], row_start[v + 1], tie) - row_start[v]
        for side in range(1 if u == v else 2):
            node, other, visible = (u, v, v_visible) if side == 0 else (v, u, u_visible)
            end = row_start[node] + row_length[node]
            recent[node] += 1
            if end == row_start[node + 1]:
                return -1
            nbr[end], pos[end], nbr_degree[end] = other, e, visible
            entries[n, 0], entries[n, 1], entries[n, 2] = node, other, e
            row_length[node] += 1
            n += 1
    return n


@njit(cache=True)
def _append_pairs(  # type: ignore[no-untyped-def]
    row_start, pair_start, pair_nbr, pair_pos_start, pair_pos, row_length, pair_length, entries
):
    """Merge entries, sorted by (node, neighbor, position), into the pairs: one pass over each row, from its end."""
    stop = len(entries)
    while stop > 0:
        node = entries[stop - 1, 0]
        begin = stop
        n_new_pairs = 0
        first, last = pair_start[node], pair_start[node] + pair_length[node]
        while begin > 0 and entries[begin - 1, 0] == node:
            begin -= 1
            other = entries[begin, 1]
            if begin == 0 or entries[begin - 1, 0] != node or entries[begin - 1, 1] != other:
                pair = lower_bound_scalar(pair_nbr, first, last, other)
                n_new_pairs += pair == last or pair_nbr[pair] != other
        write = row_start[node] + row_length[node]  # past the last entry, with the new ones
        read = write - (stop - begin)  # past the last old entry
        to_pair, pair = last + n_new_pairs, last - 1
        while stop > begin:
            other = entries[stop - 1, 1]
            while pair >= first and pair_nbr[pair] >= other:
                is_same = pair_nbr[pair] == other
                if is_same:  # the new events of a pair stand after its old ones
                    while stop > begin and entries[stop - 1, 1] == other:
                        stop -= 1
                        write -= 1
                        pair_pos[write] = entries[stop, 2]
                while read > pair_pos_start[pair]:
                    read -= 1
                    write -= 1
                    pair_pos[write] = pair_pos[read]
                to_pair -= 1
                pair_nbr[to_pair], pair_pos_start[to_pair] = pair_nbr[pair], write
                pair -= 1
                if is_same:
                    break
            if stop > begin and entries[stop - 1, 1] == other:  # a new pair
                while stop > begin and entries[stop - 1, 1] == other:
                    stop -= 1
                    write -= 1
                    pair_pos[write] = entries[stop, 2]
                to_pair -= 1
                pair_nbr[to_pair], pair_pos_start[to_pair] = other, write
        pair_length[node] += n_new_pairs
