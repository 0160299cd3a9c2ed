"""Events from files that are read a piece at a time: a file, or a folder of files with the same columns.

What ``read_events`` decides for a whole file is decided here for all pieces together: roles by the first file, the
axis of time by the first event. What only the whole can tell (are all ids integers, all times whole) is left to who
collects.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq

from cordgt.arrays import Features, Floats, Ints
from cordgt.errors import DataError
from cordgt.events.fingerprints import fingerprint_of, ids_fingerprint_of
from cordgt.events.ids import NodeIds
from cordgt.events.stream import EventStream, label_column
from cordgt.events.times import TimeAxis
from cordgt.files import PARQUET_ERRORS
from cordgt.reading.opening import COMMENTS, more_text
from cordgt.reading.pieces import HEAD, at_places, batches, opened, parquet_file, text_file, typed_piece, whole_lines
from cordgt.reading.readers import (
    DATE_NOTE,
    Ids,
    check_ids,
    check_split_date,
    column_notes,
    id_spaces,
    labels_of,
    name_of,
)
from cordgt.reading.roles import ColumnOptions, Roles, choose
from cordgt.reading.tables import Table, TextTable

LEARNT = ("_zero", "_width", "_bad_labels", "_comments")  # what `EventFiles` knows only by reading, for its notes


@dataclass(frozen=True)
class Mark:
    """Where reading goes on: a file, a place in it (a byte of text, a row group of Parquet), the row or line there."""

    file: int = 0
    place: int = 0
    row: int = 0


@dataclass(frozen=True, eq=False)
class Rows:
    """Some events in the order of the file, checked: ids as ``id_column`` gives them, times on the axis."""

    src: Any
    dst: Any
    t: Ints | Floats
    label: Ints | Floats | None
    edge_x: Features | None


class Source(Protocol):
    """Events in pieces, and what is to be known about them once all were read."""

    name: str
    axis: TimeAxis
    shared: bool
    columns: Mapping[str, Any]  # column options as JSON holds them: ``features`` is a list of names, if these are known

    def chunks(self, mark: Mark) -> Iterator[tuple[Mark | None, Rows]]:
        """The events from ``mark`` on, each piece with where the next one begins; None: reading cannot go on there."""

    def notes(self) -> tuple[str, ...]:
        """What was assumed in reading."""

    def has_labels(self) -> bool:
        """False: no labels, or a piece had some that are no numbers."""

    def has_features(self) -> bool:
        """False: no features, or a layout's that are all zero."""

    def total(self) -> int | None:
        """How many events there are; None where only reading tells."""

    def identity(self) -> list[Any]:
        """What tells whether this is the source that was read before, as JSON holds it."""

    def seen(self) -> dict[str, Any]:
        """What was learnt from the pieces so far, as JSON holds it."""

    def recall(self, seen: dict[str, Any]) -> None:
        """Know again what was ``seen`` before reading was interrupted."""


# -------------------- files


@dataclass(eq=False)
class EventFiles:
    """Files with the same columns, one after the other. Options as in ``read_events``.

    DataError, with the file and the line, for what cannot be read, and for a file with other columns than the first.
    """

    paths: list[Path]
    options: ColumnOptions = field(default_factory=ColumnOptions)
    ids: Ids = "auto"
    rows_at_once: int = 1_000_000
    bytes_at_once: int = 1 << 25
    name: str = ""

    def __post_init__(self) -> None:
        check_ids(self.ids)
        table = opened(self.paths[0], self.options)
        self.first, self.roles = table, choose(table, self.options)
        self.shared, self._id_note = id_spaces(table, self.roles, self.ids)
        self.columns: Mapping[str, Any] = _columns(table, self.roles, self.options)
        self.name = self.name or name_of(self.paths[0])
        self._zero, self._width, self._bad_labels, self._comments = True, 0, "", bool(table.notes)
        self.axis = self._axis()

    def chunks(self, mark: Mark) -> Iterator[tuple[Mark | None, Rows]]:
        for number in range(mark.file, len(self.paths)):
            start = mark if number == mark.file else Mark(number)
            path = self.paths[number]
            table = opened(path, self.options)
            roles = self.roles if number == 0 else self._same_roles(table)
            if isinstance(table, TextTable):
                pieces = self._text(path, table, start)
            else:
                pieces = self._parquet(path, table, roles, start)
            for after, piece in pieces:
                rows = self._rows(piece, roles)
                if len(rows.t):
                    yield after, rows

    def notes(self) -> tuple[str, ...]:
        table, roles = self.first, self.roles
        said = [f"lines {COMMENTS}"] if self._comments else []
        if len(self.paths) > 1:
            said.append(f"{len(self.paths)} files, from {self.paths[0].name} to {self.paths[-1].name}")
        said += column_notes(table, roles)
        said += [self._bad_labels] if self._bad_labels else []
        if roles.features:
            some = f"{self._width} features an event"
            said.append(some if self.has_features() else "the features are all zero: read as none")
        return (*said, *([DATE_NOTE] if self.axis.kind == "date" else []), self._id_note)

    def has_labels(self) -> bool:
        return self.roles.label is not None and not self._bad_labels

    def has_features(self) -> bool:
        optional = self.first.layout == "jodie" and self.options.features is None
        return bool(self.roles.features) and not (optional and self._zero)

    def total(self) -> int | None:
        try:
            return sum(pq.read_metadata(path).num_rows for path in self.paths)
        except PARQUET_ERRORS:
            return None  # text

    def identity(self) -> list[Any]:
        told = [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in self.paths]
        return [told, {k: str(v) for k, v in vars(self.options).items()}, self.ids]

    def seen(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in LEARNT}

    def recall(self, seen: dict[str, Any]) -> None:
        for name in LEARNT:
            setattr(self, name, seen[name])

    # -------------------- what one piece says

    def _rows(self, table: Table, roles: Roles) -> Rows:
        columns = table.columns(roles.single())
        assert roles.time is not None, "choose refuses a table without"
        n = len(columns[roles.src])
        label = self._labels(table, columns, roles, n)
        edge_x = None
        if roles.features and n:
            edge_x = table.numbers(roles.features)
            self._width = edge_x.shape[1]
            self._zero = self._zero and not edge_x.any()
        self._comments = self._comments or bool(table.notes)
        return Rows(
            table.ids(columns[roles.src], roles.src),
            table.ids(columns[roles.dst], roles.dst),
            table.times(columns[roles.time], roles.time, self.axis),
            label,
            edge_x,
        )

    def _labels(self, table: Table, columns: dict[int, Any], roles: Roles, n: int) -> Ints | Floats | None:
        if not self.has_labels():
            return None
        found, notes = labels_of(table, columns, roles, asked=self.options.label is not None)
        self._bad_labels = notes[0] if notes else ""
        return None if found is None else label_column(found, n)

    def _axis(self) -> TimeAxis:
        """The axis that the first event's time stands on."""
        for number, path in enumerate(self.paths):
            table = opened(path, self.options)
            roles = self.roles if number == 0 else self._same_roles(table)
            assert roles.time is not None, "choose refuses a table without"
            if isinstance(table, TextTable):
                check_split_date(table, roles.time)
                pieces = self._text(path, table, Mark(number))
            else:
                pieces = self._parquet(path, table, roles, Mark(number))
            for _, piece in pieces:
                times = piece.columns([roles.time])[roles.time]
                if len(times):
                    return TimeAxis.of(times)
        raise DataError(f"{self.paths[0]} holds no events.")

    def _same_roles(self, table: Table) -> Roles:
        """The roles of the first file's columns in another file, found by their names."""
        first, roles = self.first, self.roles
        if (first.header is None) != (table.header is None) or first.layout != table.layout:
            raise DataError(f"{table.label} is laid out in another way than {first.label}: header or layout differ.")
        if first.header is None or table.header is None or first.layout == "jodie":
            if table.width != first.width:
                raise DataError(f"{table.label} has {table.width} columns; {first.label} has {first.width}.")
            return roles
        places = {}
        for k in roles.used():
            n = table.header.count(first.header[k])
            if n != 1:
                has = f"has {n} columns" if n else "has no column"
                raise DataError(
                    f"{table.label} {has} '{first.header[k]}', of which one is read in {first.label}: its columns are "
                    f"{', '.join(table.header[:20])}. Files that are read together have the same columns."
                )
            places[k] = table.header.index(first.header[k])
        if isinstance(table, TextTable) and isinstance(first, TextTable) and table.width != first.width:
            raise DataError(f"{table.label} has {table.width} columns; {first.label} has {first.width}.")
        optional = {k: None if (v := getattr(roles, k)) is None else places[v] for k in ("time", "label")}
        return replace(
            roles,
            src=places[roles.src],
            dst=places[roles.dst],
            features=tuple(places[k] for k in roles.features),
            **optional,
        )

    # -------------------- pieces of a file

    def _text(self, path: Path, head: TextTable, start: Mark) -> Iterator[tuple[Mark | None, Table]]:
        """The text after ``start`` in whole lines; ``head`` is the first piece of it."""
        try:
            with text_file(path) as file:
                place, line = start.place, max(start.row, 1)
                if place:
                    file.seek(place)
                for piece in whole_lines(path, file, self.bytes_at_once if place else HEAD, self.bytes_at_once):
                    table = more_text(head, piece, line) if place else head
                    place, line = place + len(piece), line + piece.count(b"\n")
                    if table.body.strip():
                        yield Mark(start.file, place, line), table
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None

    def _parquet(self, path: Path, table: Table, roles: Roles, start: Mark) -> Iterator[tuple[Mark | None, Table]]:
        """The row groups from ``start`` on, as many at once as fit; a mark stands between row groups."""
        assert table.header is not None
        file = parquet_file(path)
        names = [table.header[k] for k in sorted(roles.used())]
        group, row = start.place, start.row
        while group < file.num_row_groups:
            groups, n = [group], file.metadata.row_group(group).num_rows
            while groups[-1] + 1 < file.num_row_groups:
                more = file.metadata.row_group(groups[-1] + 1).num_rows
                if n + more > self.rows_at_once:
                    break
                groups.append(groups[-1] + 1)
                n += more
            read = 0
            for batch in batches(path, file, groups, names, self.rows_at_once):
                read += len(batch)
                after = Mark(start.file, groups[-1] + 1, row + n) if read == n else None
                yield after, typed_piece(str(path), at_places(batch, table.header), row + read - len(batch))
            group, row = groups[-1] + 1, row + n


def _columns(table: Table, roles: Roles, options: ColumnOptions) -> dict[str, Any]:
    """The options that were given, with names for positions where there is a header, and the names of all features."""
    header = table.header
    found: dict[str, Any] = {k: str(v) for k, v in vars(options).items() if k != "features" and v is not None}
    if header is not None:
        places = {k: getattr(roles, k) for k in found}
        found = {k: v if places[k] is None else header[places[k]] for k, v in found.items()}  # None: --label none
    if roles.features and header is not None and table.layout != "jodie":  # whose features share one name
        found["features"] = [header[k] for k in roles.features]
    elif options.features is not None:
        asked = options.features
        found["features"] = asked if isinstance(asked, str) else ",".join(map(str, asked))
    return found


# -------------------- a stream


@dataclass(eq=False)
class OneStream:
    """A stream that was read already, in pieces."""

    stream: EventStream
    rows_at_once: int = 1_000_000
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the store that it is from

    def __post_init__(self) -> None:
        self.name, self.axis, self.shared = self.stream.name, self.stream.time, self.stream.ids.shared

    def chunks(self, mark: Mark) -> Iterator[tuple[Mark | None, Rows]]:
        s = self.stream
        for start in range(mark.row, s.n_events, self.rows_at_once):
            stop = min(start + self.rows_at_once, s.n_events)
            src, dst = (s.ids.take(x[start:stop]) for x in (s.src, s.dst))
            t, label, edge_x = (None if x is None else x[start:stop] for x in (s.t, s.label, s.edge_x))
            yield Mark(0, stop, stop), Rows(src, dst, t, label, edge_x)  # type: ignore[arg-type]

    def notes(self) -> tuple[str, ...]:
        return self.stream.notes

    def has_labels(self) -> bool:
        return self.stream.label is not None

    def has_features(self) -> bool:
        return self.stream.edge_x is not None

    def total(self) -> int | None:
        return self.stream.n_events

    def identity(self) -> list[Any]:
        s, kept = self.stream, self.stream.kept
        arrays: dict[str, Any] = {"label": s.label, "side": s.ids.side}  # a store keeps the hashes of all else
        if kept is None:
            arrays |= {"src": s.src, "dst": s.dst, "t": s.t, "edge_x": s.edge_x, "node_x": s.node_x}
        told = {name: None if x is None else fingerprint_of([x]) for name, x in arrays.items()}
        ids = ids_fingerprint_of(s.ids.names, s.time.kind) if kept is None else kept.ids_fingerprint
        return ["a stream", self.name, s.n_events, told, ids, None if kept is None else kept.fingerprint]

    def seen(self) -> dict[str, Any]:
        return {}

    def recall(self, seen: dict[str, Any]) -> None:
        """All is known from the start."""

    def node_features(self, ids: NodeIds) -> Features | None:
        """The stream's node features for other ids, zero for nodes it does not have; None where it has none."""
        old = self.stream
        if old.node_x is None:
            return None
        as_src, as_dst = (old.ids.find(ids.names, side) for side in ("src", "dst"))
        node = as_src if ids.side is None else np.where(ids.side == 1, as_dst, as_src)
        rows = np.zeros((len(ids), old.node_dim), np.float32)
        rows[node >= 0] = old.node_x[node[node >= 0]]
        return rows


@dataclass(eq=False)
class Both:
    """One source after the other. Axis, id spaces, columns and name are the first one's; so are labels and features."""

    first: Source
    second: Source

    def __post_init__(self) -> None:
        self.name, self.axis, self.shared = self.first.name, self.first.axis, self.first.shared
        self.columns = self.first.columns

    def chunks(self, mark: Mark) -> Iterator[tuple[Mark | None, Rows]]:
        for _, rows in self.first.chunks(mark):
            yield None, rows
        for _, rows in self.second.chunks(Mark()):
            label = rows.label if self.has_labels() else None
            yield None, replace(rows, label=label, edge_x=rows.edge_x if self.has_features() else None)

    def notes(self) -> tuple[str, ...]:
        return (*self.first.notes(), *(note for note in self.second.notes() if COMMENTS in note))

    def has_labels(self) -> bool:
        return self.first.has_labels()

    def has_features(self) -> bool:
        return self.first.has_features()

    def total(self) -> int | None:
        counts = [self.first.total(), self.second.total()]
        return None if None in counts else sum(n for n in counts if n is not None)

    def identity(self) -> list[Any]:
        return [self.first.identity(), self.second.identity()]

    def seen(self) -> dict[str, Any]:
        return {"first": self.first.seen(), "second": self.second.seen()}

    def recall(self, seen: dict[str, Any]) -> None:
        self.first.recall(seen["first"])
        self.second.recall(seen["second"])

    def node_features(self, ids: NodeIds) -> Features | None:
        """The first one's, zero for nodes it does not have."""
        own = getattr(self.first, "node_features", None)
        return None if own is None else own(ids)
