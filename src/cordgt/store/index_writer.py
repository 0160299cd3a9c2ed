"""Write the arrays of an index to files, in bounded memory; bit for bit the result of ``TemporalIndex.build``.

One pass over the events distributes their entries into files by node range. Each range, and so the longest row, must
fit into memory: `build_range` builds its index, which is appended to the arrays.

An index on disk can be extended (`PriorIndex`): its rows are read range by range, and new entries are appended to them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.backing import INDEX_ARRAYS
from cordgt.history.index_builder import KEEP_ALL, build_range, count_degrees, index_dtype, iter_entries
from cordgt.store.arrays import ArrayWriter, WrittenArray, close_on_error, iter_slices, memory_map

BYTES_PER_ENTRY = 64  # in memory, while a range is built
EVENTS_AT_ONCE = 1 << 20
PRIOR_ENTRIES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class IndexFiles:
    """The arrays of a written index by name, and the sizes of its longest row, neighborhood and pair."""

    arrays: dict[str, WrittenArray]
    longest: dict[str, int]


@dataclass(frozen=True, eq=False)
class PriorIndex:
    """An index of the first ``n_events`` events, to be extended."""

    arrays: Mapping[str, npt.NDArray[Any]]
    n_events: int

    def degrees(self, n_nodes: int) -> npt.NDArray[np.int64]:
        """Return the (N,) number of events of each node; 0 for new nodes."""
        rows = np.diff(self.arrays["row_start"])
        return np.concatenate([rows, np.zeros(n_nodes - len(rows), np.int64)])

    def entries(self, low: int, high: int, dtype: Any) -> Iterator[npt.NDArray[Any]]:
        """Yield the entries (n, 4) of the nodes from ``low`` to ``high``, row by row."""
        starts = self.arrays["row_start"]
        starts = np.asarray(starts[low : min(high, len(starts) - 1) + 1])
        if len(starts) > 1:
            for part in iter_slices(int(starts[-1]), PRIOR_ENTRIES_AT_ONCE, int(starts[0])):
                entries = np.empty((part.stop - part.start, 4), dtype)
                entries[:, 0] = low - 1 + np.searchsorted(starts, np.arange(part.start, part.stop), side="right")
                for column, name in enumerate(("nbr", "pos", "nbr_degree"), 1):
                    entries[:, column] = self.arrays[name][part]
                yield entries


@dataclass
class _Entries:
    """The entries of a node range in a file. It is open only while it is written, because there may be many ranges."""

    path: Path
    dtype: Any
    rows: int = 0

    def append(self, entries: npt.NDArray[Any]) -> None:
        with self.path.open("ab") as file:
            file.write(memoryview(np.ascontiguousarray(entries).reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
        self.rows += len(entries)

    def array(self) -> npt.NDArray[Any]:
        """Return the entries (rows, 4), memory-mapped."""
        return memory_map(self.path, self.dtype, self.rows, 4)


def write_index(
    folder: Path,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    n_nodes: int,
    *,
    memory: int,
    masked: npt.NDArray[np.bool_] | None = None,
    prior: PriorIndex | None = None,
    callbacks: Callback = NO_CALLBACK,
) -> IndexFiles:
    """Write the index of all events, or of those that touch no ``masked`` node, into ``folder``.

    ``memory``: limit of a range in bytes. ``callbacks.on_step`` counts each event twice: when its entries are
    distributed, and when its range is built.
    """

    def keep(part: slice) -> npt.NDArray[np.bool_]:
        return KEEP_ALL if masked is None else ~(masked[src[part]] | masked[dst[part]])

    dtype = index_dtype(n_nodes, len(src))
    start = 0 if prior is None else prior.n_events
    before = np.zeros(n_nodes, np.int64) if prior is None else prior.degrees(n_nodes)
    degree = before + count_degrees(src, dst, n_nodes, keep, start)
    bounds = _node_ranges(degree, max(memory // BYTES_PER_ENTRY, 1))
    scratch = folder / "ranges"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    ranges = [_Entries(scratch / str(k), dtype) for k in range(len(bounds) - 1)]
    entries = iter_entries(src, dst, tie_start, before, keep, dtype, EVENTS_AT_ONCE, start)
    _distribute(entries, bounds, ranges, callbacks)
    written = _write_ranges(folder, ranges, bounds, degree, prior, dtype, callbacks, len(src) - start)
    shutil.rmtree(scratch, ignore_errors=True)
    return written


def _node_ranges(degree: npt.NDArray[np.int64], max_entries: int) -> npt.NDArray[np.int64]:
    """Return the first node of each range, and N: ranges of at most ``max_entries`` entries, or of one node."""
    ends = np.cumsum(degree)
    bounds = [0]
    while bounds[-1] < len(degree):
        base = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(int(np.searchsorted(ends, base + max_entries, side="right")), bounds[-1] + 1))
    return np.array(bounds)


def _distribute(
    entries: Iterator[tuple[int, npt.NDArray[Any]]],
    bounds: npt.NDArray[np.int64],
    ranges: list[_Entries],
    callbacks: Callback,
) -> None:
    """Append each entry of `iter_entries` to the file of its node's range, in order."""
    range_of = np.repeat(np.arange(len(ranges), dtype=np.int32), np.diff(bounds))
    for n_events, chunk in entries:
        ordered = np.empty_like(chunk)
        starts = _order_by_range(chunk, range_of, len(ranges), ordered)
        for k, file in enumerate(ranges):
            if starts[k] < starts[k + 1]:
                file.append(ordered[starts[k] : starts[k + 1]])
        del ordered  # before the next chunk is allocated
        callbacks.on_step(n_events)


def _write_ranges(
    folder: Path,
    ranges: list[_Entries],
    bounds: npt.NDArray[np.int64],
    degree: npt.NDArray[np.int64],
    prior: PriorIndex | None,
    dtype: Any,
    callbacks: Callback,
    n_events: int,
) -> IndexFiles:
    """Build the ranges one after the other, and append each to the arrays."""
    offsets = dict.fromkeys(("row_start", "pair_start", "pair_pos_start"), 0)
    out = {name: ArrayWriter(folder / name, np.int64 if name in offsets else dtype) for name in INDEX_ARRAYS}
    longest: dict[str, int] = {}
    with close_on_error(out):
        for name in offsets:
            out[name].append([0])
        for k, entries in enumerate(ranges):
            low, high = int(bounds[k]), int(bounds[k + 1])
            index = build_range(_prior_and_new(prior, entries, low, high), low, high, degree, dtype)
            entries.path.unlink(missing_ok=True)
            for name, values in index.arrays.items():
                out[name].append(values[1:] + offsets[name] if name in offsets else values)
            offsets = {name: offset + int(index.arrays[name][-1]) for name, offset in offsets.items()}
            longest = {name: max(n, longest.get(name, 0)) for name, n in index.longest.items()}
            callbacks.on_step(n_events * (k + 1) // len(ranges) - n_events * k // len(ranges))
        return IndexFiles({name: writer.close() for name, writer in out.items()}, longest)


def _prior_and_new(prior: PriorIndex | None, new: _Entries, low: int, high: int) -> Iterator[npt.NDArray[Any]]:
    if prior is not None:
        yield from prior.entries(low, high, new.dtype)
    yield new.array()


@njit(cache=True)
def _order_by_range(entries, range_of, n_ranges, out):  # type: ignore[no-untyped-def]
    """Copy the entries to ``out`` in stable order of range. Returns the start of each range, (n_ranges + 1,)."""
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
