"""Check that the arrays of a store fit each other, so that compiled loops never read outside an array.

Checksums find accidental damage. These checks find arrays that were written wrongly on purpose, with valid checksums:
every id, position and offset is checked, and index, ties, elapsed times and lookup table are compared with the events
from which they follow. All functions raise ValueError, which says what is wrong. Memory: a few numbers per node.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from cordgt.events.backing import IndexData
from cordgt.events.id_table import SortedIdLookup
from cordgt.events.times import TimeAxis, tie_starts
from cordgt.history.index_builder import KEEP_ALL, index_dtype, iter_entries
from cordgt.store.arrays import iter_slices

ENTRY_EVENTS = 1 << 14  # events per chunk of index entries: fits into the processor's cache


def check_events(arrays: Mapping[str, Any], n_nodes: int, axis: TimeAxis) -> None:
    """Check ``src``, ``dst``, ``t``, ``elapsed`` and ``tie_start``, and ``side`` (None: one id space)."""
    t, side, n = arrays["t"], arrays["side"], len(arrays["t"])
    first, last, tie = t[0], t[0], 0
    if side is not None:
        check_range("side", side, 0, 2)
    for part in iter_slices(n):
        src, dst, times = (np.asarray(arrays[name][part]) for name in ("src", "dst", "t"))
        check_range("src", src, 0, n_nodes)
        check_range("dst", dst, 0, n_nodes)
        if side is not None and (side[src].any() or not side[dst].all()):
            raise ValueError("'side' does not fit the events")
        if not np.isfinite(times).all() or times[0] < last or (times[1:] < times[:-1]).any():
            raise ValueError("'t' is not sorted")
        with np.errstate(over="ignore"):  # of a span beyond int64
            elapsed = axis.elapsed(times, first)
        if not np.array_equal(arrays["elapsed"][part], elapsed) or not 0 <= elapsed[-1] < np.inf:
            raise ValueError("'elapsed' does not fit 't'")
        begins = tie_starts(times, start=part.start, first=tie if times[0] == last else None)
        if not np.array_equal(arrays["tie_start"][part], begins):
            raise ValueError("'tie_start' does not fit 't'")
        last, tie = times[-1], int(begins[-1])


def check_range(name: str, values: npt.NDArray[Any], low: int, high: int) -> None:
    """Check that all values are at least ``low`` and less than ``high``."""
    if len(values) and (values.min() < low or values.max() >= high):
        raise ValueError(f"'{name}' has a value out of range")


def check_ids(names: Any, hashes: npt.NDArray[Any], nodes: npt.NDArray[Any]) -> None:
    """Check an Arrow array of ids, and their lookup table. Text must be valid UTF-8, and its offsets ascending."""
    names.validate(full=True)
    expected = SortedIdLookup.from_names(names)
    if not np.array_equal(hashes, expected.hashes) or not np.array_equal(nodes, expected.nodes):
        raise ValueError("the lookup table of the ids does not fit the ids")


def check_index(
    index: IndexData,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    n_nodes: int,
    masked: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Check that an index is that of the events, or of those that touch no ``masked`` node.

    The events must have passed `check_events`; the arrays must have the lengths of ``index_rows``.
    """

    def keep(part: slice) -> npt.NDArray[np.bool_]:
        return KEEP_ALL if masked is None else ~(masked[src[part]] | masked[dst[part]])

    a, dtype = index.arrays, index_dtype(n_nodes, len(src))
    lengths = {"row_start": len(a["nbr"]), "pair_start": len(a["pair_nbr"]), "pair_pos_start": len(a["pair_pos"])}
    for (name, length), longest in zip(lengths.items(), ("max_degree", "max_pairs", "max_meetings"), strict=True):
        if _check_offsets(name, a[name], length) != index.longest[longest]:
            raise ValueError(f"'{longest}' does not fit '{name}'")
    for name in ("nbr", "pos", "nbr_degree", "pair_nbr", "pair_pos"):
        if a[name].dtype != dtype:
            raise ValueError(f"'{name}' has a wrong type")
    starts, pairs = a["row_start"], (a["pair_start"], a["pair_nbr"], a["pair_pos_start"], a["pair_pos"])
    with ThreadPoolExecutor(1) as pool:
        pairs_match = pool.submit(_pairs_match, *pairs, src, dst, starts)
        # Each row lists its node's events in stream order, so the next entry of the stream is the next one of its row.
        fill, counts = np.array(starts[:-1]), np.zeros(n_nodes, np.int64)
        for _, entries in iter_entries(src, dst, tie_start, counts, keep, dtype, ENTRY_EVENTS):
            if not _rows_match(entries, starts, fill, a["nbr"], a["pos"], a["nbr_degree"]):
                raise ValueError("the rows of the index do not fit the events")
    if not np.array_equal(fill, starts[1:]):
        raise ValueError("the rows of the index do not fit the events")
    # Pairs have as many entries as rows. If they are ordered and each is an event of its pair, none is missing.
    if not pairs_match.result():
        raise ValueError("the pairs of the index do not fit the events")


def _check_offsets(name: str, offsets: npt.NDArray[Any], stop: int) -> int:
    """Check that offsets ascend from 0 to ``stop``. Returns the largest difference of two neighbors."""
    if offsets[0] != 0 or offsets[-1] != stop:
        raise ValueError(f"'{name}' does not begin with 0 or does not end with {stop:,}")
    largest = 0
    for part in iter_slices(len(offsets) - 1):
        values = np.asarray(offsets[part.start : part.stop + 1])
        check_range(name, values, 0, stop + 1)  # before the difference, which could overflow
        lengths = np.diff(values)
        if lengths.min() < 0:
            raise ValueError(f"'{name}' is not ascending")
        largest = max(largest, int(lengths.max()))
    return largest


@njit(cache=True)
def _rows_match(entries, row_start, fill, nbr, pos, nbr_degree):  # type: ignore[no-untyped-def]
    """Compare entries in stream order with the rows; ``fill``: (N,) next entry of each row."""
    for i in range(len(entries)):
        node = entries[i, 0]
        at = fill[node]
        if at >= row_start[node + 1]:
            return False
        if nbr[at] != entries[i, 1] or pos[at] != entries[i, 2] or nbr_degree[at] != entries[i, 3]:
            return False
        fill[node] = at + 1
    return True


@njit(cache=True, nogil=True)
def _pairs_match(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, src, dst, row_start
):
    """Whether the pairs of each node ascend, and each lists events of that pair, ascending, one at least."""
    for node in range(len(pair_start) - 1):
        first, stop = pair_start[node], pair_start[node + 1]
        if pair_pos_start[first] != row_start[node] or pair_pos_start[stop] != row_start[node + 1]:
            return False
        for pair in range(first, stop):
            other = pair_nbr[pair]
            if (pair > first and other <= pair_nbr[pair - 1]) or pair_pos_start[pair] == pair_pos_start[pair + 1]:
                return False
            for i in range(pair_pos_start[pair], pair_pos_start[pair + 1]):
                p = pair_pos[i]
                if p < 0 or p >= len(src) or (i > pair_pos_start[pair] and p <= pair_pos[i - 1]):
                    return False
                if not ((src[p] == node and dst[p] == other) or (src[p] == other and dst[p] == node)):
                    return False
            if row_start[other] == row_start[other + 1]:  # a masked node: its events are not indexed
                return False
    return True
