"""The stream of events: sorted by time, immutable, nodes numbered by first appearance.

`cordgt.io` reads files into streams; `cordgt.events.export` writes streams as files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cordgt.errors import DataError, RunError
from cordgt.events.arrays import (
    Features,
    Floats,
    Ints,
    as_column,
    as_feature_matrix,
    from_list_column,
    to_int64,
    to_list_column,
    to_numpy,
    unique_nodes,
)
from cordgt.events.backing import StreamBacking
from cordgt.events.columns import append_labels, check_time_span, pad_rows, unify_time_types, validate_columns
from cordgt.events.fingerprints import fingerprint_arrays
from cordgt.events.frames import StreamExport, parse_column_names
from cordgt.events.ids import NodeIds
from cordgt.events.notes import append_note
from cordgt.events.time_precision import note_lost_times
from cordgt.events.times import (
    MAX_DATE,
    MIN_DATE,
    TimeAxis,
    epoch_unit,
    format_time,
    guess_time_kind,
    tie_starts,
    units_per_second,
)
from cordgt.files import read_run_parquet, write_atomically

__all__ = ["EventStream", "NodeIds", "TimeAxis"]

SORTED_NOTE = "the events were not sorted by time: sorted, with events of equal time in the given order"
_EVENTS_FILE = "events.parquet"
_NODES_FILE = "nodes.parquet"
_FORMAT = "1"


@dataclass(frozen=True, eq=False)
class EventStream(StreamExport):
    """Events sorted by time. A query sees the first ``cut`` of them.

    ``stream[a:b]`` holds the events from ``a`` to ``b - 1``. `to_pandas`, `to_polars`, `to_arrow` and
    `to_temporal_data` give the events to other libraries.

    Attributes:
        src, dst: (E,) int64 internal ids, numbered by first appearance in the sorted stream, src before dst.
        t: (E,) int64 or float64, non-decreasing, finite.
        edge_x: (E, de) float32 or None. node_x: (N, dn) float32 or None.
        label: (E,) int64 or float64 or None; NaN where an event has none.
        notes: assumptions and changes made while reading, as sentences.
        backing: precomputed data of a stream on disk, whose arrays are mapped from files; None for a stream in memory.
        columns: the column options that the stream was read with; `cordgt.train` and `Run.with_events` use them again.
        column_names: names of the columns that the stream was read from, by role; ``features`` is a list.

    Examples:
        >>> stream = cordgt.EventStream.from_columns(["ada", "bob", "ada"], ["tea", "tea", "milk"], [10, 20, 30])
        >>> stream
        <EventStream (no name): 3 events of 4 nodes>
        >>> stream[:2].n_events, stream.before(30).n_events
        (2, 2)
    """

    src: Ints
    dst: Ints
    t: Ints | Floats
    edge_x: Features | None
    node_x: Features | None
    label: Ints | Floats | None
    ids: NodeIds
    time: TimeAxis
    name: str = ""
    notes: tuple[str, ...] = ()
    backing: StreamBacking | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    column_names: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line, because the arrays would fill the screen."""
        return f"<EventStream {self.name or '(no name)'}: {self.n_events:,} events of {self.n_nodes:,} nodes>"

    @classmethod
    def from_columns(
        cls,
        src: Any,
        dst: Any,
        t: Any,
        edge_x: Any = None,
        label: Any = None,
        *,
        shared_ids: bool = True,
        time: TimeAxis | None = None,
        name: str = "",
        notes: Sequence[str] = (),
    ) -> EventStream:
        """Build a stream from raw columns: validate them, sort stably by time, number the nodes.

        If ``time`` is given, numpy numbers in ``t`` are already on that axis; anything else is parsed. Without ``time``
        the axis is inferred from the column. Add node features with ``with_node_features``.
        DataError for no events, unequal lengths or bad values (RowError with the row as given, before sorting).
        """
        raw = validate_columns(src, dst, t, edge_x, label, time)
        columns, was_sorted = raw.sort()
        ids, src_id, dst_id = NodeIds.empty(shared=shared_ids).extend(columns.src, columns.dst)
        all_notes = (*notes, *note_lost_times(as_column(t), raw.t), *(() if was_sorted else (SORTED_NOTE,)))
        return cls(src_id, dst_id, columns.t, columns.edge_x, None, columns.label, ids, columns.time, name, all_notes)

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, events: slice) -> EventStream:
        """Return the stream of some events: ``stream[:1000]``, ``stream[-500:]``.

        Its nodes are those of these events, numbered anew. DataError if there are none.
        """
        if not isinstance(events, slice) or events.step not in (None, 1):
            raise TypeError(f"A stream takes slices without a step, such as stream[:1000], not {events!r}.")
        start, stop, _ = events.indices(self.n_events)
        if stop <= start:
            raise DataError(f"The slice {start}:{stop} of a stream of {self.n_events:,} events holds no events.")
        src, dst = (np.asarray(x[start:stop], np.int64) for x in (self.src, self.dst))
        ends = np.stack([src, dst], axis=1).reshape(-1)
        nodes, first = np.unique(ends, return_index=True)
        nodes = nodes[np.argsort(first)]  # by first appearance
        number = np.zeros(self.n_nodes, np.int64)
        number[nodes] = np.arange(len(nodes))
        side = None if self.ids.side is None else self.ids.side[nodes]
        return replace(
            self,
            src=number[src],
            dst=number[dst],
            t=self.t[start:stop],
            edge_x=None if self.edge_x is None else self.edge_x[start:stop],
            node_x=None if self.node_x is None else self.node_x[nodes],
            label=None if self.label is None else self.label[start:stop],
            ids=NodeIds(self.ids.names.take(pa.array(nodes)), side),
            notes=(*self.notes, f"only the events {start:,} to {stop - 1:,} of {self.n_events:,} (counted from 0)"),
            backing=None,
        )

    def before(self, time: Any) -> EventStream:
        """Return the events strictly earlier than a time (text, number, date): what a query at that time sees."""
        stop = self.cut_at(self.parse_time(time))
        if stop == 0:
            raise DataError(f"No event is before {time}; the stream begins at {self.format_time(self.t[0])}.")
        return self[:stop]

    @property
    def n_events(self) -> int:
        return len(self.src)

    @property
    def n_nodes(self) -> int:
        return len(self.ids)

    @property
    def edge_dim(self) -> int:
        """Width of the event features; 0 without."""
        return 0 if self.edge_x is None else self.edge_x.shape[1]

    @property
    def node_dim(self) -> int:
        """Width of the node features; 0 without."""
        return 0 if self.node_x is None else self.node_x.shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of events and features: the same for the same data. It covers node numbers, not the user's ids."""
        if self.backing is not None:
            return self.backing.fingerprint
        arrays = (self.src, self.dst, self.t, self.edge_x, self.node_x)
        return fingerprint_arrays(x for x in arrays if x is not None)

    @cached_property
    def elapsed(self) -> Floats:
        """(E,) float64 time since the first event: seconds for dates, the file's own unit for numbers.

        Exact for spans up to 2^53 units; the unit of dates is the microsecond.
        """
        elapsed: Floats = self.elapsed_at(self.t) if self.backing is None else self.backing.elapsed[: self.n_events]
        return elapsed

    @cached_property
    def tie_start(self) -> Ints:
        """(E,) int64 position of the first event with the same time."""
        if self.backing is not None:
            return np.asarray(self.backing.tie_start[: self.n_events], np.int64)
        return tie_starts(self.t)

    @property
    def epoch_unit(self) -> str:
        """The unit of times that count from 1970 (``seconds``, …); empty for dates and for other numbers."""
        return epoch_unit(self.t[0], self.t[-1]) if self.time.kind == "number" else ""

    def parse_time(self, value: Any) -> int | float:
        """Return the time of a query on the stream's axis. A date is possible if the times count from 1970.

        ``value`` is text, a number, a date or a datetime. DataError if it is no time of this axis.
        """
        is_date = (
            guess_time_kind(value) == "date" if isinstance(value, str) else isinstance(value, date | np.datetime64)
        )
        if not (is_date and self.epoch_unit):
            return self.time.parse(value)
        time = TimeAxis("date").parse(value) * units_per_second(self.epoch_unit)  # dates are in microseconds
        return time // 10**6 if time % 10**6 == 0 or self.t.dtype.kind == "i" else time / 1e6

    def elapsed_at(self, t: npt.ArrayLike) -> Any:
        """Return float64 times since the first event, for times on the stream's axis."""
        return self.time.elapsed(t, self.t[0])

    def format_time(self, value: Any) -> str:
        """Return a time of this stream as text for people, with its date if the times count from 1970."""
        return format_time(value, self.epoch_unit) if self.epoch_unit else self.time.format_one(value)

    def cut_at(self, t: npt.ArrayLike) -> Any:
        """Return the number of events strictly earlier than ``t``: an int, or an int64 array for an array."""
        times = np.asarray(t)
        if self.t.dtype.kind == "i" and times.dtype.kind == "f":
            # Compare as integers, because float64 cannot hold every int64: earlier than 2.5 is earlier than 3.
            low, high = -(2.0**63), 2.0**63
            whole = np.clip(np.ceil(times), low, np.nextafter(high, 0)).astype(np.int64)
            cut = np.where(times >= high, self.n_events, np.searchsorted(self.t, whole, side="left"))
        else:
            cut = np.searchsorted(self.t, times, side="left")
        return int(cut) if times.ndim == 0 else cut.astype(np.int64)

    def with_node_features(self, node_x: Any, *notes: str) -> EventStream:
        """Return the stream with (N, dn) node features in internal order, and notes about them."""
        rows = as_feature_matrix(node_x, self.n_nodes, "node features")
        return replace(self, node_x=rows, notes=(*self.notes, *notes), backing=None)

    def with_notes(self, *notes: str) -> EventStream:
        """Return the stream with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def append(self, src: Any, dst: Any, t: Any, edge_x: Any = None, label: Any = None) -> EventStream:
        """Return the stream with later events added. New nodes get the next numbers; known nodes keep theirs.

        The new events are sorted among themselves. If the stream has node features, those of new nodes are zero. If it
        has labels, missing ones are NaN; otherwise new labels are dropped.
        DataError if an event is earlier than the stream's last, or the features have another width.
        """
        new, _ = validate_columns(src, dst, t, edge_x, label, self.time).sort()
        old_t, new_t = unify_time_types(self.t, new.t)
        if new_t[0] < old_t[-1]:
            first, last = self.time.format_one(new_t[0]), self.time.format_one(old_t[-1])
            raise DataError(f"The new events begin at {first}, before the last event of the history ({last}).")
        check_time_span(old_t[0], new_t[-1])
        edge_x = self._append_features(new.edge_x)
        ids, src_id, dst_id = self.ids.extend(new.src, new.dst)
        return replace(
            self,
            src=np.concatenate([self.src, src_id]),
            dst=np.concatenate([self.dst, dst_id]),
            t=np.concatenate([old_t, new_t]),
            edge_x=edge_x,
            node_x=pad_rows(self.node_x, len(ids)),
            label=append_labels(self.label, new.label, len(src_id)),
            ids=ids,
            backing=None,
            notes=(*self.notes, append_note(len(src_id), len(ids) - self.n_nodes)),
        )

    def append_stream(self, later: EventStream) -> EventStream:
        """Append the events of another stream on the same time axis; nodes are matched by the user's ids.

        If both streams have node features, new nodes keep theirs. DataError if the widths differ.
        """
        if later.time != self.time:
            raise DataError(f"In the new events {self.time.mismatch_text(later.time.format_one(later.t[0]))}.")
        src, dst = later.ids.decode(later.src), later.ids.decode(later.dst)
        stream = self.append(src, dst, later.t, later.edge_x, later.label)
        if stream.node_x is None or later.node_x is None:
            return stream
        if later.node_dim != self.node_dim:
            raise DataError(f"The new nodes have {later.node_dim} features; the history's have {self.node_dim}.")
        stream.node_x[self.n_nodes :] = later.node_x[later.ids.match(stream.ids.slice(self.n_nodes))]
        return stream

    def _append_features(self, new: Features | None) -> Features | None:
        width = 0 if new is None else new.shape[1]
        if width != self.edge_dim:
            raise DataError(
                f"The new events have {width} features each; those of the history have {self.edge_dim}."
                " Name the feature columns (--features) so that both agree."
            )
        return None if self.edge_x is None or new is None else np.concatenate([self.edge_x, new])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``events.parquet`` and ``nodes.parquet`` into an existing folder, each atomically."""
        metadata = {
            "cordgt_stream": _FORMAT,
            "name": self.name,
            "time": self.time.kind,
            "notes": json.dumps(self.notes),
            "columns": json.dumps(dict(self.columns)),
            "column_names": json.dumps(dict(self.column_names)),
        }
        events = {"src": pa.array(self.src), "dst": pa.array(self.dst), "t": pa.array(self.t)}
        if self.label is not None:
            events["label"] = pa.array(self.label)
        if self.edge_x is not None:
            events["features"] = to_list_column(self.edge_x)
        nodes = {"id": self.ids.names}
        if self.ids.side is not None:
            nodes["side"] = pa.array(self.ids.side)
        if self.node_x is not None:
            nodes["features"] = to_list_column(self.node_x)
        tables = {_NODES_FILE: pa.table(nodes), _EVENTS_FILE: pa.table(events).replace_schema_metadata(metadata)}
        for name, table in tables.items():
            write_atomically(Path(folder) / name, partial(pq.write_table, table, write_page_checksum=True))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EventStream:
        """Read a stream written by ``save``. RunError if a file is missing or damaged, or the two do not match."""
        source = Path(folder)
        events, nodes = read_run_parquet(source / _EVENTS_FILE), read_run_parquet(source / _NODES_FILE)
        metadata = {k: v.decode("utf-8", "replace") for k, v in (events.schema.metadata or {}).items()}
        if metadata.get(b"cordgt_stream") != _FORMAT:
            raise RunError(f"{source / _EVENTS_FILE} was written by another version of cordgt. Use that version.")
        if any(column.null_count for table in (events, nodes) for column in table.columns):
            raise RunError(f"The history in {source} is damaged: values are missing.")
        try:
            stream = cls(
                src=to_int64(pc.cast(events["src"], pa.int64())),
                dst=to_int64(pc.cast(events["dst"], pa.int64())),
                t=to_numpy(events["t"]),
                edge_x=from_list_column(events["features"]) if "features" in events.column_names else None,
                node_x=from_list_column(nodes["features"]) if "features" in nodes.column_names else None,
                label=to_numpy(events["label"]) if "label" in events.column_names else None,
                ids=NodeIds(
                    nodes["id"].combine_chunks(),
                    to_numpy(nodes["side"]).astype(np.uint8) if "side" in nodes.column_names else None,
                ),
                time={axis.kind: axis for axis in (TimeAxis("number"), TimeAxis("date"))}[metadata[b"time"]],
                name=metadata[b"name"],
                notes=tuple(str(k) for k in json.loads(metadata[b"notes"])),
                columns=parse_column_names(metadata.get(b"columns")),
                column_names=parse_column_names(metadata.get(b"column_names")),
            )
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
            raise RunError(f"The history in {source} is damaged: {error}.") from None
        problem = _find_damage(stream)
        if problem:
            raise RunError(f"The history in {source} is damaged: {problem}.")
        return stream


def _find_damage(stream: EventStream) -> str:
    """Return what is wrong with a stream read from its two files; an empty string if nothing is."""
    if stream.n_events == 0:
        return "it holds no events"
    if stream.t.dtype not in (np.int64, np.float64) or stream.ids.names.type not in (pa.int64(), pa.string()):
        return "times or ids are of the wrong type"
    nodes = np.concatenate([stream.src, stream.dst])
    if nodes.min() < 0 or nodes.max() >= stream.n_nodes or len(unique_nodes(nodes, stream.n_nodes)) != stream.n_nodes:
        return "its events and its nodes do not match"
    if not np.isfinite(stream.t).all() or (stream.t[1:] < stream.t[:-1]).any():
        return "its times are not sorted"
    if stream.time.kind == "date" and (stream.t.dtype != np.int64 or stream.t[0] < MIN_DATE or stream.t[-1] > MAX_DATE):
        return "its times are not dates"
    try:
        check_time_span(stream.t[0], stream.t[-1])
    except DataError as error:
        return str(error).rstrip(".")
    if stream.label is not None and stream.label.dtype not in (np.int64, np.float64):
        return "its labels are of the wrong type"
    if not all(x is None or np.isfinite(x).all() for x in (stream.edge_x, stream.node_x)):
        return "a feature is not a finite number"
    if stream.ids.side is not None and stream.ids.side.max() > 1:
        return "its ids and their sides do not match"
    id_spaces = (
        [stream.ids.names]
        if stream.ids.side is None
        else [stream.ids.names.filter(pa.array(stream.ids.side == side)) for side in (0, 1)]
    )
    if any(pc.count_distinct(names).as_py() < len(names) for names in id_spaces):
        return "an id occurs twice"
    return ""
