"""GrowingIndex: a `TemporalIndex` that takes new events at once.

Every row has spare entries at its end. A spare entry has a position past the last event, so no ``cut`` ever sees it,
and the lookups of `TemporalIndex` work unchanged. A full row takes spare entries from the rows around it, which are
moved. When half of the spare entries are used up, another thread builds the index again with new ones (compaction).
Appends and lookups go on meanwhile; the next append after it uses the new arrays.

A query at ``cut`` gives the same answer before and after an append, so a snapshot is just a number. One thread at a
time may append or look something up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cordgt.events.backing import IndexData
from cordgt.events.times import tie_starts
from cordgt.history.index import TemporalIndex, lower_bound_scalar
from cordgt.history.index_builder import build_index, index_dtype

Ids = npt.NDArray[Any]
Events = tuple[Ids, Ids, npt.NDArray[np.float64], Ids]  # source, destination, elapsed time, start of the tie
MIN_SPARE_EVENTS = 10_000
FIRST_WINDOW = 64  # rows that are moved first to make room; twice as many if they have too little


@dataclass(frozen=True)
class SpareRoom:
    """The least room for more that an index is built with."""

    entries: int = 8  # per row
    nodes: int = 1024
    events: int = MIN_SPARE_EVENTS


def start_thread(work: Callable[[], None]) -> None:
    """Do work in another thread."""
    threading.Thread(target=work, name="cordgt-compaction", daemon=True).start()


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
        spare: SpareRoom = SpareRoom(),
        start_work: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        self._spare, self._start_work = spare, start_work
        elapsed = np.asarray(elapsed, np.float64)
        events = np.asarray(src), np.asarray(dst), elapsed, tie_starts(elapsed)
        self._layout = _Layout.build(events, n_nodes, np.zeros(0, np.int64), spare)
        self._compacted: _Layout | None = None  # the result of the other thread
        self._is_compacting = False
        self.n_builds = 1

    @property
    def n_events(self) -> int:
        return self._layout.n_events

    @property
    def n_nodes(self) -> int:
        return self._layout.n_nodes

    @property
    def src(self) -> Ids:
        """(E,) source of each event."""
        return self._layout.src[: self.n_events]

    @property
    def dst(self) -> Ids:
        """(E,) destination of each event."""
        return self._layout.dst[: self.n_events]

    @property
    def elapsed(self) -> npt.NDArray[np.float64]:
        """(E,) time since the first event."""
        return self._layout.elapsed[: self.n_events]

    @property
    def tie_start(self) -> Ids:
        """(E,) position of the first event with the same time."""
        return self._layout.tie_start[: self.n_events]

    @property
    def is_compacting(self) -> bool:
        """Whether the index is built again now, or the result waits for the next append."""
        return self._is_compacting

    def index(self) -> TemporalIndex:
        """Return the index of all events so far. Nothing is copied; use it only until the next append.

        Its arrays of events have room for more, because lookups also read the position of a spare entry.
        """
        layout = self._layout
        return TemporalIndex.from_arrays(layout.data(), layout.elapsed, layout.tie_start, layout.src)

    def append(self, src: Ids, dst: Ids, elapsed: npt.NDArray[np.float64], n_nodes: int) -> None:
        """Add later events. ``elapsed`` never decreases. ``n_nodes``: number of nodes with those of the new events."""
        if not len(src):
            return
        start = self.n_events
        tied = start and elapsed[0] == self.elapsed[-1]
        ties = tie_starts(elapsed, start=start, first=int(self.tie_start[-1]) if tied else None)
        self._take_compacted()
        old, new = self._layout, (np.asarray(src), np.asarray(dst), np.asarray(elapsed, np.float64), ties)
        if not old.append(new, n_nodes):  # no room at all, before the other thread was ready
            joined = tuple(np.concatenate(pair) for pair in zip(old.events(0, start), new, strict=True))
            self._layout = _Layout.build(joined, n_nodes, old.recent, self._spare)
            self._is_compacting, self._compacted = False, None
            self.n_builds += 1
        elif self._layout.is_half_full and not self._is_compacting:
            self._start_compaction()

    def _start_compaction(self) -> None:
        """Build the index of the events so far in another thread. Later events do not change what it reads."""
        old, spare = self._layout, self._spare
        events, n_nodes, recent = old.events(0, old.n_events), old.n_nodes, old.recent.copy()

        def compact() -> None:
            built = _Layout.build(events, n_nodes, recent, spare)
            if self._layout is old:
                self._compacted = built

        self._is_compacting = True
        self._start_work(compact)

    def _take_compacted(self) -> None:
        """Use the arrays of the other thread, if it is ready, with the events that came meanwhile."""
        built, old = self._compacted, self._layout
        if built is None:
            return
        if built.append(old.events(built.n_events, old.n_events), old.n_nodes):
            self._layout = built
            self.n_builds += 1
        self._is_compacting, self._compacted = False, None


@dataclass
class _Layout:
    """The arrays of an index with spare entries, and the events behind them.

    Shapes: N nodes and E events with room for more of both. One entry more than E, so that the position of a spare
    entry can be read too.
    """

    arrays: dict[str, Ids]  # of `IndexData`
    row_length: npt.NDArray[np.int64]  # (N,) entries of each row without spare ones
    pair_length: npt.NDArray[np.int64]  # (N,) distinct neighbors
    recent: npt.NDArray[np.int64]  # (N,) entries since the arrays were built
    src: Ids
    dst: Ids
    elapsed: npt.NDArray[np.float64]
    tie_start: Ids
    n_events: int
    n_nodes: int
    half_events: int  # with more events or nodes, half of the room is used up
    half_nodes: int

    @classmethod
    def build(cls, events: Any, n_nodes: int, recent: npt.NDArray[np.int64], spare: SpareRoom) -> _Layout:
        """Index events. Rows that grew since the last time (``recent``) get more spare entries."""
        n_events = len(events[0])
        event_room = n_events + max(spare.events, n_events // 4)
        node_room = n_nodes + max(spare.nodes, n_nodes // 8)
        dtype = index_dtype(node_room, event_room)
        src, dst, ties = (np.ascontiguousarray(events[i], dtype) for i in (0, 1, 3))
        dense = build_index(src, dst, ties, n_nodes)
        length, n_pairs, grown = (np.zeros(node_room, np.int64) for _ in range(3))
        length[:n_nodes] = np.diff(dense.arrays["row_start"])
        n_pairs[:n_nodes] = np.diff(dense.arrays["pair_start"])
        grown[: len(recent)] = recent[:node_room]
        room = spare.entries + length // 4 + 2 * grown
        row_start, pair_start = (np.concatenate([[0], np.cumsum(x)]) for x in (length + room, n_pairs + room + 1))
        arrays = {
            "row_start": row_start,
            "nbr": np.full(row_start[-1], -1, dtype),
            "pos": np.full(row_start[-1], event_room, dtype),
            "nbr_degree": np.zeros(row_start[-1], dtype),
            "pair_start": pair_start,
            "pair_nbr": np.full(pair_start[-1], np.iinfo(dtype).max, dtype),
            "pair_pos_start": np.empty(pair_start[-1] + 1, np.int64),
            "pair_pos": np.full(row_start[-1], event_room, dtype),
        }
        _spread(*(dense.arrays[name] for name in arrays), *arrays.values())
        src, dst, ties = (_with_room(x, event_room + 1) for x in (src, dst, ties))
        elapsed = _with_room(events[2], event_room + 1, np.inf)  # still ascending, for a search by time
        half_full = (n_events + event_room) // 2, (n_nodes + node_room) // 2
        recent = np.zeros(node_room, np.int64)
        return cls(arrays, length, n_pairs, recent, src, dst, elapsed, ties, n_events, n_nodes, *half_full)

    @property
    def is_half_full(self) -> bool:
        """Whether half of the room for events or nodes is used up; then so is half of the spare entries."""
        return self.n_events > self.half_events or self.n_nodes > self.half_nodes

    def data(self) -> IndexData:
        """Return the arrays, and the lengths of the longest rows with their spare entries."""
        starts = {"max_degree": "row_start", "max_pairs": "pair_start", "max_meetings": "row_start"}
        longest = {name: int(np.diff(self.arrays[start]).max(initial=0)) for name, start in starts.items()}
        return IndexData(self.arrays, longest)

    def events(self, start: int, stop: int) -> Events:
        """Return the events from ``start`` to ``stop``; views, which later events do not change."""
        return self.src[start:stop], self.dst[start:stop], self.elapsed[start:stop], self.tie_start[start:stop]

    def append(self, events: Events, n_nodes: int) -> bool:
        """Add later events. Return False if there is no room; then this layout can no longer be used."""
        start, stop = self.n_events, self.n_events + len(events[0])
        if stop >= len(self.src) or n_nodes > len(self.row_length):
            return False
        for buffer, new in zip(self.events(start, stop), events, strict=True):
            buffer[:] = new
        rows = (self.arrays[name] for name in ("row_start", "nbr", "pos", "nbr_degree"))
        pairs = [self.arrays[name] for name in ("pair_start", "pair_nbr", "pair_pos_start", "pair_pos")]
        entries = np.empty((2 * (stop - start), 3), np.int64)
        lengths = self.row_length, self.pair_length, self.recent
        n = _append_rows(*rows, *pairs, *lengths, self.src, self.dst, self.tie_start, start, stop, entries)  # type: ignore[call-arg]
        if n < 0:
            return False
        entries = entries[:n]
        entries = entries[np.lexsort((entries[:, 2], entries[:, 1], entries[:, 0]))]
        _append_pairs(self.arrays["row_start"], *pairs, self.row_length, self.pair_length, entries)  # type: ignore[call-arg]
        self.n_events, self.n_nodes = stop, n_nodes
        return True


def _with_room(values: npt.NDArray[Any], n: int, fill: float = 0) -> npt.NDArray[Any]:
    buffer = np.full(n, fill, values.dtype)
    buffer[: len(values)] = values
    return buffer


# --- Numba loops ---


@njit(cache=True, nogil=True)
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
    row_start, nbr, pos, nbr_degree, pair_start, pair_nbr, pair_pos_start, pair_pos, row_length, pair_length, recent,
    src, dst, tie_start, start, stop, entries,
):  # fmt: skip
    """Add the events from ``start`` to ``stop`` to the rows, and write the entries (node, neighbor, position).

    Returns the number of entries; -1 if there is no room left.
    """
    n = 0
    for e in range(start, stop):
        u, v, tie = src[e], dst[e], tie_start[e]
        u_visible = lower_bound_scalar(pos, row_start[u], row_start[u + 1], tie) - row_start[u]
        v_visible = lower_bound_scalar(pos, row_start[v], row_start[v + 1], tie) - row_start[v]
        for side in range(1 if u == v else 2):
            node, other, visible = (u, v, v_visible) if side == 0 else (v, u, u_visible)
            recent[node] += 1
            if row_length[node] == row_start[node + 1] - row_start[node] and not _make_room(
                node, row_start, nbr, pos, nbr_degree, pair_start, pair_nbr, pair_pos_start, pair_pos, row_length,
                pair_length, len(src) - 1,
            ):  # fmt: skip
                return -1
            end = row_start[node] + row_length[node]
            nbr[end], pos[end], nbr_degree[end] = other, e, visible
            entries[n, 0], entries[n, 1], entries[n, 2] = node, other, e
            row_length[node] += 1
            n += 1
    return n


@njit(cache=True)
def _make_room(  # type: ignore[no-untyped-def]
    node, row_start, nbr, pos, nbr_degree, pair_start, pair_nbr, pair_pos_start, pair_pos, row_length, pair_length,
    no_position,
):  # fmt: skip
    """Move the rows around a full one, so that it gets spare entries of theirs. Return False if there are too few."""
    n_nodes = len(row_length)
    wanted = 8 + row_length[node] // 8
    width, low, high = FIRST_WINDOW // 2, node, node
    while True:  # a larger window, until its spare entries are twice the wanted ones
        low, high = max(0, node - width), min(n_nodes, node + width)
        n_rows = row_start[high] - row_start[low]
        n_used = row_length[low:high].sum()
        if n_rows - n_used >= 2 * wanted:
            break
        if low == 0 and high == n_nodes:
            if n_rows == n_used:
                return False
            wanted = (n_rows - n_used + 1) // 2
            break
        width *= 2
    n_spare = n_rows - n_used
    first_row, first_pair = row_start[low], pair_start[low]
    rows = nbr[first_row : row_start[high]].copy(), pos[first_row : row_start[high]].copy()
    more = nbr_degree[first_row : row_start[high]].copy(), pair_pos[first_row : row_start[high]].copy()
    old_pair_nbr = pair_nbr[first_pair : pair_start[high]].copy()
    old_pair_pos_start = pair_pos_start[first_pair : pair_start[high]].copy()
    last_row, last_pair = row_start[high], pair_start[high]
    to_row, to_pair = first_row, first_pair
    old_row, old_pair = row_start[low], pair_start[low]
    n_given = 0
    for v in range(low, high):  # every other row keeps its share of the spare entries
        if v != node:
            n_given += (row_start[v + 1] - row_start[v] - row_length[v]) * (n_spare - wanted) // n_spare
    for v in range(low, high):
        next_row, next_pair = row_start[v + 1], pair_start[v + 1]
        spare = n_spare - n_given
        if v != node:
            spare = (next_row - old_row - row_length[v]) * (n_spare - wanted) // n_spare
        end = to_row + row_length[v] + spare
        for i in range(row_length[v]):
            at = old_row - first_row + i
            nbr[to_row + i], pos[to_row + i] = rows[0][at], rows[1][at]
            nbr_degree[to_row + i], pair_pos[to_row + i] = more[0][at], more[1][at]
        for i in range(to_row + row_length[v], end):
            nbr[i], pos[i], nbr_degree[i], pair_pos[i] = -1, no_position, 0, no_position
        # Each entry that is not yet in the pairs, and each spare one, may be a new pair. One more ends the last pair.
        n_waiting = 0
        while n_waiting < row_length[v] and more[1][old_row - first_row + row_length[v] - 1 - n_waiting] == no_position:
            n_waiting += 1
        pair_end = to_pair + pair_length[v] + n_waiting + spare + 1 if v < high - 1 else last_pair
        for k in range(pair_length[v]):
            at = old_pair - first_pair + k
            pair_nbr[to_pair + k] = old_pair_nbr[at]
            pair_pos_start[to_pair + k] = old_pair_pos_start[at] - old_row + to_row
        for k in range(to_pair + pair_length[v], pair_end):
            pair_nbr[k], pair_pos_start[k] = np.iinfo(pair_nbr.dtype).max, end
        row_start[v], pair_start[v] = to_row, to_pair
        to_row, to_pair, old_row, old_pair = end, pair_end, next_row, next_pair
    row_start[high], pair_start[high] = last_row, last_pair
    return True


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
