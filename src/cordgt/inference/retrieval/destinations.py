"""Destinations of a stream at a ``cut``: which exist, which are new, recent or popular.

Every answer depends only on the first ``cut`` events. After one pass over the stream, a question costs as much as the
windows below are long. It does not grow with the stream or with the number of nodes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

WINDOWS = (512, 4096, 32768)  # latest events of the stream
_CHUNK = 1 << 22  # events read at once


class Destinations:
    """The destinations among the first ``cut`` events, for any ``cut``."""

    def __init__(self, dst: Any, n_nodes: int) -> None:
        """Read ``dst`` (E,) once; it may be memory-mapped."""
        self.dst, self.n_nodes = dst, n_nodes
        self.first = np.full(n_nodes, len(dst), np.int64)  # (N,) position of the first event as destination, or E
        for start in range(0, len(dst), _CHUNK):
            _find_first(np.ascontiguousarray(dst[start : start + _CHUNK]), start, self.first)
        nodes = np.flatnonzero(self.first < len(dst))
        self.by_first = nodes[np.argsort(self.first[nodes], kind="stable")]  # (n,) in order of first event
        self._first_sorted = self.first[self.by_first]
        self._counted = 0, np.zeros(n_nodes, np.int64)  # events of each destination among so many first events
        self._recent = lru_cache(maxsize=16)(self._find_recent)
        self._popular = lru_cache(maxsize=16)(self._find_popular)

    def count(self, cut: int) -> int:
        """Return the number of destinations among the first ``cut`` events."""
        return int(np.searchsorted(self._first_sorted, cut))

    def visible(self, cut: int) -> np.ndarray:
        """Return the destinations of the first ``cut`` events, in order of their first event."""
        return self.by_first[: self.count(cut)]

    def is_visible(self, node: np.ndarray, cut: int) -> np.ndarray:
        """Return (n,) bool: True if the node is a destination among the first ``cut`` events."""
        is_known = (node >= 0) & (node < self.n_nodes)
        return is_known & (self.first[np.where(is_known, node, 0)] < cut)

    def newest(self, cut: int, n: int) -> np.ndarray:
        """Return the ``n`` destinations with the latest first events, latest first."""
        return self.visible(cut)[::-1][:n]

    def recent(self, cut: int, n: int) -> np.ndarray:
        """Return the ``n`` destinations with the latest events in the largest window, latest first."""
        return self._recent(cut, WINDOWS[-1])[0][:n]

    def trending(self, cut: int, window: int, n: int) -> np.ndarray:
        """Return the ``n`` destinations with the most of the latest ``window`` events, most first."""
        return self._recent(cut, window)[1][:n]

    def popular(self, cut: int, n: int) -> np.ndarray:
        """Return about the ``n`` destinations with the most events, most first.

        They are counted at the last multiple of a step that grows with ``cut`` (1/64 to 1/128 of it), so that they
        are counted again only after so many events.
        """
        step = 1 << max(0, int(cut).bit_length() - 7)
        return self._popular(cut - cut % step)[:n]

    def _find_recent(self, cut: int, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct destinations of a window: the latest first, and the most frequent first."""
        events = np.asarray(self.dst[max(0, cut - window) : cut])[::-1]
        node, rank, count = np.unique(events, return_index=True, return_counts=True)
        return node[np.argsort(rank)], node[np.lexsort((rank, -count))]

    def _find_popular(self, cut: int) -> np.ndarray:
        count = self._count(cut)
        n: int = min(4096, int(np.count_nonzero(count)))
        if not n:
            return np.empty(0, np.int64)
        # All that tie with the last place, then the first of them: later nodes must not change which ones are taken.
        top = np.flatnonzero(count >= -np.partition(-count, n - 1)[n - 1])
        return top[np.lexsort((top, -count[top]))][:n]

    def _count(self, cut: int) -> np.ndarray:
        """Return the number of events of each destination (N,), counted from the last ``cut`` on if that is earlier."""
        begin, counted = self._counted
        if begin > cut:
            begin, counted = 0, counted[:0]
        count = np.zeros(self.n_nodes, np.int64)
        count[: len(counted)] = counted  # a live history may have new nodes since
        for start in range(begin, cut, _CHUNK):
            count += np.bincount(self.dst[start : min(start + _CHUNK, cut)], minlength=self.n_nodes)
        self._counted = cut, count  # replaced as a whole: other threads see the old counts or the new ones
        return count


@njit(cache=True)
def _find_first(dst, start, first):  # type: ignore[no-untyped-def]
    for i in range(len(dst)):
        if start + i < first[dst[i]]:
            first[dst[i]] = start + i
