"""What a stream looks like, in numbers: the summary that ``cordgt data describe`` prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from cordgt.events.arrays import distinct
from cordgt.events.stream import EventStream


def describe(stream: EventStream) -> dict[str, Any]:
    """A summary in plain Python values, ready for JSON.

    ``span`` and ``intensity`` are in the user's unit of time, in seconds where times are dates. ``intensity`` is
    2 events / (nodes * span), the paper's measure; None where all events share one time. Pairs are unordered, as in
    the model's records. ``labels_positive`` is None without labels.
    """
    span = _span(stream)
    repeated = stream.n_events - _n_pairs(stream)
    tie_sizes = np.bincount(stream.tie_start, minlength=1)
    n_sources, n_destinations = (len(distinct(ends, stream.n_nodes)) for ends in (stream.src, stream.dst))
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
        "span_unit": "seconds" if stream.time.kind == "date" else "as in the file",
        "intensity": 2 * stream.n_events / (stream.n_nodes * span) if span > 0 else None,
        "repeated_pair_share": repeated / stream.n_events,
        "tied_time_share": int(tie_sizes[tie_sizes > 1].sum()) / stream.n_events,
        "largest_tie": int(tie_sizes.max()),
        "self_loops": int((stream.src == stream.dst).sum()),
        "edge_features": stream.edge_dim,
        "node_features": stream.node_dim,
        "labels_positive": None if stream.label is None else int((stream.label > 0).sum()),
        "notes": list(stream.notes),
    }


def _span(stream: EventStream) -> float:
    return float(stream.elapsed[-1])


def _n_pairs(stream: EventStream) -> int:
    """How many unordered pairs of nodes have met."""
    backing = stream.backing
    if backing is not None and len(backing.elapsed) == stream.n_events:  # its index has a pair twice, a self-loop once
        alone = len(distinct(stream.src[stream.src == stream.dst], stream.n_nodes))
        return (len(backing.index.arrays["pair_nbr"]) + alone) // 2
    low, high = np.minimum(stream.src, stream.dst), np.maximum(stream.src, stream.dst)
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    return 1 + int(((low[1:] != low[:-1]) | (high[1:] != high[:-1])).sum())


def n_repeated(stream: EventStream, start: int = 0, stop: int | None = None) -> int:
    """How many events repeat another in pair, time and features; of those from ``start`` to ``stop``."""
    src, dst, tie = (np.asarray(x[start:stop]) for x in (stream.src, stream.dst, stream.tie_start))
    order = np.lexsort((tie, dst, src))
    same = np.logical_and.reduce([x[order][1:] == x[order][:-1] for x in (src, dst, tie)])
    if stream.edge_x is not None:
        at = np.flatnonzero(same)
        one, other = (stream.edge_x[start + order[k]] for k in (at, at + 1))
        same[at] = (one == other).all(axis=1)
    return int(same.sum())
