"""LiveHistory: a stream that grows event by event, with its index, ids and features."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordgt.events.arrays import Ints
from cordgt.events.columns import unify_time_types
from cordgt.events.ids import NodeIds, Side
from cordgt.events.stream import EventStream
from cordgt.history.growing import GrowingIndex
from cordgt.history.index import TemporalIndex, as_tensor
from cordgt.history.queries import History
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.serving.event_batch import EventBatch, NodeId

MARKED_EVENTS, MARK_LENGTH = 32, 12  # see `LiveHistory.mark`
NEVER = np.iinfo(np.int64).max  # position of the first event of a node without one


class DictIdLookup:
    """Finds the nodes of ids in dictionaries, one per id space; implements `cordgt.events.ids.IdLookup`."""

    def __init__(self, ids: NodeIds) -> None:
        names = ids.names.to_pylist()
        if ids.side is None:
            self.spaces: list[dict[NodeId, int]] = [{name: node for node, name in enumerate(names)}] * 2
        else:
            self.spaces = [{}, {}]
            for node, (name, side) in enumerate(zip(names, ids.side.tolist(), strict=True)):
                self.spaces[side][name] = node

    def find(self, column: Any, names: Any, side: npt.NDArray[np.uint8] | None, wanted: int) -> Ints:
        """Return the nodes of an Arrow column of ids; -1 for null and unknown ids."""
        space = self.spaces[wanted]
        return np.array([space.get(one, -1) for one in column.to_pylist()], np.int64)


class GrowingArray:
    """An array with room for more rows."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._buffer, self._n = values, len(values)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The rows so far; a view."""
        return self._buffer[: self._n]

    def extend(self, rows: npt.NDArray[Any]) -> None:
        """Add rows. Earlier views stay valid."""
        stop = self._n + len(rows)
        if stop > len(self._buffer):
            room = np.empty((stop + stop // 4 + 1024, *self._buffer.shape[1:]), self._buffer.dtype)
            room[: self._n] = self.values
            self._buffer = room
        self._buffer[self._n : stop] = rows
        self._n = stop


class GrowingDestinations(Destinations):
    """The destinations of a stream that grows, for any ``cut``. Earlier answers stay valid."""

    def __init__(self, dst: npt.NDArray[Any], n_nodes: int) -> None:
        super().__init__(dst, n_nodes)
        self.first[self.first == len(dst)] = NEVER
        self._first, self._order = GrowingArray(self.first), GrowingArray(self.by_first)
        self._order_first = GrowingArray(self._first_sorted)

    def append(self, dst: npt.NDArray[Any], start: int, n_nodes: int) -> None:
        """Take the events from position ``start`` on; ``dst`` has the destinations of all events."""
        self._first.extend(np.full(n_nodes - self.n_nodes, NEVER))
        node, position = np.unique(np.asarray(dst[start:]), return_index=True)
        is_new = self._first.values[node] == NEVER
        order = np.argsort(position[is_new])
        new, first = node[is_new][order].astype(np.int64), start + position[is_new][order]
        self._first.values[new] = first
        self._order.extend(new)
        self._order_first.extend(first)
        self.dst, self.n_nodes, self.first = dst, n_nodes, self._first.values
        self.by_first, self._first_sorted = self._order.values, self._order_first.values


class LiveHistory:
    """The events of a base stream and all later ones. One thread at a time may use it."""

    def __init__(self, base: EventStream) -> None:
        self._base = base
        self.index_builder = GrowingIndex(base.src, base.dst, base.elapsed, base.n_nodes)
        self._t = GrowingArray(base.t)
        self._edge_x = None if base.edge_x is None else GrowingArray(base.edge_x)
        self._lookup = DictIdLookup(base.ids)
        self._names, self._new_names = base.ids.names, list[NodeId]()
        self._side, self._new_sides = base.ids.side, list[int]()
        self.destinations = GrowingDestinations(self.index_builder.dst, base.n_nodes)
        first = np.full(base.n_nodes, NEVER)
        for nodes in (base.src, base.dst):
            np.minimum.at(first, nodes, np.arange(base.n_events))
        self._first_event = GrowingArray(first)  # never decreases: nodes are numbered by first appearance
        self._stream: EventStream | None = None
        self._index: TemporalIndex | None = None
        self._mark = 0, ""  # the latest cut that was asked for, and its mark

    @property
    def n_events(self) -> int:
        return self.index_builder.n_events

    @property
    def n_nodes(self) -> int:
        return self.index_builder.n_nodes

    @property
    def last_time(self) -> int | float:
        """Time of the last event."""
        return self._t.values[-1].item()

    def append(self, batch: EventBatch) -> None:
        """Add checked events that are not earlier than the last one."""
        n_nodes, start = self.n_nodes, self.n_events
        src, dst = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
        sides = (0, 0) if self._side is None else (0, 1)
        for i, ends in enumerate(zip(batch.src, batch.dst, strict=True)):
            for side, name, column in zip(sides, ends, (src, dst), strict=True):
                node = self._lookup.spaces[side].setdefault(name, n_nodes)
                if node == n_nodes:
                    self._new_names.append(name)
                    self._new_sides.append(side)
                    n_nodes += 1
                column[i] = node
        old_t, new_t = unify_time_types(self._t.values, batch.t)
        if old_t.dtype != self._t.values.dtype:
            self._t = GrowingArray(old_t)
        self._t.extend(new_t)
        if self._edge_x is not None and batch.edge_x is not None:
            self._edge_x.extend(batch.edge_x)
        self.index_builder.append(src, dst, self._base.time.elapsed(new_t, self._t.values[0]), n_nodes)
        self.destinations.append(self.index_builder.dst, start, n_nodes)
        self._note_first_events(src, dst, start, n_nodes)
        self._stream = self._index = None

    def stream(self) -> EventStream:
        """Return all events so far. Nothing is copied, except the names of new nodes."""
        if self._stream is None:
            if self._new_names:
                self._names = pa.concat_arrays([self._names, pa.array(self._new_names, self._names.type)])
                if self._side is not None:
                    self._side = np.concatenate([self._side, np.array(self._new_sides, np.uint8)])
                self._new_names, self._new_sides = [], []
            index = self.index_builder
            self._stream = EventStream(
                src=index.src,
                dst=index.dst,
                t=self._t.values,
                edge_x=None if self._edge_x is None else self._edge_x.values,
                node_x=self._base.node_x,  # new nodes have no features
                label=None,
                ids=NodeIds(self._names, self._side, self._lookup),
                time=self._base.time,
                name=self._base.name,
            )
            # Two cached properties, which would read all events after every append.
            vars(self._stream).update(elapsed=index.elapsed, tie_start=index.tie_start)
        return self._stream

    def stream_at(self, cut: int) -> EventStream:
        """Return the first ``cut`` events."""
        stream, n_nodes = self.stream(), self.n_nodes_at(cut)
        first = replace(
            stream,
            **{name: getattr(stream, name)[:cut] for name in ("src", "dst", "t")},
            edge_x=None if stream.edge_x is None else stream.edge_x[:cut],
            ids=stream.ids.slice(0, n_nodes),
        )
        vars(first).update(elapsed=stream.elapsed[:cut], tie_start=stream.tie_start[:cut])
        return first

    def history(self, seed: int) -> History:
        """Return what a model may read, on the CPU."""
        if self._index is None:
            self._index = self.index_builder.index()
        edge_x = None if self._edge_x is None else as_tensor(self._edge_x.values)
        node_x = None if self._base.node_x is None else as_tensor(self._base.node_x)
        return History(self._index, edge_x, node_x, seed=seed)

    def n_nodes_at(self, cut: int) -> int:
        """Return the number of nodes of the first ``cut`` events."""
        return int(np.searchsorted(self._first_event.values, cut))

    def destinations_at(self, cut: int) -> Ints:
        """Return the destinations of the first ``cut`` events, ascending."""
        return np.sort(self.destinations.visible(cut))

    def mark(self, cut: int) -> str:
        """Return a short hash of the latest of the first ``cut`` events: of their times and of the ids of their nodes.

        Two histories that differ before ``cut`` nearly always differ here too: all later events move by a place, or
        are others.
        """
        if self._mark[0] != cut:
            stream, latest = self.stream(), slice(max(0, cut - MARKED_EVENTS), cut)
            ends = np.concatenate([stream.src[latest], stream.dst[latest]])
            content = [stream.ids.decode(ends).to_pylist(), stream.elapsed[latest].tolist(), cut]
            digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:MARK_LENGTH]
            self._mark = cut, digest
        return self._mark[1]

    def encode(self, values: list[NodeId], side: Side, n_nodes: int) -> Ints:
        """Return node indices below ``n_nodes`` of checked ids; -1 for others."""
        space = self._lookup.spaces[int(side == "dst")]
        nodes = np.array([space.get(one, -1) for one in values], np.int64)
        return np.where(nodes < n_nodes, nodes, -1)

    def _note_first_events(self, src: Ints, dst: Ints, start: int, n_nodes: int) -> None:
        self._first_event.extend(np.full(n_nodes - len(self._first_event.values), NEVER))
        positions = np.arange(start, start + len(src))
        for nodes in (src, dst):
            np.minimum.at(self._first_event.values, nodes, positions)
