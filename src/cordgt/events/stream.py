"""The stream of events: sorted by time, immutable, nodes numbered by first appearance.

Files are read in `cordgt.io`; nothing here knows what a CSV file is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    as_lists,
    feature_rows,
    float64,
    from_lists,
    int64,
    is_number,
    to_numpy,
)
from cordgt.events.backing import StreamBacking
from cordgt.events.ids import NodeIds, id_column
from cordgt.events.times import FIRST_DATE, LAST_DATE, TimeAxis, number_column, tie_starts
from cordgt.files import read_own_parquet, write_atomically

__all__ = ["EventStream", "NodeIds", "TimeAxis"]

SORTED_NOTE = "the events were not sorted by time: sorted, events of equal time kept in the given order"
_EVENTS_FILE = "events.parquet"
_NODES_FILE = "nodes.parquet"
_FORMAT = "1"


@dataclass(frozen=True, eq=False)
class EventStream:
    """Events sorted by time. A query sees the first ``cut`` of them.

    Attributes:
        src, dst: (E,) int64 internal ids, numbered by first appearance in the sorted stream, src before dst.
        t: (E,) int64 or float64, non-decreasing, finite.
        edge_x: (E, de) float32 or None. node_x: (N, dn) float32 or None.
        label: (E,) int64 or float64 or None; NaN where an event has none.
        notes: what was assumed or done on reading, in sentences for people.
        backing: precomputed data of a stream on disk, whose arrays are mapped from files; None for a stream in memory.
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

    def __repr__(self) -> str:
        """A line, for notebooks: the arrays themselves would fill the screen."""
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
        """A stream from raw columns: checked, sorted stably by time (said in the notes when needed), ids numbered.

        ``t`` as numpy numbers is taken to stand on ``time`` already; anything else is parsed. Without ``time`` the
        axis is found from the column. Node features are joined later (``with_node_features``).
        DataError for no events, unequal lengths or bad values (RowError with the row as given, before sorting).
        """
        given, was_sorted = _checked(src, dst, t, edge_x, label, time).by_time()
        ids, src_id, dst_id = NodeIds.empty(shared=shared_ids).extend(given.src, given.dst)
        said = tuple(notes) if was_sorted else (*notes, SORTED_NOTE)
        return cls(src_id, dst_id, given.t, given.edge_x, None, given.label, ids, given.time, name, said)

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
    def elapsed(self) -> Floats:
        """(E,) float64 time since the first event: seconds for dates, the file's own unit for numbers.

        Numbers are exact up to 2^53 of span; dates, whose unit is the microsecond, are told apart to the same span.
        """
        since: Floats = self.elapsed_at(self.t) if self.backing is None else self.backing.elapsed[: self.n_events]
        return since

    @cached_property
    def tie_start(self) -> Ints:
        """(E,) int64 position of the first event with the same time."""
        if self.backing is not None:
            return np.asarray(self.backing.tie_start[: self.n_events], np.int64)
        return tie_starts(self.t)

    def elapsed_at(self, t: npt.ArrayLike) -> Any:
        """Float64 time since the first event of any times on the stream's axis (subtracted before the conversion)."""
        since = np.subtract(t, self.t[0]).astype(np.float64)
        return since / 1e6 if self.time.kind == "date" else since

    def cut_at(self, t: npt.ArrayLike) -> Any:
        """How many events are strictly earlier than ``t``: an int for one time, an int64 array for several."""
        when = np.asarray(t)
        if self.t.dtype.kind == "i" and when.dtype.kind == "f":
            # Earlier than 2.5 is earlier than 3; compared as integers, since float64 cannot hold every int64.
            low, high = -(2.0**63), 2.0**63
            whole = np.clip(np.ceil(when), low, np.nextafter(high, 0)).astype(np.int64)
            found = np.where(when >= high, self.n_events, np.searchsorted(self.t, whole, side="left"))
        else:
            found = np.searchsorted(self.t, when, side="left")
        return int(found) if when.ndim == 0 else found.astype(np.int64)

    def with_node_features(self, node_x: Any, *notes: str) -> EventStream:
        """The same stream with (N, dn) node features in internal order, and what there is to say about them."""
        rows = feature_rows(node_x, self.n_nodes, "node features")
        return replace(self, node_x=rows, notes=(*self.notes, *notes), backing=None)

    def with_notes(self, *notes: str) -> EventStream:
        """The same stream with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def append(self, src: Any, dst: Any, t: Any, edge_x: Any = None, label: Any = None) -> EventStream:
        """The stream with later events added; new ids are numbered on, known ones keep their numbers.

        The new events are sorted among themselves. New nodes get node features of zero where the stream has some;
        missing labels are NaN, and labels the stream does not know are dropped.
        DataError when one is earlier than the stream's last event, or its features are not as wide.
        """
        given, _ = _checked(src, dst, t, edge_x, label, self.time).by_time()
        old_t, new_t = _same_number_type(self.t, given.t)
        if new_t[0] < old_t[-1]:
            first, last = self.time.format_one(new_t[0]), self.time.format_one(old_t[-1])
            raise DataError(f"The new events begin at {first}, before the last event of the history ({last}).")
        check_span(old_t[0], new_t[-1])
        edge_x = self._more_features(given.edge_x)
        ids, src_id, dst_id = self.ids.extend(given.src, given.dst)
        return replace(
            self,
            src=np.concatenate([self.src, src_id]),
            dst=np.concatenate([self.dst, dst_id]),
            t=np.concatenate([old_t, new_t]),
            edge_x=edge_x,
            node_x=_more_rows(self.node_x, len(ids)),
            label=_more_labels(self.label, given.label, len(src_id)),
            ids=ids,
            backing=None,
            notes=(*self.notes, f"{len(src_id)} later events appended, with {len(ids) - self.n_nodes} new nodes"),
        )

    def append_stream(self, later: EventStream) -> EventStream:
        """``append`` for events that were read as a stream of their own (same axis of time; ids by name).

        Where both streams have node features of one width, new nodes bring theirs.
        """
        if later.time != self.time:
            raise DataError(f"In the new events {self.time.wrong_axis(later.time.format_one(later.t[0]))}.")
        src, dst = later.ids.take(later.src), later.ids.take(later.dst)
        grown = self.append(src, dst, later.t, later.edge_x, later.label)
        if grown.node_x is None or later.node_x is None:
            return grown
        if later.node_dim != self.node_dim:
            raise DataError(f"The new nodes have {later.node_dim} features; the history's have {self.node_dim}.")
        grown.node_x[self.n_nodes :] = later.node_x[_counterparts(grown.ids, self.n_nodes, later.ids)]
        return grown

    def _more_features(self, more: Features | None) -> Features | None:
        width = 0 if more is None else more.shape[1]
        if width != self.edge_dim:
            raise DataError(
                f"The new events have {width} features each; those of the history have {self.edge_dim}."
                " Name the feature columns (--features) so that both agree."
            )
        return None if self.edge_x is None or more is None else np.concatenate([self.edge_x, more])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes ``events.parquet`` and ``nodes.parquet`` into an existing folder, each whole or not at all."""
        about = {"cordgt_stream": _FORMAT, "name": self.name, "time": self.time.kind, "notes": json.dumps(self.notes)}
        events = {"src": pa.array(self.src), "dst": pa.array(self.dst), "t": pa.array(self.t)}
        if self.label is not None:
            events["label"] = pa.array(self.label)
        if self.edge_x is not None:
            events["features"] = as_lists(self.edge_x)
        nodes = {"id": self.ids.names}
        if self.ids.side is not None:
            nodes["side"] = pa.array(self.ids.side)
        if self.node_x is not None:
            nodes["features"] = as_lists(self.node_x)
        tables = {_NODES_FILE: pa.table(nodes), _EVENTS_FILE: pa.table(events).replace_schema_metadata(about)}
        for name, table in tables.items():
            write_atomically(Path(folder) / name, partial(pq.write_table, table, write_page_checksum=True))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EventStream:
        """The stream ``save`` wrote. RunError where a file is missing or damaged, or the two do not fit together."""
        source = Path(folder)
        events, nodes = read_own_parquet(source / _EVENTS_FILE), read_own_parquet(source / _NODES_FILE)
        about = {k: v.decode("utf-8", "replace") for k, v in (events.schema.metadata or {}).items()}
        if about.get(b"cordgt_stream") != _FORMAT:
            raise RunError(f"{source / _EVENTS_FILE} was not written by this version of cordgt: use the one that did.")
        if any(column.null_count for table in (events, nodes) for column in table.columns):
            raise RunError(f"The history in {source} is damaged: values are missing.")
        try:
            stream = cls(
                src=int64(pc.cast(events["src"], pa.int64())),
                dst=int64(pc.cast(events["dst"], pa.int64())),
                t=to_numpy(events["t"]),
                edge_x=from_lists(events["features"]) if "features" in events.column_names else None,
                node_x=from_lists(nodes["features"]) if "features" in nodes.column_names else None,
                label=to_numpy(events["label"]) if "label" in events.column_names else None,
                ids=NodeIds(
                    nodes["id"].combine_chunks(),
                    to_numpy(nodes["side"]).astype(np.uint8) if "side" in nodes.column_names else None,
                ),
                time={axis.kind: axis for axis in (TimeAxis("number"), TimeAxis("date"))}[about[b"time"]],
                name=about[b"name"],
                notes=tuple(str(k) for k in json.loads(about[b"notes"])),
            )
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
            raise RunError(f"The history in {source} is damaged: {error}.") from None
        wrong = _damage(stream)
        if wrong:
            raise RunError(f"The history in {source} is damaged: {wrong}.")
        return stream


def _damage(stream: EventStream) -> str:
    """What is wrong with a stream read back from its two tables, in words; empty when it is sound."""
    if stream.n_events == 0:
        return "it holds no events"
    if stream.t.dtype not in (np.int64, np.float64) or stream.ids.names.type not in (pa.int64(), pa.string()):
        return "times or ids are of the wrong type"
    both = np.concatenate([stream.src, stream.dst])
    if both.min() < 0 or both.max() >= stream.n_nodes or len(np.unique(both)) != stream.n_nodes:
        return "its events and its nodes do not fit together"
    if not np.isfinite(stream.t).all() or (stream.t[1:] < stream.t[:-1]).any():
        return "its times are not sorted"
    if stream.time.kind == "date" and (
        stream.t.dtype != np.int64 or stream.t[0] < FIRST_DATE or stream.t[-1] > LAST_DATE
    ):
        return "its times are no dates"
    try:
        check_span(stream.t[0], stream.t[-1])
    except DataError as error:
        return str(error).rstrip(".")
    if stream.label is not None and stream.label.dtype not in (np.int64, np.float64):
        return "its labels are of the wrong type"
    if not all(x is None or np.isfinite(x).all() for x in (stream.edge_x, stream.node_x)):
        return "a feature is not a finite number"
    if stream.ids.side is not None and stream.ids.side.max() > 1:
        return "its ids and their sides do not fit together"
    own_spaces = (
        [stream.ids.names]
        if stream.ids.side is None
        else [stream.ids.names.filter(pa.array(stream.ids.side == side)) for side in (0, 1)]
    )
    if any(pc.count_distinct(names).as_py() < len(names) for names in own_spaces):
        return "an id comes twice"
    return ""


# -------------------- checking and sorting


@dataclass(frozen=True, eq=False)
class _Columns:
    """Raw columns of equal length, values checked; ids still the user's."""

    src: Any
    dst: Any
    t: Ints | Floats
    edge_x: Features | None
    label: Ints | Floats | None
    time: TimeAxis

    def by_time(self) -> tuple[_Columns, bool]:
        """The columns in stable order of time, and whether they were so already."""
        if not (self.t[1:] < self.t[:-1]).any():
            return self, True
        order = np.argsort(self.t, kind="stable")
        take = pa.array(order)
        edge_x = None if self.edge_x is None else self.edge_x[order]
        label = None if self.label is None else self.label[order]
        return _Columns(self.src.take(take), self.dst.take(take), self.t[order], edge_x, label, self.time), False


def _checked(src: Any, dst: Any, t: Any, edge_x: Any, label: Any, time: TimeAxis | None) -> _Columns:
    """The columns as ``_Columns``; errors as in ``EventStream.from_columns``."""
    src, dst = id_column(src), id_column(dst)
    if time is not None and isinstance(t, np.ndarray) and t.dtype.kind in "iuf":
        t = number_column(as_column(t))
    else:
        t = as_column(t)
        time = time or TimeAxis.of(t)
        t = time.parse_column(t)
    if not len(src) == len(dst) == len(t):
        raise DataError(f"Columns of unequal length: {len(src)} sources, {len(dst)} destinations, {len(t)} times.")
    if len(src) == 0:
        raise DataError("There are no events.")
    check_span(t.min(), t.max())
    return _Columns(src, dst, t, feature_rows(edge_x, len(t), "event features"), label_column(label, len(t)), time)


def check_span(first: Any, last: Any) -> None:
    """DataError where the time between two numpy numbers cannot be told in numbers of their type."""
    if last.item() - first.item() >= (2**63 if first.dtype.kind == "i" else np.inf):
        raise DataError(f"The times span from {first} to {last}, too far to subtract one from the other.")


def check_exact(whole: Any) -> None:
    """DataError where whole times cannot stand beside fractions: as float64 some of them would be another time."""
    if whole.max() > 2**53 or whole.min() < -(2**53):
        raise DataError(
            "Some of the times are fractions, others are whole numbers too large to be told exactly beside. "
            "Write all of them as whole numbers, or count from a later start."
        )


def label_column(values: Any, n_rows: int) -> Ints | Floats | None:
    """Labels as int64 (integers, booleans) or float64 (NaN where missing). DataError if they are not numbers."""
    if values is None:
        return None
    column = as_column(values)
    if len(column) != n_rows:
        raise DataError(f"There are {len(column)} labels for {n_rows} events.")
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(n_rows, np.nan)
    if not is_number(kind):
        raise DataError(f"The labels are not numbers (type {kind}).")
    if (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) and not column.null_count:
        try:
            return int64(pc.cast(column, pa.int64()))
        except pa.ArrowInvalid:  # unsigned, and beyond 2^63
            pass
    return float64(pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan")))


# -------------------- growing


def _same_number_type(old: Any, new: Any) -> tuple[Any, Any]:
    """Old and new times of one type: whole floats join integers as integers, else both are float64."""
    if old.dtype == new.dtype:
        return old, new
    if old.dtype.kind == "i" and (new == np.floor(new)).all() and (np.abs(new) < 2.0**63).all():
        return old, new.astype(np.int64)
    check_exact(old if old.dtype.kind == "i" else new)
    return old.astype(np.float64), new.astype(np.float64)


def _more_rows(rows: Features | None, n_rows: int) -> Features | None:
    """The rows with zeros below, ``n_rows`` in all; a copy."""
    if rows is None:
        return None
    return np.concatenate([rows, np.zeros((n_rows - len(rows), rows.shape[1]), np.float32)])


def _more_labels(old: Any, new: Any, n_new: int) -> Any:
    if old is None:
        return None
    return np.concatenate([old, np.full(n_new, np.nan) if new is None else new])


def _counterparts(ids: NodeIds, start: int, other: NodeIds) -> Ints:
    """For the nodes of ``ids`` from ``start`` on: their internal ids in ``other``, which has them all by name."""
    names = ids.names.slice(start)
    as_src, as_dst = other.find(names, "src"), other.find(names, "dst")
    return np.where(as_src < 0 if ids.side is None else ids.side[start:] == 1, as_dst, as_src)
