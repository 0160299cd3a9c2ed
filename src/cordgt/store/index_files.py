"""The two views of the index (`cordgt.past.index`) written to files, within bounded memory.

Entries of the rows are dealt into files by ranges of nodes, in one pass over the events; each range then fits into
memory, where its rows and its pairs are put in order and written behind those of the range before. The longest row must
fit too. Bit for bit what ``TemporalIndex.build`` gives.

An index that lies there already is continued: its rows are read range by range, and the new entries put behind them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from cordgt.store.folder import INDEX
from cordgt.store.growing import Writer, Written, abandoned_on_error, mapped, pieces

LONGEST = ("max_degree", "max_pairs", "max_meetings")
BYTES_PER_ENTRY = 64  # in memory, while a range is put in order
EVENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class IndexFiles:
    """What was written: each array by name, and the longest row, neighbourhood and pair."""

    arrays: dict[str, Written]
    longest: dict[str, int]


@dataclass(frozen=True, eq=False)
class Earlier:
    """An index of the first ``n_events`` events, to be continued."""

    arrays: Mapping[str, npt.NDArray[Any]]
    n_events: int


@dataclass
class _Entries:
    """The entries of a range of nodes in a file, which is open only while some are added: there may be many ranges."""

    path: Path
    kind: Any
    rows: int = 0

    def append(self, entries: npt.NDArray[Any]) -> None:
        with self.path.open("ab") as file:
            file.write(memoryview(np.ascontiguousarray(entries).reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
        self.rows += len(entries)

    def array(self) -> npt.NDArray[Any]:
        """(rows, 4), mapped."""
        return mapped(self.path, self.kind, self.rows, 4)


def narrow(n_nodes: int, n_events: int) -> Any:
    """The type of ids and positions in an index."""
    return np.int32 if max(n_nodes, 2 * n_events) < 2**31 - 1 else np.int64


def write_index(
    folder: Path,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    n_nodes: int,
    *,
    memory: int,
    hidden: npt.NDArray[np.bool_] | None = None,
    earlier: Earlier | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> IndexFiles:
    """Writes the arrays of the index of all events, or of those that touch no ``hidden`` node, into ``folder``.

    ``memory``: bytes that a range may take. ``told`` is called with numbers of events, each counted twice: once when it
    is dealt, once when it is put in order.
    """
    kind = narrow(n_nodes, len(src))
    hides = np.zeros(0, np.bool_) if hidden is None else np.ascontiguousarray(hidden)
    start = 0 if earlier is None else earlier.n_events
    before = _degrees_before(earlier, n_nodes)
    degree = before.copy()
    for part in pieces(len(src), start=start):
        _count(np.asarray(src[part]), np.asarray(dst[part]), hides, degree)
    bounds = _ranges(degree, max(memory // BYTES_PER_ENTRY, 1))
    scratch = folder / "ranges"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    dealt = _deal(scratch, src, dst, tie_start, hides, bounds, before, start, kind, told)
    found = _write_ranges(folder, dealt, bounds, degree, before, earlier, kind, told, len(src) - start)
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _degrees_before(earlier: Earlier | None, n_nodes: int) -> npt.NDArray[np.int64]:
    """(N,) how many events each node has in the index that is continued."""
    degree = np.zeros(n_nodes, np.int64)
    if earlier is not None:
        rows = np.diff(earlier.arrays["row_start"])
        degree[: len(rows)] = rows
    return degree


def _ranges(degree: npt.NDArray[np.int64], entries: int) -> npt.NDArray[np.int64]:
    """Where ranges of nodes begin, and past the last: each with at most so many entries, or with one node."""
    ends = np.cumsum(degree)
    bounds = [0]
    while bounds[-1] < len(degree):
        base = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(int(np.searchsorted(ends, base + entries, side="right")), bounds[-1] + 1))
    return np.array(bounds)


def _deal(
    scratch: Path,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    hides: npt.NDArray[np.bool_],
    bounds: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    start: int,
    kind: Any,
    told: Callable[[int], None],
) -> list[_Entries]:
    """A file a range of nodes, with entries (node, neighbour, position, the neighbour's degree) in stream order."""
    n_ranges = len(bounds) - 1
    dealt = [_Entries(scratch / str(k), kind) for k in range(n_ranges)]
    range_of = np.repeat(np.arange(n_ranges, dtype=np.int32), np.diff(bounds))
    so_far, visible = before.copy(), before.copy()
    group = int(tie_start[start - 1]) if start else 0
    _take_back(np.asarray(src[group:start]), np.asarray(dst[group:start]), hides, visible)
    entries = np.empty((2 * EVENTS_AT_ONCE, 4), kind)
    ordered = np.empty_like(entries)
    for part in pieces(len(src), EVENTS_AT_ONCE, start):
        n, group = _entries(src, dst, tie_start, hides, part.start, part.stop, group, so_far, visible, entries)
        ends = _by_range(entries[:n], range_of, n_ranges, ordered)
        for k in range(n_ranges):
            if ends[k] < ends[k + 1]:
                dealt[k].append(ordered[ends[k] : ends[k + 1]])
        told(part.stop - part.start)
    return dealt


def _write_ranges(
    folder: Path,
    dealt: list[_Entries],
    bounds: npt.NDArray[np.int64],
    degree: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    earlier: Earlier | None,
    kind: Any,
    told: Callable[[int], None],
    n_events: int,
) -> IndexFiles:
    """The ranges one after the other, each put in order and written behind the one before."""
    wide = ("row_start", "pair_start", "pair_pos_start")
    out = {name: Writer(folder / name, np.int64 if name in wide else kind) for name in INDEX}
    with abandoned_on_error(out):
        row_end = pair_end = 0
        longest = dict.fromkeys(LONGEST, 0)
        out["row_start"].append([0])
        out["pair_start"].append([0])
        for k, entries in enumerate(dealt):
            arrays, found = _in_order(entries, int(bounds[k]), int(bounds[k + 1]), degree, before, earlier, kind)
            entries.path.unlink(missing_ok=True)
            behind = {"row_start": row_end, "pair_pos_start": row_end, "pair_start": pair_end}
            for name, values in arrays.items():
                out[name].append(values + behind[name] if name in behind else values)
            row_end, pair_end = row_end + len(arrays["nbr"]), pair_end + len(arrays["pair_nbr"])
            longest = {name: max(longest[name], n) for name, n in found.items()}
            told(n_events * (k + 1) // len(dealt) - n_events * k // len(dealt))
        out["pair_pos_start"].append([row_end])
        return IndexFiles({name: writer.close() for name, writer in out.items()}, longest)


def _in_order(
    entries: _Entries,
    low: int,
    high: int,
    degree: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    earlier: Earlier | None,
    kind: Any,
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, int]]:
    """The index's arrays for the nodes from ``low`` to ``high``, and their longest row, neighbourhood and pair.

    Places count from the range's own start. ``row_start`` and ``pair_start`` hold where each node's end, and so where
    the next one's begin.
    """
    row_at = np.concatenate([[0], np.cumsum(degree[low:high])])
    nbr, pos, nbr_degree = (np.empty(row_at[-1], kind) for _ in range(3))
    fill = row_at[:-1].copy()
    if earlier is not None:
        old_nbr, old_pos, old_degree = _rows_of(earlier, low, high)
        _copy_rows(old_nbr, old_pos, old_degree, before[low:high], fill, nbr, pos, nbr_degree)
    _add_rows(entries.array(), low, fill, nbr, pos, nbr_degree)
    by_nbr, by_pos = np.empty(row_at[-1], kind), np.empty(row_at[-1], kind)
    n_pairs = np.empty(high - low, np.int64)
    _order_pairs(row_at, nbr, pos, by_nbr, by_pos, n_pairs)
    pair_nbr, pair_at = np.empty(n_pairs.sum(), kind), np.empty(n_pairs.sum(), np.int64)
    meetings = _distinct(row_at, by_nbr, pair_nbr, pair_at)
    found = (int(degree[low:high].max(initial=0)), int(n_pairs.max(initial=0)), int(meetings))
    arrays = {
        "row_start": row_at[1:],
        "nbr": nbr,
        "pos": pos,
        "nbr_degree": nbr_degree,
        "pair_start": np.cumsum(n_pairs),
        "pair_nbr": pair_nbr,
        "pair_pos_start": pair_at,
        "pair_pos": by_pos,
    }
    return arrays, dict(zip(LONGEST, found, strict=True))


def _rows_of(earlier: Earlier, low: int, high: int) -> tuple[npt.NDArray[Any], ...]:
    """The rows of some nodes in the index that is continued, which need not have them all, end to end."""
    starts = earlier.arrays["row_start"]
    first, past = (int(starts[min(k, len(starts) - 1)]) for k in (low, high))
    return tuple(np.asarray(earlier.arrays[name][first:past]) for name in ("nbr", "pos", "nbr_degree"))


# -------------------- compiled


@njit(inline="always")
def _is_hidden(u, v, hides):  # type: ignore[no-untyped-def]
    return len(hides) > 0 and (hides[u] or hides[v])


@njit(cache=True)
def _count(src, dst, hides, degree):  # type: ignore[no-untyped-def]
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if not _is_hidden(u, v, hides):
            degree[u] += 1
            if u != v:
                degree[v] += 1


@njit(cache=True)
def _take_back(src, dst, hides, visible):  # type: ignore[no-untyped-def]
    for e in range(len(src)):
        u, v = src[e], dst[e]
        if not _is_hidden(u, v, hides):
            visible[u] -= 1
            if u != v:
                visible[v] -= 1


@njit(cache=True)
def _entries(src, dst, tie_start, hides, start, stop, group, so_far, visible, out):  # type: ignore[no-untyped-def]
    """The entries of events ``start`` to ``stop``; ``visible`` counts a node's events strictly before the time."""
    n = 0
    for e in range(start, stop):
        if tie_start[e] == e:  # time moved on: the events of the last moment become visible
            for g in range(group, e):
                if not _is_hidden(src[g], dst[g], hides):
                    visible[src[g]] = so_far[src[g]]
                    visible[dst[g]] = so_far[dst[g]]
            group = e
        u, v = src[e], dst[e]
        if _is_hidden(u, v, hides):
            continue
        out[n, 0], out[n, 1], out[n, 2], out[n, 3] = u, v, e, visible[v]
        n += 1
        so_far[u] += 1
        if u != v:
            out[n, 0], out[n, 1], out[n, 2], out[n, 3] = v, u, e, visible[u]
            n += 1
            so_far[v] += 1
    return n, group


@njit(cache=True)
def _by_range(entries, range_of, n_ranges, out):  # type: ignore[no-untyped-def]
    """The entries by range of their node, stably; where each range begins comes back, (n_ranges + 1,)."""
    starts = np.zeros(n_ranges + 1, np.int64)
    for i in range(len(entries)):
        starts[range_of[entries[i, 0]] + 1] += 1
    for k in range(n_ranges):
        starts[k + 1] += starts[k]
    fill = starts[:-1].copy()
    for i in range(len(entries)):
        k = range_of[entries[i, 0]]
        for c in range(4):
            out[fill[k], c] = entries[i, c]
        fill[k] += 1
    return starts


@njit(cache=True)
def _copy_rows(old_nbr, old_pos, old_degree, lengths, fill, nbr, pos, nbr_degree):  # type: ignore[no-untyped-def]
    at = 0
    for u in range(len(lengths)):
        for _ in range(lengths[u]):
            nbr[fill[u]], pos[fill[u]], nbr_degree[fill[u]] = old_nbr[at], old_pos[at], old_degree[at]
            fill[u] += 1
            at += 1


@njit(cache=True)
def _add_rows(entries, low, fill, nbr, pos, nbr_degree):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        at = fill[entries[i, 0] - low]
        nbr[at], pos[at], nbr_degree[at] = entries[i, 1], entries[i, 2], entries[i, 3]
        fill[entries[i, 0] - low] += 1


@njit(parallel=True, cache=True)
def _order_pairs(row_at, nbr, pos, by_nbr, by_pos, n_pairs):  # type: ignore[no-untyped-def]
    """Each row by (neighbour, position), and how many distinct neighbours it has."""
    for u in prange(len(row_at) - 1):
        start, stop = row_at[u], row_at[u + 1]
        if stop - start <= 32:
            for i in range(start, stop):
                at = i
                while at > start and by_nbr[at - 1] > nbr[i]:
                    by_nbr[at], by_pos[at] = by_nbr[at - 1], by_pos[at - 1]
                    at -= 1
                by_nbr[at], by_pos[at] = nbr[i], pos[i]
        else:
            order = np.argsort(nbr[start:stop], kind="mergesort")
            for i in range(stop - start):
                by_nbr[start + i], by_pos[start + i] = nbr[start + order[i]], pos[start + order[i]]
        n = 0
        for i in range(start, stop):
            if i == start or by_nbr[i] != by_nbr[i - 1]:
                n += 1
        n_pairs[u] = n


@njit(cache=True)
def _distinct(row_at, by_nbr, pair_nbr, pair_at):  # type: ignore[no-untyped-def]
    """The distinct neighbours of each row and where each begins; the most meetings of one pair come back."""
    n, longest, last = 0, 0, 0
    for u in range(len(row_at) - 1):
        for i in range(row_at[u], row_at[u + 1]):
            if i == row_at[u] or by_nbr[i] != by_nbr[i - 1]:
                longest = max(longest, i - last)
                pair_nbr[n], pair_at[n] = by_nbr[i], i
                last = i
                n += 1
    return max(longest, row_at[-1] - last)
