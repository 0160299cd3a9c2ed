"""Read events from files in chunks: one file, or a folder of files with the same columns.

Decisions that ``read_events`` makes for a whole file apply to all chunks here: the first file sets the roles of the
columns, the first event sets the time axis. The caller decides what only the last chunk can tell (whether all ids are
integers, all times whole).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cordgt.errors import DataError
from cordgt.events.arrays import Features, Floats, Ints
from cordgt.events.ids import NodeIds
from cordgt.events.stream import label_column
from cordgt.events.times import TimeAxis
from cordgt.files import PARQUET_ERRORS
from cordgt.io.column_roles import ColumnOptions, Roles, choose
from cordgt.io.file_chunks import HEAD, at_places, batches, opened, parquet_file, text_file, typed_piece, whole_lines
from cordgt.io.open_table import COMMENTS, more_text
from cordgt.io.readers import (
    DATE_NOTE,
    Ids,
    check_ids,
    check_split_date,
    column_notes,
    id_spaces,
    labels_of,
    name_of,
)
from cordgt.io.tables import Table, TextTable
from cordgt.store.source import CHUNK_ROWS, EventChunk, ReadPosition

STATE = ("_all_zero", "_width", "_bad_labels", "_comments")  # attributes that are known only after reading


@dataclass(eq=False)
class EventFiles:
    """An `EventSource` of files with the same columns, read one after the other. Options as in ``read_events``.

    DataError, with file and line, for input that cannot be read and for a file whose columns differ from the first.
    """

    paths: list[Path]
    options: ColumnOptions = field(default_factory=ColumnOptions)
    ids: Ids = "auto"
    chunk_rows: int = CHUNK_ROWS  # of Parquet
    chunk_bytes: int = 1 << 25  # of text
    name: str = ""

    def __post_init__(self) -> None:
        check_ids(self.ids)
        self.first = opened(self.paths[0], self.options)
        self.roles = choose(self.first, self.options)
        self.shared, self._id_note = id_spaces(self.first, self.roles, self.ids)
        self.columns: Mapping[str, Any] = _column_options(self.first, self.roles, self.options)
        self.name = self.name or name_of(self.paths[0])
        self._all_zero, self._width, self._bad_labels, self._comments = True, 0, "", bool(self.first.notes)
        self.axis = self._first_axis()

    @property
    def skip_notes(self) -> tuple[str, ...]:
        return (f"lines {COMMENTS}",) if self._comments else ()

    def chunks(self, start: ReadPosition) -> Iterator[tuple[ReadPosition | None, EventChunk]]:
        for number in range(start.file, len(self.paths)):
            _, roles, tables = self._open(number, start if number == start.file else ReadPosition(number))
            for after, table in tables:
                chunk = self._chunk(table, roles)
                if len(chunk.t):
                    yield after, chunk

    def notes(self) -> tuple[str, ...]:
        notes = list(self.skip_notes)
        if len(self.paths) > 1:
            notes.append(f"{len(self.paths)} files, from {self.paths[0].name} to {self.paths[-1].name}")
        notes += column_notes(self.first, self.roles)
        if self._bad_labels:
            notes.append(self._bad_labels)
        if self.roles.features:
            width = f"{self._width} features an event"
            notes.append(width if self.has_features() else "the features are all zero: read as none")
        if self.axis.kind == "date":
            notes.append(DATE_NOTE)
        return (*notes, self._id_note)

    def has_labels(self) -> bool:
        return self.roles.label is not None and not self._bad_labels

    def has_features(self) -> bool:
        is_optional = self.first.layout == "jodie" and self.options.features is None
        return bool(self.roles.features) and not (is_optional and self._all_zero)

    def node_features(self, ids: NodeIds) -> Features | None:
        return None

    def n_events(self) -> int | None:
        try:
            return sum(pq.read_metadata(path).num_rows for path in self.paths)
        except PARQUET_ERRORS:
            return None  # text

    def identity(self) -> list[Any]:
        files = [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in self.paths]
        return [files, {k: str(v) for k, v in vars(self.options).items()}, self.ids]

    def get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in STATE:
            setattr(self, name, state[name])

    # -------------------- one chunk

    def _chunk(self, table: Table, roles: Roles) -> EventChunk:
        columns = table.columns(roles.single())
        assert roles.time is not None, "`choose` requires a time column"
        n = len(columns[roles.src])
        label = self._labels(table, columns, roles, n)
        edge_x = None
        if roles.features and n:
            edge_x = table.numbers(roles.features)
            self._width = edge_x.shape[1]
            self._all_zero = self._all_zero and not edge_x.any()
        self._comments = self._comments or bool(table.notes)
        src, dst = (table.ids(columns[k], k) for k in (roles.src, roles.dst))
        return EventChunk(src, dst, table.times(columns[roles.time], roles.time, self.axis), label, edge_x)

    def _labels(self, table: Table, columns: dict[int, Any], roles: Roles, n: int) -> Ints | Floats | None:
        if not self.has_labels():
            return None
        labels, notes = labels_of(table, columns, roles, asked=self.options.label is not None)
        self._bad_labels = notes[0] if notes else ""
        return None if labels is None else label_column(labels, n)

    def _first_axis(self) -> TimeAxis:
        """The time axis of the first event."""
        for number in range(len(self.paths)):
            first, roles, tables = self._open(number, ReadPosition(number))
            assert roles.time is not None, "`choose` requires a time column"
            if isinstance(first, TextTable):
                check_split_date(first, roles.time)
            for _, table in tables:
                times = table.columns([roles.time])[roles.time]
                if len(times):
                    return TimeAxis.of(times)
        raise DataError(f"{self.paths[0]} holds no events.")

    # -------------------- one file

    def _open(
        self, number: int, start: ReadPosition
    ) -> tuple[Table, Roles, Iterator[tuple[ReadPosition | None, Table]]]:
        """The head of a file, the roles of its columns, and its chunks from ``start`` on."""
        path = self.paths[number]
        head = opened(path, self.options)
        roles = self.roles if number == 0 else self._matching_roles(head)
        if isinstance(head, TextTable):
            return head, roles, self._text_chunks(path, head, start)
        return head, roles, self._parquet_chunks(path, head, roles, start)

    def _matching_roles(self, table: Table) -> Roles:
        """The roles of another file's columns, matched by name to those of the first file. DataError if they differ."""
        first, roles = self.first, self.roles
        other_width = DataError(f"{table.label} has {table.width} columns; {first.label} has {first.width}.")
        if (first.header is None) != (table.header is None) or first.layout != table.layout:
            raise DataError(f"{table.label} and {first.label} differ in header or layout.")
        if first.header is None or table.header is None or first.layout == "jodie":
            if table.width != first.width:
                raise other_width
            return roles
        places = {}
        for k in roles.used():
            n = table.header.count(first.header[k])
            if n != 1:
                found = f"has {n} columns" if n else "has no column"
                raise DataError(
                    f"{table.label} {found} '{first.header[k]}'; {first.label} has one. Its columns are "
                    f"{', '.join(table.header[:20])}. Files that are read together need the same columns."
                )
            places[k] = table.header.index(first.header[k])
        if isinstance(table, TextTable) and isinstance(first, TextTable) and table.width != first.width:
            raise other_width
        optional = {k: None if (v := getattr(roles, k)) is None else places[v] for k in ("time", "label")}
        features = tuple(places[k] for k in roles.features)
        return replace(roles, src=places[roles.src], dst=places[roles.dst], features=features, **optional)

    def _text_chunks(
        self, path: Path, head: TextTable, start: ReadPosition
    ) -> Iterator[tuple[ReadPosition | None, Table]]:
        """The text from ``start`` on in whole lines; ``head`` is the first chunk of the file."""
        try:
            with text_file(path) as file:
                offset, line = start.offset, max(start.row, 1)
                if offset:
                    file.seek(offset)
                for text in whole_lines(path, file, self.chunk_bytes if offset else HEAD, self.chunk_bytes):
                    table = more_text(head, text, line) if offset else head
                    offset, line = offset + len(text), line + text.count(b"\n")
                    if table.body.strip():
                        yield ReadPosition(start.file, offset, line), table
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None

    def _parquet_chunks(
        self, path: Path, table: Table, roles: Roles, start: ReadPosition
    ) -> Iterator[tuple[ReadPosition | None, Table]]:
        """The row groups from ``start`` on, as many at once as fit. Reading can resume only between row groups."""
        assert table.header is not None
        file = parquet_file(path)
        names = [table.header[k] for k in sorted(roles.used())]
        group, row = start.offset, start.row
        while group < file.num_row_groups:
            groups, n = [group], file.metadata.row_group(group).num_rows
            while groups[-1] + 1 < file.num_row_groups:
                more = file.metadata.row_group(groups[-1] + 1).num_rows
                if n + more > self.chunk_rows:
                    break
                groups.append(groups[-1] + 1)
                n += more
            n_read = 0
            for batch in batches(path, file, groups, names, self.chunk_rows):
                first_row, n_read = row + n_read, n_read + len(batch)
                after = ReadPosition(start.file, groups[-1] + 1, row + n) if n_read == n else None
                yield after, typed_piece(str(path), at_places(batch, table.header), first_row)
            group, row = groups[-1] + 1, row + n


def _column_options(table: Table, roles: Roles, options: ColumnOptions) -> dict[str, Any]:
    """The given options, with names instead of positions if there is a header, and the names of all features."""
    header = table.header
    found: dict[str, Any] = {k: str(v) for k, v in vars(options).items() if k != "features" and v is not None}
    if header is not None:
        places = {k: getattr(roles, k) for k in found}
        found = {k: v if places[k] is None else header[places[k]] for k, v in found.items()}  # None: --label none
    if roles.features and header is not None and table.layout != "jodie":  # its features share one name
        found["features"] = [header[k] for k in roles.features]
    elif options.features is not None:
        given = options.features
        found["features"] = given if isinstance(given, str) else ",".join(map(str, given))
    return found
