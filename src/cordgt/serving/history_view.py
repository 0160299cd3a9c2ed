"""Answers about the visible history: node search, a node's past, top movers, events per second.

Every answer is computed from one `HistoryView`, a snapshot of the first ``cut`` events, so it never mixes two states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.events.ids import NodeIds, Side

RATE_SECONDS = 300  # of the chart of events per second
MOVERS_WINDOW = 1_000  # events that count as "now", and as "before"
TIMELINE_BINS = 48
MAX_SEARCH_LENGTH = 1_000  # characters
SIDES: tuple[Side, Side] = ("src", "dst")


@dataclass(frozen=True)
class HistoryView:
    """The events that an answer may read."""

    src: np.ndarray  # (cut,) node indices
    dst: np.ndarray  # (cut,) node indices
    elapsed: np.ndarray  # (cut,) float64, time since the first event
    t: np.ndarray  # (cut,) times on the stream's axis
    ids: NodeIds
    format_time: Callable[[Any], str]

    @property
    def cut(self) -> int:
        return len(self.src)

    def node_index(self, node: str, side: str | None) -> int:
        """Return the index of a user's id, -1 if it is unknown. Without a side, sources come first."""
        found = [int(self.ids.encode([node], one)[0]) for one in SIDES if side is None or one == side]
        return next((index for index in found if 0 <= index < len(self.ids)), -1)  # a lookup may know later nodes

    def side_of(self, index: int) -> Side | None:
        """Return the id space of a node; None if sources and destinations share one."""
        if self.ids.side is None:
            return None
        return "dst" if self.ids.side[index] else "src"

    def decode(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        return self.ids.decode(np.asarray(indices, np.int64)).to_pylist()


class EventRate:
    """Counts the events of each of the last `RATE_SECONDS` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._counts = np.zeros(RATE_SECONDS + 1, np.int64)  # one slot per second, reused in turn
        self._start = self._second = int(clock())

    def record(self, n_events: int) -> None:
        """Count events that arrived now."""
        with self._lock:
            self._advance()
            self._counts[self._second % len(self._counts)] += n_events

    def per_second(self) -> list[int]:
        """Return the events of each full second since the start, oldest first, of the last `RATE_SECONDS` at most."""
        with self._lock:
            self._advance()
            first = max(self._start, self._second - RATE_SECONDS)
            return [int(self._counts[s % len(self._counts)]) for s in range(first, self._second)]

    def _advance(self) -> None:
        """Clear the seconds that passed since the last call."""
        now = int(self._clock())
        for second in range(max(self._second + 1, now - RATE_SECONDS), now + 1):
            self._counts[second % len(self._counts)] = 0
        self._second = max(self._second, now)


def find_nodes(view: HistoryView, text: str, n: int) -> list[dict[str, Any]]:
    """Return up to n nodes whose id contains the text, in any case: the same id first, then ids that begin with it.

    Among these, nodes come in order of first appearance.
    """
    names = view.ids.names
    names = names if pa.types.is_string(names.type) else pc.cast(names, pa.string())
    same = [view.node_index(text, side) for side in SIDES]
    starting, containing = (
        np.flatnonzero(match(names, text, ignore_case=True).to_numpy(zero_copy_only=False))
        for match in (pc.starts_with, pc.match_substring)
    )
    ordered = [*(index for index in same if index >= 0), *starting[: n + 2].tolist(), *containing[: 2 * n + 4].tolist()]
    chosen = list(dict.fromkeys(ordered))[:n]
    counts = _count_events(view, chosen)
    return [
        {"node": node, "side": view.side_of(index), "events": count}
        for node, index, count in zip(view.decode(chosen), chosen, counts, strict=True)
    ]


def describe_past(view: HistoryView, node: str, side: str | None, n: int) -> dict[str, Any]:
    """Return the latest n events of a node, newest first, and its number of events over time in `TIMELINE_BINS` bins.

    ``as_source``: in how many events it is the source. An unknown node has no events.
    """
    index = view.node_index(node, side)
    positions = _event_positions(view, index)
    latest = positions[::-1][:n]
    is_source = view.src[latest] == index
    others = np.where(is_source, view.dst[latest], view.src[latest])
    events = [
        {
            "position": int(position),
            "time": view.format_time(view.t[position]),
            "direction": "to" if outgoing else "from",
            "other": other,
            "other_side": view.side_of(int(other_index)),
        }
        for position, outgoing, other, other_index in zip(latest, is_source, view.decode(others), others, strict=True)
    ]
    total = len(positions)
    return {
        "node": node,
        "side": view.side_of(index) if index >= 0 else side,
        "cut": view.cut,
        "total": total,
        "as_source": int((view.src[positions] == index).sum()),
        "events_first": view.format_time(view.t[positions[0]]) if total else None,
        "events_last": view.format_time(view.t[positions[-1]]) if total else None,
        "events": events,
        "bins": _bins(view, positions) if total else [],
        "end": view.format_time(view.t[-1]) if view.cut else None,
    }


def top_movers(view: HistoryView, n: int, window: int = MOVERS_WINDOW) -> dict[str, Any]:
    """Return the n nodes whose number of events changed most: the latest ``window`` events against those before them.

    With fewer events than two windows, the window is half of the events.
    """
    window = min(window, view.cut // 2)
    now, before = (
        np.bincount(_ends(view, view.cut - (k + 1) * window, view.cut - k * window), minlength=len(view.ids))
        for k in range(2)
    )
    change = now - before
    order = np.lexsort((np.arange(len(change)), -now, -np.abs(change)))[:n]
    chosen = order[change[order] != 0]
    movers = [
        {
            "node": node,
            "side": view.side_of(int(i)),
            "change": int(change[i]),
            "now": int(now[i]),
            "before": int(before[i]),
        }
        for node, i in zip(view.decode(chosen), chosen, strict=True)
    ]
    return {"cut": view.cut, "window": window, "movers": movers}


def _event_positions(view: HistoryView, index: int) -> np.ndarray:
    """Return the positions of the events of a node, ascending."""
    return np.flatnonzero((view.src == index) | (view.dst == index)) if index >= 0 else np.zeros(0, np.int64)


def _count_events(view: HistoryView, indices: list[int]) -> list[int]:
    return [len(_event_positions(view, index)) for index in indices]


def _ends(view: HistoryView, start: int, stop: int) -> np.ndarray:
    """Return the nodes of the events from ``start`` to ``stop``; a self-loop counts once."""
    src, dst = view.src[start:stop], view.dst[start:stop]
    return np.concatenate([src, dst[dst != src]]).astype(np.int64)


def _bins(view: HistoryView, positions: np.ndarray) -> list[dict[str, Any]]:
    """Return the counts of events in bins of equal length, from the node's first event to the last event of all."""
    first, last = float(view.elapsed[positions[0]]), float(view.elapsed[-1])
    counts, edges = np.histogram(view.elapsed[positions], TIMELINE_BINS, (first, last if last > first else first + 1.0))
    # The time of a bin is that of the first event in or after it, so that it is a time of the stream.
    starts = np.searchsorted(view.elapsed, edges[:-1], side="left").clip(0, view.cut - 1)
    return [
        {"start": view.format_time(view.t[i]), "count": int(count)} for i, count in zip(starts, counts, strict=True)
    ]
