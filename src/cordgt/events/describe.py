"""Summary statistics of a stream, as ``cordgt data describe`` prints them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordgt.events.arrays import unique_nodes
from cordgt.events.notes import merge_append_notes
from cordgt.events.stream import EventStream


def describe(stream: EventStream) -> dict[str, Any]:
    """Return a summary in plain Python values, ready for JSON.

    ``span`` and ``intensity`` are in the user's unit of time, or in seconds for dates. ``intensity`` is
    2 events / (nodes * span), the paper's measure; None if all events have one time.
    Pairs are unordered. ``labels_positive`` is None without labels.
    """
    span = float(stream.elapsed[-1])
    tie_sizes = np.bincount(stream.tie_start, minlength=1)
    n_sources, n_destinations = (len(unique_nodes(ends, stream.n_nodes)) for ends in (stream.src, stream.dst))
    return {
        "name": stream.name,
        "events": stream.n_events,
        "nodes": stream.n_nodes,
        "sources": n_sources,
        "destinations": n_destinations,
        "bipartite": n_sources + n_destinations == stream.n_nodes,
        "id_spaces": 1 if stream.ids.shared else 2,
        "times": stream.time.kind,
        "first_time": stream.time.format(stream.t[:1])[0].as_py(),
        "last_time": stream.time.format(stream.t[-1:])[0].as_py(),
        "span": span,
        "span_unit": "seconds" if stream.time.kind == "date" else stream.epoch_unit or "as in the file",
        "intensity": 2 * stream.n_events / (stream.n_nodes * span) if span > 0 else None,
        "repeated_pair_share": (stream.n_events - _count_pairs(stream)) / stream.n_events,
        "tied_time_share": int(tie_sizes[tie_sizes > 1].sum()) / stream.n_events,
        "largest_tie": int(tie_sizes.max()),
        "self_loops": int((stream.src == stream.dst).sum()),
        "edge_features": stream.edge_dim,
        "node_features": stream.node_dim,
        "labels_positive": None if stream.label is None else int((stream.label > 0).sum()),
        "notes": merge_append_notes(stream.notes),
    }


def describe_for_display(stream: EventStream) -> dict[str, Any]:
    """Return the facts of `describe` as people read them: times that count from 1970 have their date."""
    times = {name: stream.format_time(stream.t[k]) for name, k in (("first_time", 0), ("last_time", -1))}
    return describe(stream) | times


def _count_pairs(stream: EventStream) -> int:
    """Return the number of unordered pairs of nodes with an event."""
    backing = stream.backing
    if (
        backing is not None and len(backing.elapsed) == stream.n_events
    ):  # its index lists a pair twice, a self-loop once
        n_self_loops = len(unique_nodes(stream.src[stream.src == stream.dst], stream.n_nodes))
        return (len(backing.index.arrays["pair_nbr"]) + n_self_loops) // 2
    low, high = np.minimum(stream.src, stream.dst), np.maximum(stream.src, stream.dst)
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    return 1 + int(((low[1:] != low[:-1]) | (high[1:] != high[:-1])).sum())


def count_duplicates(stream: EventStream, start: int = 0, stop: int | None = None) -> int:
    """Return how many events from ``start`` to ``stop`` repeat another in pair, time and features."""
    src, dst, tie = (np.asarray(x[start:stop]) for x in (stream.src, stream.dst, stream.tie_start))
    order = np.lexsort((tie, dst, src))
    same = np.logical_and.reduce([x[order][1:] == x[order][:-1] for x in (src, dst, tie)])
    if stream.edge_x is not None:
        candidates = np.flatnonzero(same)
        left, right = (stream.edge_x[start + order[k]] for k in (candidates, candidates + 1))
        same[candidates] = (left == right).all(axis=1)
    return int(same.sum())
