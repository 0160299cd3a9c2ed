"""What a store is made from: a source yields events in chunks. Includes the sources that read no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from cordgt.events.arrays import Features, Floats, Ints
from cordgt.events.fingerprints import fingerprint_arrays, fingerprint_ids
from cordgt.events.ids import NodeIds
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis

CHUNK_ROWS = 1_000_000


@dataclass(frozen=True)
class ReadPosition:
    """Where the next chunk begins: index of the file, offset in it (byte of text, Parquet row group), row or line."""

    file: int = 0
    offset: int = 0
    row: int = 0


@dataclass(frozen=True, eq=False)
class EventChunk:
    """Validated events in source order. Ids are as ``as_id_column`` returns them, times on the source's axis."""

    src: Any
    dst: Any
    t: Ints | Floats
    label: Ints | Floats | None
    edge_x: Features | None


class EventSource(Protocol):
    """Events in chunks. Whether there are labels, features or notes is final only after the last chunk."""

    name: str
    axis: TimeAxis
    shared: bool  # sources and destinations share one id space
    columns: Mapping[str, Any]  # column options as JSON; ``features`` is a list of names, if they are known

    @property
    def skip_notes(self) -> tuple[str, ...]:
        """The notes about input lines that were skipped."""

    def chunks(self, start: ReadPosition) -> Iterator[tuple[ReadPosition | None, EventChunk]]:
        """Yield the events from ``start`` on, each chunk with the next position; None: reading cannot resume there."""

    def notes(self) -> tuple[str, ...]:
        """Assumptions made while reading."""

    def has_labels(self) -> bool:
        """False if there are no labels, or a chunk had labels that are not numbers."""

    def has_features(self) -> bool:
        """False if there are no features, or a published layout's features are all zero."""

    def node_features(self, ids: NodeIds) -> Features | None:
        """(N, D) features of these nodes, zero for nodes without any; None if the source has no node features."""

    def n_events(self) -> int | None:
        """Number of events; None if it is unknown before reading."""

    def identity(self) -> list[Any]:
        """JSON value that is equal for the same data and options, so that an interrupted conversion may resume."""

    def get_state(self) -> dict[str, Any]:
        """What the source has learned from the chunks so far, as JSON."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`."""


@dataclass(frozen=True)
class NodeFeatureTable:
    """Node features that do not come from the event source."""

    join: Callable[[EventStream], EventStream]  # adds ``node_x`` and notes to a stream
    identity: list[Any]  # see `EventSource.identity`


@dataclass(eq=False)
class StreamSource:
    """The events of a stream in memory or in a store."""

    stream: EventStream
    chunk_rows: int = CHUNK_ROWS
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the stream's store
    skip_notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.name, self.axis, self.shared = self.stream.name, self.stream.time, self.stream.ids.shared

    def chunks(self, start: ReadPosition) -> Iterator[tuple[ReadPosition | None, EventChunk]]:
        s = self.stream
        for low in range(start.row, s.n_events, self.chunk_rows):
            high = min(low + self.chunk_rows, s.n_events)
            src, dst = (s.ids.decode(x[low:high]) for x in (s.src, s.dst))
            label, edge_x = (None if x is None else x[low:high] for x in (s.label, s.edge_x))
            yield ReadPosition(0, high, high), EventChunk(src, dst, s.t[low:high], label, edge_x)  # type: ignore[arg-type]

    def notes(self) -> tuple[str, ...]:
        return self.stream.notes

    def has_labels(self) -> bool:
        return self.stream.label is not None

    def has_features(self) -> bool:
        return self.stream.edge_x is not None

    def node_features(self, ids: NodeIds) -> Features | None:
        old = self.stream
        if old.node_x is None:
            return None
        node = old.ids.match(ids)
        rows = np.zeros((len(ids), old.node_dim), np.float32)
        rows[node >= 0] = old.node_x[node[node >= 0]]
        return rows

    def n_events(self) -> int | None:
        return self.stream.n_events

    def identity(self) -> list[Any]:
        s, backing = self.stream, self.stream.backing
        arrays: dict[str, Any] = {"label": s.label, "side": s.ids.side}  # a store's fingerprints cover all others
        if backing is None:
            arrays |= {"src": s.src, "dst": s.dst, "t": s.t, "edge_x": s.edge_x, "node_x": s.node_x}
        hashes = {name: None if x is None else fingerprint_arrays([x]) for name, x in arrays.items()}
        ids = fingerprint_ids(s.ids.names, s.time.kind) if backing is None else backing.ids_fingerprint
        return ["stream", self.name, s.n_events, hashes, ids, None if backing is None else backing.fingerprint]

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


@dataclass(eq=False)
class ConcatSource:
    """The events of ``first``, then those of ``second``. All properties but the events are those of ``first``.

    Labels and features of ``second`` are dropped if ``first`` has none. Reading cannot resume.
    """

    first: EventSource
    second: EventSource

    def __post_init__(self) -> None:
        self.name, self.axis, self.shared = self.first.name, self.first.axis, self.first.shared
        self.columns = self.first.columns
        self.has_labels, self.has_features = self.first.has_labels, self.first.has_features
        self.node_features = self.first.node_features

    @property
    def skip_notes(self) -> tuple[str, ...]:
        return (*self.first.skip_notes, *self.second.skip_notes)

    def chunks(self, start: ReadPosition) -> Iterator[tuple[ReadPosition | None, EventChunk]]:
        for _, chunk in self.first.chunks(start):
            yield None, chunk
        for _, chunk in self.second.chunks(ReadPosition()):
            label = chunk.label if self.has_labels() else None
            yield None, replace(chunk, label=label, edge_x=chunk.edge_x if self.has_features() else None)

    def notes(self) -> tuple[str, ...]:
        return (*self.first.notes(), *self.second.skip_notes)

    def n_events(self) -> int | None:
        first, second = self.first.n_events(), self.second.n_events()
        return None if first is None or second is None else first + second

    def identity(self) -> list[Any]:
        return [self.first.identity(), self.second.identity()]

    def get_state(self) -> dict[str, Any]:
        return {"first": self.first.get_state(), "second": self.second.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.first.set_state(state["first"])
        self.second.set_state(state["second"])
