"""Read events from files in chunks: one file, or a folder of files with the same columns.

Decisions that ``read_events`` makes for a whole file apply to all chunks here: the first file sets the roles of the
columns, the first event sets the time axis. The caller decides what is known only after the last chunk: whether
all ids, and all times, are integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cordgt.errors import DataError, EmptyInputError
from cordgt.events.arrays import Features, Floats, Ints
from cordgt.events.columns import as_label_column
from cordgt.events.ids import NodeIds
from cordgt.events.time_precision import describe_lost_times
from cordgt.files import PARQUET_ERRORS
from cordgt.io.bad_rows import SkippedRows, plausible_times, read_without_bad_rows
from cordgt.io.column_roles import ColumnOptions, ColumnRoles, assign_roles
from cordgt.io.file_chunks import (
    explain_read_errors,
    iter_line_chunks,
    make_arrow_chunk,
    open_head,
    open_parquet,
    open_text_file,
    pad_columns,
    read_row_groups,
)
from cordgt.io.open_table import COMMENT_NOTE, HEAD_BYTES, open_text_chunk
from cordgt.io.readers import (
    DATE_NOTE,
    IdSpace,
    check_id_space,
    check_split_date,
    choose_id_space,
    column_options,
    describe_roles,
    parse_labels,
    stream_name,
)
from cordgt.io.tables import Table, TextTable
from cordgt.io.time_parser import TimeParser
from cordgt.store.source import CHUNK_ROWS, EventChunk, ReadPosition

TableChunks = Iterator[tuple[ReadPosition | None, Table]]  # each with the position after it; None: cannot resume
STATE = (
    "_all_zero",
    "_width",
    "_bad_labels",
    "_comments",
    "_skipped",
    "_lost_times",
)  # attributes that are known only after reading


@dataclass(eq=False)
class FileSource:
    """An `EventSource` of files with the same columns, read one after the other. Options as in ``read_events``.

    Empty files are skipped. DataError, with file and line, for input that cannot be read, for a file whose columns
    differ from the first, and if all files are empty.
    """

    paths: list[Path]
    options: ColumnOptions = field(default_factory=ColumnOptions)
    ids: IdSpace = "auto"
    chunk_rows: int = CHUNK_ROWS  # of Parquet
    chunk_bytes: int = 1 << 25  # of text
    name: str = ""
    member: str | None = None  # of a zip archive
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        check_id_space(self.ids)
        self.first = self._open_first()
        self.roles = assign_roles(self.first, self.options)
        self.shared, self._id_note = choose_id_space(self.first, self.roles, self.ids)
        self.name = self.name or stream_name(self.paths[0])
        self._all_zero, self._width, self._bad_labels, self._comments = True, 0, "", False
        self._lost_times = 0  # within a chunk
        self._skipped: Any = [0, 0, []]  # of `SkippedRows`, as JSON
        self.parser = self._detect_times()
        self.axis = self.parser.axis
        self.columns: Mapping[str, Any] = column_options(self.first, self.roles, self.options, self.parser.format)

    @property
    def skip_notes(self) -> tuple[str, ...]:
        comments = (f"lines {COMMENT_NOTE}",) if self._comments else ()
        return (*comments, *self._skipped_rows().notes())

    def chunks(self, start: ReadPosition) -> Iterator[tuple[ReadPosition | None, EventChunk]]:
        for number in range(start.file, len(self.paths)):
            try:
                _, roles, tables = self._open(number, start if number == start.file else ReadPosition(number))
            except EmptyInputError:
                continue
            for after, table in tables:
                chunk = self._read_chunk(table, roles)
                if chunk is not None and len(chunk.t):
                    yield after, chunk
        self._skipped_rows().check(str(self.paths[0]))

    def notes(self) -> tuple[str, ...]:
        notes = [*self.skip_notes, *(note for note in self.first.notes if COMMENT_NOTE not in note)]
        if len(self.paths) > 1:
            notes.append(f"{len(self.paths)} files, from {self.paths[0].name} to {self.paths[-1].name}")
        notes += describe_roles(self.first, self.roles)
        if self._bad_labels:
            notes.append(self._bad_labels)
        if self.roles.features:
            width = f"{self._width} features per event"
            notes.append(width if self.has_features() else "the features are all zero: read as none")
        notes += self.parser.notes()
        notes += describe_lost_times(self._lost_times, is_number=self.axis.kind == "number")
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
        options = {k: str(v) for k, v in vars(self.options).items()}
        return [files, options, self.ids, self.member, self.skip_bad_rows]

    def get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in STATE:
            setattr(self, name, state[name])

    # -------------------- one chunk

    def _skipped_rows(self) -> SkippedRows:
        n_skipped, n_rows, examples = self._skipped
        return SkippedRows(n_skipped, n_rows, tuple(examples))

    def _read_chunk(self, table: Table, roles: ColumnRoles) -> EventChunk | None:
        """Return the events of a table; None if all its rows are skipped."""
        if not self.skip_bad_rows:
            return self._parse_chunk(table, roles)
        chunk, skipped = read_without_bad_rows(
            lambda part: self._parse_chunk(part, roles), table, roles, self.parser, self.options.time_format
        )
        skipped = replace(skipped, n_rows=(0 if chunk is None else len(chunk.t)) + skipped.n_skipped)
        if len(self.paths) > 1:
            skipped = replace(skipped, examples=tuple(f"{Path(table.name).name}, {k}" for k in skipped.examples))
        total = self._skipped_rows() + skipped
        self._skipped = [total.n_skipped, total.n_rows, list(total.examples)]
        return chunk

    def _parse_chunk(self, table: Table, roles: ColumnRoles) -> EventChunk:
        columns = table.read_columns(roles.scalar_columns())
        assert roles.time is not None, "`assign_roles` requires a time column"
        n = len(columns[roles.src])
        label = self._parse_labels(table, columns, roles, n)
        edge_x = None
        if roles.features and n:
            edge_x = table.read_features(roles.features)
            self._width = edge_x.shape[1]
            self._all_zero = self._all_zero and not edge_x.any()
        self._comments = self._comments or any(COMMENT_NOTE in note for note in table.notes)
        src, dst = (table.parse_ids(columns[k], k) for k in (roles.src, roles.dst))
        t = table.parse_times(columns[roles.time], roles.time, self.parser)
        self._lost_times += table.count_lost_times(columns[roles.time], t)
        return EventChunk(src, dst, t, label, edge_x)

    def _parse_labels(self, table: Table, columns: dict[int, Any], roles: ColumnRoles, n: int) -> Ints | Floats | None:
        if not self.has_labels():
            return None
        labels, notes = parse_labels(table, columns, roles, is_required=self.options.label is not None)
        self._bad_labels = notes[0] if notes else ""
        return None if labels is None else as_label_column(labels, n)

    def _detect_times(self) -> TimeParser:
        """Return the parser of the times, from the first event and as many more as are needed."""
        assert self.roles.time is not None, "`assign_roles` requires a time column"
        parser = self.first.infer_times(self._time_columns(), self.roles.time, self.options.time_format)
        if parser is None:
            raise EmptyInputError(f"{self.paths[0]} has no events.")
        return parser

    def _time_columns(self) -> Iterator[Any]:
        """Yield the column of times of every chunk."""
        for number in range(len(self.paths)):
            try:
                first, roles, tables = self._open(number, ReadPosition(number))
            except EmptyInputError:
                continue
            assert roles.time is not None, "`assign_roles` requires a time column"
            check_split_date(first, roles.time)
            for _, table in tables:
                if self.skip_bad_rows:
                    yield plausible_times(table, roles.time)
                else:
                    yield table.read_columns([roles.time])[roles.time]

    # -------------------- one file

    def _open_first(self) -> Table:
        """Open the head of the first file that is not empty. EmptyInputError if all files are."""
        for number, path in enumerate(self.paths):
            try:
                head = open_head(path, self.options, self.member)
                self.paths = self.paths[number:]
                return head
            except EmptyInputError as error:
                last = error
        raise last

    def _open(self, number: int, start: ReadPosition) -> tuple[Table, ColumnRoles, TableChunks]:
        """Return the head of a file, the roles of its columns, and its chunks from ``start`` on."""
        path = self.paths[number]
        head = open_head(path, self.options, self.member)
        roles = self.roles if number == 0 else self._matching_roles(head)
        if isinstance(head, TextTable):
            return head, roles, self._text_chunks(path, head, start)
        return head, roles, self._parquet_chunks(path, head, roles, start)

    def _matching_roles(self, table: Table) -> ColumnRoles:
        """Return the roles of another file's columns, matched by name to the first file. DataError if they differ."""
        first, roles = self.first, self.roles
        wrong_width = DataError(f"{table.name} has {table.n_columns} columns; {first.name} has {first.n_columns}.")
        if (first.header is None) != (table.header is None) or first.layout != table.layout:
            raise DataError(f"{table.name} and {first.name} differ in header or layout.")
        if first.header is None or table.header is None or first.layout == "jodie":
            if table.n_columns != first.n_columns:
                raise wrong_width
            return roles
        positions = {}
        for k in roles.all_columns():
            n = table.header.count(first.header[k])
            if n != 1:
                found = f"has {n} columns" if n else "has no column"
                raise DataError(
                    f"{table.name} {found} '{first.header[k]}'; {first.name} has one. Its columns are "
                    f"{', '.join(table.header[:20])}. Files that are read together need the same columns."
                )
            positions[k] = table.header.index(first.header[k])
        if isinstance(table, TextTable) and isinstance(first, TextTable) and table.n_columns != first.n_columns:
            raise wrong_width
        return ColumnRoles(
            positions[roles.src],
            positions[roles.dst],
            None if roles.time is None else positions[roles.time],
            None if roles.label is None else positions[roles.label],
            tuple(positions[k] for k in roles.features),
        )

    def _text_chunks(self, path: Path, head: TextTable, start: ReadPosition) -> TableChunks:
        """Yield the text from ``start`` on in whole lines; ``head`` is the first chunk of the file."""
        with explain_read_errors(path), open_text_file(path, self.member) as file:
            offset, line = start.offset, max(start.row, 1)
            if offset:
                file.seek(offset)
            for text in iter_line_chunks(path, file, self.chunk_bytes if offset else HEAD_BYTES, self.chunk_bytes):
                table = open_text_chunk(head, text, line) if offset else head
                offset, line = offset + len(text), line + text.count(b"\n")
                if table.body.strip():
                    yield ReadPosition(start.file, offset, line), table

    def _parquet_chunks(self, path: Path, table: Table, roles: ColumnRoles, start: ReadPosition) -> TableChunks:
        """Yield the row groups from ``start`` on, as many at once as fit. Reading resumes only between row groups."""
        assert table.header is not None
        file = open_parquet(path)
        names = [table.header[k] for k in sorted(roles.all_columns())]
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
            for batch in read_row_groups(path, file, groups, names, self.chunk_rows):
                first_row, n_read = row + n_read, n_read + len(batch)
                after = ReadPosition(start.file, groups[-1] + 1, row + n) if n_read == n else None
                yield after, make_arrow_chunk(path, pad_columns(batch, table.header), first_row)
            group, row = groups[-1] + 1, row + n
