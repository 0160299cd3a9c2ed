"""Files and tables of events to an ``EventStream``; errors name the file, the line and the column.

A source becomes a table (text or typed), its columns get their roles (``Roles``), and only those are read, whole
columns at a time. What was assumed on the way is kept in the stream's notes.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from cordgt.errors import DataError, nearest
from cordgt.events import (
    EventStream,
    Features,
    RowError,
    TimeAxis,
    as_column,
    feature_rows,
    id_column,
    is_text,
    looks_like_number,
    looks_like_time,
    write_atomically,
)

Ids = Literal["auto", "shared", "separate"]
Column = str | int | None

# -------------------- the usual names

_PAIRS = (
    ("src", "dst"), ("src", "dest"), ("src_id", "dst_id"), ("source", "target"), ("source", "destination"),
    ("source_id", "target_id"), ("from", "to"), ("from_id", "to_id"), ("fromnodeid", "tonodeid"), ("u", "i"),
    ("u", "v"), ("i", "j"), ("user", "item"), ("user_id", "item_id"), ("sender", "receiver"), ("sender", "recipient"),
    ("caller", "callee"), ("origin", "destination"), ("node1", "node2"), ("head", "tail"),
)  # fmt: skip
_PERSON = {
    "user", "userid", "user_id", "username", "customer", "customerid", "customer_id", "client", "client_id", "buyer",
    "visitor", "visitor_id", "viewer", "reader", "listener", "student", "student_id", "reviewer", "member",
}  # fmt: skip
_THING = {
    "item", "itemid", "item_id", "product", "productid", "product_id", "movie", "movieid", "movie_id", "song", "track",
    "artist", "page", "page_id", "book", "book_id", "course", "course_id", "business", "business_id", "shop", "store",
    "video", "video_id", "article", "article_id", "post", "post_id", "ad", "sku", "asin", "location", "location_id",
}  # fmt: skip
_SRC = {a for a, _ in _PAIRS if a != "i"} | _PERSON
_DST = {b for _, b in _PAIRS if b != "j"} | _THING
_TIME = {
    "t", "time", "ts", "timestamp", "time_stamp", "date", "datetime", "date_time", "unixtime", "unix_time",
    "unix_timestamp", "unixreviewtime", "created_at", "event_time", "epoch",
}  # fmt: skip
_LABEL = {"label", "state_label", "y"}
_NODE = {"id", "ids", "node", "nodes", "node_id", "nodeid"}
_FEATURE = re.compile(r"feature_\d+", re.IGNORECASE)
_FEATURE_LIST = {"features", "msg"}
_ML_HEADER = ["u", "i", "ts", "label", "idx"]
_JODIE_HEADER = ["user_id", "item_id", "timestamp", "state_label"]


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns to read: a name, or a position from 0 (where no column has that name). None: by the usual names.

    ``features``: names and positions, separated by commas, or a list of them; ``4-7`` for a range of positions,
    ``rest`` for every column without another role, ``none`` for none even where a published layout brings some.
    """

    src: Column = None
    dst: Column = None
    time: Column = None
    label: Column = None
    features: str | Sequence[str | int] | None = None


@dataclass(frozen=True)
class Roles:
    """The positions of the columns to read."""

    src: int
    dst: int
    time: int | None = None
    label: int | None = None
    features: tuple[int, ...] = ()

    def used(self) -> set[int]:
        return {k for k in (self.src, self.dst, self.time, self.label, *self.features) if k is not None}


# -------------------- tables


@dataclass(frozen=True)
class Table:
    """A source of columns. ``header`` is None where the file names none; ``label`` is what messages call it."""

    label: str
    header: tuple[str, ...] | None
    width: int
    layout: Literal["", "ml", "jodie"] = ""
    notes: tuple[str, ...] = ()

    @property
    def doubt(self) -> str:
        """What to try where the header may be none."""
        return ""

    def declares_features(self, column: int) -> bool:
        """Whether a column that nobody asked for is called as features are."""
        return self.header is not None and _FEATURE.fullmatch(self.header[column]) is not None

    def named(self, column: int) -> str:
        """A column as messages call it."""
        if self.header is not None and column < len(self.header) and self.layout != "jodie":
            return f"column '{self.header[column]}'"
        return f"column {column} (counted from 0)"

    def at(self, row: int) -> str:
        """Where a row of data stands, for messages."""
        return f"{self.label}, row {row} (counted from 0)"

    def columns(self, which: Iterable[int]) -> dict[int, Any]:
        """The columns at these positions, as Arrow arrays (text as written)."""
        raise NotImplementedError

    def numbers(self, which: Sequence[int]) -> Features | None:
        """The columns at these positions side by side as finite float32; None for no positions."""
        raise NotImplementedError

    def refused(self, error: RowError, column: int | None = None) -> DataError:
        """The same error with the file and the line."""
        place = "" if column is None else f" ({self.named(column)})"
        return DataError(f"{self.at(error.row)}: {error.what}{place}.")


@dataclass(frozen=True)
class TypedTable(Table):
    """Parquet, Arrow, pandas: the columns have types."""

    get: Callable[[int], Any] = field(default=lambda column: None, repr=False)

    def declares_features(self, column: int) -> bool:
        if self.header is not None and self.header[column].lower() in _FEATURE_LIST:
            return _is_list(self.get(column).type)
        return super().declares_features(column)

    def columns(self, which: Iterable[int]) -> dict[int, Any]:
        return {k: self.get(k) for k in which}

    def numbers(self, which: Sequence[int]) -> Features | None:
        parts = [self._matrix(k) for k in which]
        return np.concatenate(parts, axis=1) if parts else None

    def _matrix(self, column: int) -> Features:
        values = self.get(column)
        kind = values.type
        if values.null_count:
            row = _first_null(values)
            raise DataError(f"{self.at(row)}: the feature in {self.named(column)} is missing.")
        n_rows = len(values)
        if _is_list(kind):
            values = self._flat(values, column)
        if not _is_number(values.type):
            raise DataError(f"{self.label}: {self.named(column)} does not hold numbers but {kind}, so no features.")
        flat = np.asarray(pc.cast(values, pa.float32(), safe=False))
        width = len(flat) // n_rows if n_rows else 1
        rows = flat.reshape(n_rows, width)
        try:
            feature_rows(rows, n_rows, "features")
        except RowError as error:
            raise self.refused(error, column) from None
        return rows

    def _flat(self, values: Any, column: int) -> Any:
        """A column of lists end to end. DataError where their lengths differ."""
        lengths = np.asarray(pc.list_value_length(values))
        uneven = np.flatnonzero(lengths != lengths[:1])
        if len(uneven):
            row = int(uneven[0])
            raise DataError(
                f"{self.at(row)}: {lengths[row]} features in {self.named(column)}, but {lengths[0]} in the first row."
            )
        return pc.list_flatten(values)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: Any) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def _first_null(values: Any) -> int:
    return int(pc.index(pc.is_null(values), pa.scalar(True)).as_py())


@dataclass(frozen=True)
class TextTable(Table):
    """Delimited text. ``body`` holds the rows after the header, comment lines blanked so that lines still count."""

    body: bytes = field(default=b"", repr=False)
    first_line: int = 1
    delimiter: str = ","
    trim: bool = False

    @property
    def doubt(self) -> str:
        return " If the first line is data, give the position of the time, counted from 0, with --time."

    def at(self, row: int) -> str:
        for k, (line, _) in enumerate(self._rows()):
            if k == row:
                return f"{self.label}, line {line}"
        return super().at(row)

    def columns(self, which: Iterable[int]) -> dict[int, Any]:
        wanted = sorted(set(which))
        table = self._read({k: pa.string() for k in wanted})
        return {k: self._trimmed(table[f"c{k}"], k) for k in wanted}

    def numbers(self, which: Sequence[int]) -> Features | None:
        if not which:
            return None
        table = self._read({k: pa.float32() for k in which})
        rows = np.empty((table.num_rows, len(which)), np.float32)
        for place, k in enumerate(which):
            rows[:, place] = table[f"c{k}"].to_numpy()
        finite = np.isfinite(rows)
        if not finite.all():
            row, place = (int(k[0]) for k in np.nonzero(~finite))
            raise DataError(f"{self.at(row)}: the feature in {self.named(which[place])} is not a finite number.")
        return rows

    def _read(self, kinds: dict[int, Any]) -> Any:
        """The columns with the given types, in one pass over the text."""
        names = [f"c{k}" for k in range(self.width)]
        quoted = b'"' in self.body
        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(self.body),
                pyarrow.csv.ReadOptions(column_names=names, block_size=1 << 23),
                pyarrow.csv.ParseOptions(
                    delimiter=self.delimiter, newlines_in_values=quoted, invalid_row_handler=_skip_blank
                ),
                pyarrow.csv.ConvertOptions(
                    column_types={f"c{k}": kind for k, kind in kinds.items()},
                    include_columns=[f"c{k}" for k in kinds],
                    null_values=[],
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._explained([k for k, kind in kinds.items() if kind == pa.float32()], error) from None

    def _explained(self, numeric: list[int], error: Exception) -> DataError:
        """What is wrong with the text, found by going through it row by row: too late for speed."""
        try:
            for line, row in self._rows():
                if len(row) != self.width:
                    like = "header" if self.header and self.layout != "jodie" else "first row"
                    return DataError(
                        f"{self.label}, line {line}: found {len(row)} fields, expected {self.width} as in the {like}."
                    )
                for k in numeric:
                    if not looks_like_number(row[k]):
                        return DataError(
                            f"{self.label}, line {line}: the feature {row[k]!r} in {self.named(k)} is not a number."
                        )
        except csv.Error as reason:
            return DataError(f"{self.label} cannot be read as delimited text: {reason}.")
        return DataError(f"{self.label} cannot be read as delimited text: {error}")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, fields) of every row of data, one by one; for messages only."""
        reader = csv.reader(io.StringIO(self.body.decode("utf-8"), newline=None), delimiter=self.delimiter)
        line = self.first_line
        for row in reader:
            start, line = line, self.first_line + reader.line_num
            if row and (len(row) == self.width or any(k.strip() for k in row)):
                yield start, row

    def _trimmed(self, column: Any, position: int) -> Any:
        return pc.utf8_ltrim_whitespace(column) if self.trim and position else column


def _skip_blank(row: Any) -> str:
    return "error" if row.text.strip() else "skip"


# -------------------- opening


def open_table(source: Any, options: ColumnOptions, *, need_time: bool = True) -> Table:
    """A table of events or pairs from a path, a pandas or Arrow table. DataError where it is none of these."""
    return _open(source, "Events", lambda lines: _event_dialect(lines, options, need_time))


def _open(source: Any, what: str, dialect_of: Callable[[list[str]], _Dialect]) -> Table:
    """A table from a path (read once, so that a pipe will do), a pandas or Arrow table."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        data = read_bytes(path)
        return _parquet(str(path), data) if data[:4] == b"PAR1" else _text(str(path), data, dialect_of)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        names = tuple(source.column_names)
        return TypedTable("the table", names, len(names), get=lambda k: as_column(source.column(k)))
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        names = tuple(str(k) for k in source.columns)
        return TypedTable("the table", names, len(names), get=lambda k: as_column(source.iloc[:, k]))
    raise DataError(f"{what} cannot be read from {type(source).__name__}; a path, a pandas or an Arrow table can.")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip. DataError where there is none to read."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; a file was expected.")
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.{_neighbour(path)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not data.strip():
        raise DataError(f"{path} is empty.")
    return data


def _neighbour(path: Path) -> str:
    try:
        return nearest(path.name, [k.name for k in path.parent.iterdir()])
    except OSError:
        return ""


def _parquet(label: str, data: bytes) -> Table:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = tuple(file.schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{label} is a damaged Parquet file: {error}") from None

    def get(column: int) -> Any:
        try:
            return as_column(file.read(columns=[names[column]]).column(names[column]))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{label} is a damaged Parquet file: {error}") from None

    return TypedTable(label, names, len(names), get=get)


@dataclass(frozen=True)
class _Dialect:
    delimiter: str
    header: bool


def _text(label: str, data: bytes, dialect_of: Callable[[list[str]], _Dialect]) -> TextTable:
    """Text as a table, once its dialect is known from the first lines."""
    data, n_comments = _cleaned(label, data)
    lines = _first_lines(data)
    if not lines:
        raise DataError(f"{label} holds nothing but comments.")
    dialect = dialect_of(lines)
    if dialect.delimiter == " ":
        data = _single_spaced(data)
        lines = _first_lines(data)
    rows = _fields(lines, dialect.delimiter)
    header = tuple(k.strip() for k in rows[0]) if dialect.header else None
    body, first_line = _after_header(data, rows[0], dialect.delimiter) if dialect.header else (data, 1)
    if dialect.header and (len(rows) < 2 or not body.strip()):
        raise DataError(f"{label} holds a header but no rows.")
    first = rows[1] if dialect.header else rows[0]
    layout = _layout(header)
    width = len(header) if header is not None and layout != "jodie" else len(first)
    notes = []
    if n_comments:
        notes.append(f"{n_comments} {'line' if n_comments == 1 else 'lines'} starting with # or % skipped")
    trim = dialect.delimiter != " " and len(first) > 1 and all(k[:1] == " " for row in rows for k in row[1:])
    return TextTable(
        label, header, width, layout, tuple(notes),
        body=body, first_line=first_line, delimiter=dialect.delimiter, trim=trim,
    )  # fmt: skip


def _layout(header: tuple[str, ...] | None) -> Literal["", "ml", "jodie"]:
    if header is None:
        return ""
    names = [k.lower() for k in header]
    if names == _ML_HEADER or (names[1:] == _ML_HEADER and (names[0] == "" or names[0].startswith("unnamed"))):
        return "ml"
    if names[:4] == _JODIE_HEADER and len(names) == 5 and names[4].startswith("comma_separated_list"):
        return "jodie"
    return ""


def _cleaned(label: str, data: bytes) -> tuple[bytes, int]:
    """Text in UTF-8 without its mark, one kind of line end, comment lines blanked; and how many these were."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{label} is text in UTF-16; save it as UTF-8.")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data[:65536]:
        raise DataError(f"{label} is neither text (CSV, TSV, edge list), nor gzip of it, nor Parquet.")
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise DataError(f"{label}, line {line}: not in UTF-8; save the file in UTF-8.") from None
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return _without_comments(data)


def _without_comments(data: bytes) -> tuple[bytes, int]:
    if not (data[:1] in (b"#", b"%") or b"\n#" in data or b"\n%" in data):
        return data, 0
    if b'"' not in data:
        return re.subn(rb"(?m)^[#%].*", b"", data)
    # A quoted field may hold a line break followed by '#': such a field is passed over whole.
    n_comments = 0

    def blank(found: re.Match[bytes]) -> bytes:
        nonlocal n_comments
        if found[0][:1] in (b"#", b"%"):
            n_comments += 1
            return b""
        return found[0]

    pattern = rb'(?m)(?:^|(?<=[,;|\t ]))"(?:[^"]|"")*"|^[#%].*'
    return re.sub(pattern, blank, data), n_comments


def _first_lines(data: bytes) -> list[str]:
    """Up to 50 lines that are not blank."""
    head = data[: 1 << 20]
    lines = head.decode("utf-8", errors="ignore").split("\n")
    if len(head) < len(data) and len(lines) > 1:
        lines.pop()
    return [k for k in lines if k.strip()][:50]


def _single_spaced(data: bytes) -> bytes:
    """Fields separated by one space, none at the ends of a line."""
    data = data.replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")


def _after_header(data: bytes, header: list[str], delimiter: str) -> tuple[bytes, int]:
    """What follows the header's row, and the number of its first line."""
    reader = csv.reader(
        io.StringIO(data[: 1 << 20].decode("utf-8", errors="ignore"), newline="\n"), delimiter=delimiter
    )
    for row in reader:
        if row == header:
            break
    place = 0
    for _ in range(reader.line_num):
        place = data.find(b"\n", place) + 1
        if place == 0:
            return b"", reader.line_num + 1
    return data[place:], reader.line_num + 1


def _fields(lines: list[str], delimiter: str) -> list[list[str]]:
    try:
        return [k for k in csv.reader((f"{line}\n" for line in lines), delimiter=delimiter) if k]
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def _delimiter(lines: list[str], needed: int, *, whitespace: bool = True) -> str:
    """The one that splits most lines alike into enough fields; a space stands for any white space."""
    best, best_key = "", (False, 0.0, 0)
    for mark in (",", "\t", ";", "|"):
        counts = Counter(len(k) for k in _fields(lines, mark))
        width = max(counts, key=lambda k: (counts[k], k))
        key = (width >= needed, counts[width] / len(lines), width)
        if width > 1 and key > best_key:
            best, best_key = mark, key
    blank_width = min(len(line.split()) for line in lines)
    if whitespace and not best_key[0] and blank_width > 1 and (blank_width >= needed or not best):
        return " "
    return best or ","


def _event_dialect(lines: list[str], options: ColumnOptions, need_time: bool) -> _Dialect:
    delimiter = _delimiter(lines, 3 if need_time else 2)
    first = lines[0].split() if delimiter == " " else _fields(lines[:1], delimiter)[0]
    return _Dialect(delimiter, _is_header([k.strip() for k in first], options, need_time))


def _is_header(first: list[str], options: ColumnOptions, need_time: bool) -> bool:
    """Whether the first row names the columns: it does if the names asked for or the usual ones stand in it, or if its
    field for the time is not a time."""
    asked = [str(k) for k in (options.src, options.dst, options.time, options.label) if k is not None]
    if any(_find_name(k, first) is not None and not k.isdigit() for k in asked):
        return True
    if _layout(tuple(first)):
        return True
    src, dst = _usual_pair(first, set())
    usual_pair = len(src) == 1 and len(dst) == 1
    if usual_pair and (_named_in(first, _TIME) or not need_time):
        return True
    position = int(options.time) if options.time is not None and str(options.time).isdigit() else 2
    if position >= len(first):
        return usual_pair
    return first[position] != "" and not looks_like_time(first[position])


# -------------------- roles


def choose(table: Table, options: ColumnOptions, *, need_time: bool = True) -> Roles:
    """The columns to read, by option, by the usual names, or 0, 1, 2 where there is no header.

    DataError where an option names no column (with the nearest name), a role finds none or several, or one column
    is asked for twice.
    """
    asked = {
        role: None if value is None else _position(table, str(value), role)
        for role, value in (
            ("src", options.src),
            ("dst", options.dst),
            ("time", options.time),
            ("label", options.label),
        )
    }
    found = _by_place(table, asked, need_time) if table.header is None else _by_name(table, asked, need_time)
    _check_distinct(table, found)
    src, dst = found["src"], found["dst"]
    assert src is not None
    assert dst is not None
    roles = Roles(src, dst, found["time"], found["label"])
    return replace(roles, features=_feature_columns(table, roles, options.features))


def _position(table: Table, asked: str, role: str) -> int:
    """The position of a column given by name or by position."""
    by_name = _find_name(asked, table.header or ())
    if by_name is not None:
        return by_name
    if asked.isdigit():
        if int(asked) < table.width:
            return int(asked)
        raise DataError(
            f"{table.label} has no column {asked} for --{role}: it has {table.width}, counted from 0. {_listing(table)}"
        )
    if table.header is None:
        raise DataError(
            f"{table.label} has no header, so no column '{asked}' for --{role};"
            f" give its position, 0 to {table.width - 1}."
        )
    raise DataError(
        f"{table.label} has no column '{asked}' for --{role}.{nearest(asked, table.header)} {_listing(table)}"
    )


def _find_name(asked: str, names: Sequence[str]) -> int | None:
    """Position of a name, as spelt or else in another case if only one is so."""
    if asked in names:
        return list(names).index(asked)
    alike = [k for k, name in enumerate(names) if name.lower() == asked.lower()]
    return alike[0] if len(alike) == 1 else None


def _listing(table: Table) -> str:
    if table.header is None:
        return f"There are {table.width} columns and no header."
    names = ", ".join(f"'{k}'" for k in table.header[:20])
    return f"The columns are {names}{', …' if len(table.header) > 20 else ''}."


def _named_in(names: Sequence[str], usual: set[str], taken: set[int] | None = None) -> list[int]:
    return [k for k, name in enumerate(names) if name.strip().lower() in usual and k not in (taken or set())]


def _usual_pair(names: Sequence[str], taken: set[int]) -> tuple[list[int], list[int]]:
    """Candidates for src and dst: those of the one complete usual pair, else all with a usual name."""
    low = [None if k in taken else name.strip().lower() for k, name in enumerate(names)]
    pairs = [(low.index(a), low.index(b)) for a, b in _PAIRS if low.count(a) == 1 and low.count(b) == 1]
    if len(pairs) == 1:
        return [pairs[0][0]], [pairs[0][1]]
    return _named_in(names, _SRC, taken), _named_in(names, _DST, taken)


def _partners(names: Sequence[str], asked: dict[str, int | None], taken: set[int]) -> tuple[list[int], list[int]]:
    """Candidates for the end that was not asked for: the usual partner of the one that was, else all usual names."""
    low = [name.strip().lower() for name in names]
    src, dst = asked["src"], asked["dst"]
    of_src = {b for a, b in _PAIRS if src is not None and a == low[src]}
    of_dst = {a for a, b in _PAIRS if dst is not None and b == low[dst]}
    return (
        _named_in(names, of_dst, taken) or _named_in(names, _SRC | {"i"}, taken),
        _named_in(names, of_src, taken) or _named_in(names, _DST | {"j"}, taken),
    )


def _by_place(table: Table, asked: dict[str, int | None], need_time: bool) -> dict[str, int | None]:
    usual = {"src": 0, "dst": 1, "time": 2}
    if table.width < (3 if need_time else 2):
        raise DataError(
            f"{table.label} has {table.width} {'column' if table.width == 1 else 'columns'};"
            f" at least {'src, dst and time' if need_time else 'src and dst'} were expected."
        )
    found = {role: k if k is not None else usual.get(role) for role, k in asked.items()}
    if asked["time"] is None and table.width < 3:
        found["time"] = None
    return found


def _by_name(table: Table, asked: dict[str, int | None], need_time: bool) -> dict[str, int | None]:
    header = table.header or ()
    taken = {k for k in asked.values() if k is not None}
    src, dst = _usual_pair(header, taken) if asked["src"] is asked["dst"] is None else _partners(header, asked, taken)
    candidates = {
        "src": src,
        "dst": dst,
        "time": _named_in(header, _TIME, taken),
        "label": _named_in(header, _LABEL, taken),
    }
    found: dict[str, int | None] = {}
    for role, position in asked.items():
        options = candidates[role]
        if position is not None or (len(options) == 0 and (role == "label" or (role == "time" and not need_time))):
            found[role] = position
        elif len(options) == 1:
            found[role] = options[0]
        elif role == "label":
            found[role] = None
        elif not options:
            raise DataError(
                f"{table.label}: no column is called as a {_ROLE[role]} usually is; name it with --{role}."
                f" {_listing(table)}{table.doubt}"
            )
        else:
            several = " and ".join(f"'{header[k]}'" for k in options)
            raise DataError(f"{table.label}: {several} could each be the {_ROLE[role]}; name one with --{role}.")
    return found


_ROLE = {"src": "source", "dst": "destination", "time": "time", "label": "label"}


def _check_distinct(table: Table, found: dict[str, int | None]) -> None:
    seen: dict[int, str] = {}
    for role, position in found.items():
        if position is None:
            continue
        if position in seen:
            raise DataError(
                f"{table.label}: {table.named(position)} would be both the {_ROLE[seen[position]]} and the"
                f" {_ROLE[role]}; name the others too (--src, --dst, --time)."
            )
        seen[position] = role


def _feature_columns(table: Table, roles: Roles, asked: str | Sequence[str | int] | None) -> tuple[int, ...]:
    """The positions of the features: those asked for, or those a layout or their names declare."""
    free = [k for k in range(table.width) if k not in roles.used()]
    if asked is None:
        if table.layout == "jodie":
            return tuple(free)
        return tuple(k for k in free if table.layout == "" and table.declares_features(k))
    parts = [k.strip() for k in asked.split(",")] if isinstance(asked, str) else [str(k) for k in asked]
    chosen: list[int] = []
    for part in parts:
        chosen += _feature_part(table, part, free)
    twice = [k for k, count in Counter(chosen).items() if count > 1 or k not in free]
    if twice:
        raise DataError(f"{table.label}: {table.named(twice[0])} is asked for as a feature, but is already in use.")
    return tuple(chosen)


def _feature_part(table: Table, part: str, free: list[int]) -> list[int]:
    if _find_name(part, table.header or ()) is None:
        if part in ("rest", "none"):
            return free if part == "rest" else []
        bounds = re.fullmatch(r"(\d+)-(\d+)", part)
        if bounds:
            start, stop = int(bounds[1]), int(bounds[2])
            if start > stop or stop >= table.width:
                raise DataError(
                    f"{table.label}: the range {part} for --features leaves columns 0 to {table.width - 1}."
                )
            return list(range(start, stop + 1))
    return [_position(table, part, "features")]


# -------------------- events


def read_events(
    source: Any,
    *,
    src: Column = None,
    dst: Column = None,
    time: Column = None,
    label: Column = None,
    features: str | Sequence[str | int] | None = None,
    ids: Ids = "auto",
    node_features: Any = None,
    name: str | None = None,
) -> EventStream:
    """The stream of events in a file or table.

    Args:
        source: a path (CSV, TSV, an edge list, gzip of these, Parquet, or a published layout; told apart by content),
            a pandas or Arrow table, or a PyG ``TemporalData``.
        src, dst, time, label, features: see ``ColumnOptions``.
        ids: whether both columns name nodes of one id space; ``auto``: separate if the columns are called like users
            and items, else shared.
        node_features: a file or table with an id column, or an ``.npy`` with row k for id k; joined by id.
        name: what the stream is called; without one, the file's name.

    DataError, with the file and the line, for what cannot be read.
    """
    if ids not in ("auto", "shared", "separate"):
        raise DataError(
            f"ids is '{ids}'; auto, shared or separate was expected.{nearest(str(ids), ['auto', 'shared', 'separate'])}"
        )
    options = ColumnOptions(src, dst, time, label, features)
    if isinstance(source, EventStream):
        raise DataError("This is a stream of events already.")
    if _is_temporal_data(source):
        stream = _from_temporal_data(source, ids, name or "")
    else:
        stream = _from_table(source, options, ids, name, siblings=node_features is None)
    if node_features is not None:
        stream = join_node_features(stream, node_features)
    return stream


def _from_table(source: Any, options: ColumnOptions, ids: Ids, name: str | None, *, siblings: bool) -> EventStream:
    table = open_table(source, options)
    roles = choose(table, options)
    assert roles.time is not None
    _check_split_date(table, roles.time)
    columns = table.columns(_needed(table, roles))
    if len(columns[roles.src]) == 0:
        raise DataError(f"{table.label} holds no events.")
    axis, when = _times(table, columns[roles.time], roles.time)
    label, label_notes = _labels(table, columns, roles, asked=options.label is not None)
    edge_x, feature_notes = _event_features(table, roles, columns, options, source)
    shared, id_note = _id_spaces(table, roles, ids)
    date_notes = ["times are dates; those without a zone are taken as UTC"] if axis.kind == "date" else []
    stream = EventStream.from_columns(
        _ids(table, columns[roles.src], roles.src),
        _ids(table, columns[roles.dst], roles.dst),
        when,
        edge_x,
        label,
        shared_ids=shared,
        time=axis,
        name=_name_of(source) if name is None else name,
        notes=(*table.notes, *_column_notes(table, roles), *label_notes, *feature_notes, *date_notes, id_note),
    )
    return _with_node_sibling(stream, Path(source)) if siblings and table.layout == "ml" else stream


def _needed(table: Table, roles: Roles) -> list[int]:
    needed = [k for k in (roles.src, roles.dst, roles.time, roles.label) if k is not None]
    if table.layout == "ml":
        needed.append(table.width - 1)
    return needed


def _name_of(source: Any) -> str:
    if not isinstance(source, str | os.PathLike):
        return ""
    return re.sub(r"(\.(csv|tsv|txt|edges|parquet|pq))?(\.gz)?$", "", Path(source).name).removeprefix("ml_")


def _check_split_date(table: Table, time: int) -> None:
    """An edge list that writes a date and its time of day with a space between would lose the latter."""
    if not isinstance(table, TextTable) or table.delimiter != " ":
        return
    first = table.body[:4096].lstrip(b"\n").split(b"\n")[0].decode("utf-8", errors="ignore").split(" ")
    if time + 1 < len(first) and "-" in first[time] and re.fullmatch(r"\d{1,2}:\d{2}.*", first[time + 1]):
        raise DataError(
            f"{table.label}: date and time of day stand in two columns ({first[time]} {first[time + 1]});"
            " write them as one (2024-03-01T12:30:00), or separate the columns by commas or tabs."
        )


def _ids(table: Table, column: Any, position: int) -> Any:
    """Ids as int64 if every one is an integer as we would write it, else as text."""
    try:
        found = id_column(column)
    except RowError as error:
        raise table.refused(error, position) from None
    except DataError as error:
        raise DataError(f"{table.label}, {table.named(position)}: {error}") from None
    return _canonical(found) if isinstance(table, TextTable) else found


def _canonical(column: Any) -> Any:
    try:
        whole = pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        return column
    return whole if pc.all(pc.equal(pc.cast(whole, pa.string()), column)).as_py() else column


def _times(table: Table, column: Any, position: int) -> tuple[TimeAxis, npt.NDArray[Any]]:
    axis = TimeAxis.of(column)
    return axis, _times_on(table, column, position, axis)


def _times_on(table: Table, column: Any, position: int, axis: TimeAxis) -> npt.NDArray[Any]:
    try:
        return axis.parse_column(column)
    except RowError as error:
        raise table.refused(error, position) from None
    except DataError as error:
        raise DataError(f"{table.label}, {table.named(position)}: {error}") from None


def _labels(table: Table, columns: dict[int, Any], roles: Roles, *, asked: bool) -> tuple[Any, list[str]]:
    """Labels as numbers. Where they are not, an error if they were asked for, else none and a note."""
    if roles.label is None:
        return None, []
    column = columns[roles.label]
    if _is_number(column.type):
        return column, []
    if is_text(column.type):
        text = pc.utf8_trim_whitespace(column)
        text = pc.if_else(pc.equal(text, ""), None, text)
        for kind in (pa.int64(), pa.float64()):
            try:
                return pc.cast(text, kind), []
            except pa.ArrowInvalid:
                continue
    if not asked:
        return None, [f"{table.named(roles.label)} does not hold numbers: not read as labels"]
    words = (str(value) for value in column.to_pylist())
    bad, value = next((k, word) for k, word in enumerate(words) if word and not looks_like_number(word))
    raise DataError(f"{table.at(bad)}: the label {value!r} is not a number ({table.named(roles.label)}).")


def _id_spaces(table: Table, roles: Roles, ids: Ids) -> tuple[bool, str]:
    """Whether the id space is shared, and the sentence that says so."""
    shared = "one id space: the same id in both columns is the same node"
    separate = "two id spaces: the same id as source and as destination is two nodes"
    if ids != "auto":
        return ids == "shared", shared if ids == "shared" else separate
    names = table.header or ()
    if table.layout != "ml" and roles.src < len(names) and roles.dst < len(names):
        pair = names[roles.src], names[roles.dst]
        if pair[0].strip().lower() in _PERSON and pair[1].strip().lower() in _THING:
            return False, f"{separate} (assumed since the columns are '{pair[0]}' and '{pair[1]}'; --ids shared if not)"
    return True, f"{shared} (assumed; --ids separate if not)"


def _column_notes(table: Table, roles: Roles) -> list[str]:
    """Which columns were read as what, and which were left."""
    if table.layout == "ml":
        return ["layout ml_NAME.csv: sources 'u', destinations 'i', times 'ts'"]
    if table.layout == "jodie":
        return ["layout of JODIE: user_id, item_id, timestamp, state_label, features"]
    read = [f"{role} from {table.named(k).removesuffix(' (counted from 0)')}" for role, k in _roles_read(roles)]
    notes = [("no header; " if table.header is None else "") + ", ".join(read)]
    left = [k for k in range(table.width) if k not in roles.used()]
    if left:
        names = ", ".join(str(k) if table.header is None else f"'{table.header[k]}'" for k in left[:10])
        notes.append(f"columns not read: {names}{', …' if len(left) > 10 else ''} (--features reads them)")
    return notes


def _roles_read(roles: Roles) -> list[tuple[str, int]]:
    named = (("sources", roles.src), ("destinations", roles.dst), ("times", roles.time), ("labels", roles.label))
    return [(role, k) for role, k in named if k is not None]


def _event_features(
    table: Table, roles: Roles, columns: dict[int, Any], options: ColumnOptions, source: Any
) -> tuple[Features | None, list[str]]:
    """The features of the events, from their columns or from the ``.npy`` beside a published file."""
    if table.layout == "ml" and options.features is None and isinstance(source, str | os.PathLike):
        return _edge_sibling(table, columns[table.width - 1], Path(source))
    rows = table.numbers(roles.features)
    if rows is None:
        return None, []
    if table.layout == "jodie" and options.features is None and not rows.any():
        return None, ["the features are all zero: read as none"]
    return rows, [f"{rows.shape[1]} features an event"]


# -------------------- the published layouts' siblings


def _sibling(path: Path, ending: str) -> Path | None:
    """``ml_NAME.npy`` beside ``ml_NAME.csv[.gz]``, if it is there."""
    base = re.fullmatch(r"(ml_.+?)(\.csv)?(\.gz)?", path.name)
    found = path.with_name(f"{base[1]}{ending}") if base else None
    return found if found is not None and found.is_file() else None


def load_npy(path: Path) -> npt.NDArray[Any]:
    """A matrix from an ``.npy`` file. DataError for objects, another shape, non-numbers or a damaged file."""
    try:
        rows = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.{_neighbour(path)}") from None
    except (OSError, EOFError, ValueError) as error:
        why = "it holds Python objects, not numbers" if "pickle" in str(error) else f"it is damaged ({error})"
        raise DataError(f"{path} cannot be read: {why}.") from None
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind not in "fiub":
        shape = getattr(rows, "shape", "")
        raise DataError(
            f"{path} holds {getattr(rows, 'dtype', 'an archive')} of shape {shape}; a matrix of numbers was expected."
        )
    return rows


def _finite_npy(rows: npt.NDArray[Any], path: Path) -> Features:
    try:
        found = feature_rows(rows, len(rows), "features")
    except RowError as error:
        raise DataError(f"{path}, row {error.row} (counted from 0): {error.what}.") from None
    return np.zeros((len(rows), 0), np.float32) if found is None else found


def _edge_sibling(table: Table, idx: Any, path: Path) -> tuple[Features | None, list[str]]:
    """Row k of ``ml_NAME.npy`` for the event with ``idx`` k; nothing where the file is not there or all zero."""
    beside = _sibling(path, ".npy")
    if beside is None:
        return None, []
    rows = load_npy(beside)
    n_events = len(idx)
    if len(rows) not in (n_events, n_events + 1):
        raise DataError(
            f"{beside} has {len(rows)} rows; {n_events + 1} were expected for the {n_events} events of {path}"
            " (row 0 unused)."
        )
    if not rows.any():
        return None, [f"{beside.name} is all zero: read as no features"]
    try:
        which = np.asarray(pc.cast(pc.cast(idx, pa.float64()), pa.int64()))
    except pa.ArrowInvalid:
        raise DataError(f"{table.label}: the column 'idx' does not hold whole numbers.") from None
    outside = np.flatnonzero((which < 1) | (which > n_events))
    if len(outside):
        row = int(outside[0])
        raise DataError(f"{table.at(row)}: idx {which[row]} has no row in {beside}; 1 to {n_events} were expected.")
    spare = len(rows) - n_events
    notes = [f"{rows.shape[1]} features an event from {beside.name}"]
    if not spare:
        notes.append(f"{beside.name} has as many rows as there are events: row 0 is taken as the first event's")
    return _finite_npy(rows, beside)[which - 1 + spare], notes


def _with_node_sibling(stream: EventStream, path: Path) -> EventStream:
    """Row k of ``ml_NAME_node.npy`` for node id k, where the file is there and not all zero."""
    beside = _sibling(path, "_node.npy")
    if beside is None:
        return stream
    rows = load_npy(beside)
    if not rows.any():
        return stream.with_notes(f"{beside.name} is all zero: read as no features")
    return _join_by_number(stream, rows, beside)


# -------------------- node features


def join_node_features(stream: EventStream, source: Any) -> EventStream:
    """The stream with node features from a file or table, joined by id.

    A table has an id column (called id or node, else the first), perhaps a column ``side`` (src or dst) where the id
    spaces are separate, and numbers; an ``.npy`` or an array has row k for the integer id k. Nodes without a row get
    zeros and rows without a node are left out, both said. DataError for an id that comes twice or could be two nodes.
    """
    if isinstance(source, np.ndarray):
        return _join_by_number(stream, source, None)
    if isinstance(source, str | os.PathLike) and _is_npy(Path(source)):
        return _join_by_number(stream, load_npy(Path(source)), Path(source))
    table = _open(source, "Node features", _node_dialect)
    return _join_table(stream, table)


def _is_npy(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


def _node_dialect(lines: list[str]) -> _Dialect:
    delimiter = _delimiter(lines, 2)
    first = lines[0].split() if delimiter == " " else _fields(lines[:1], delimiter)[0]
    return _Dialect(delimiter, not all(looks_like_number(k) for k in first[1:]))


def _join_by_number(stream: EventStream, rows: npt.NDArray[Any], path: Path | None) -> EventStream:
    """Row k for the node with integer id k."""
    label = "the node features" if path is None else str(path)
    if not pa.types.is_integer(stream.ids.names.type):
        raise DataError(f"{label}: an array of node features needs integer ids, but those of the events are text.")
    if rows.ndim != 2:
        raise DataError(f"{label} has shape {rows.shape}; one row a node was expected.")
    number = np.asarray(stream.ids.names)
    if len(np.unique(number)) < len(number):
        raise DataError(f"{label}: some ids name a source and a destination; use a table with a column 'side'.")
    low, high = int(number.min()), int(number.max())
    if low < 0 or high >= len(rows):
        raise DataError(
            f"{label} has {len(rows)} rows, but the node ids run from {low} to {high}; row k belongs to id k,"
            f" so {high + 1} rows were expected."
        )
    notes = [f"{rows.shape[1]} features a node from {'the array' if path is None else path.name}"]
    spare = len(rows) - len(number) - (0 if (number == 0).any() else 1)
    if spare > 0:
        notes.append(f"{spare} rows of node features belong to no node of the events: left out")
    finite = _finite_npy(rows, path or Path("node features"))
    return stream.with_node_features(finite[number], *notes)


def _join_table(stream: EventStream, table: Table) -> EventStream:
    names = [k.lower() for k in table.header or ()]
    which = [k for k, name in enumerate(names) if name in _NODE]
    by_id = which[0] if which else 0
    side = names.index("side") if "side" in names else None
    others = [k for k in range(table.width) if k not in (by_id, side)]
    if not others:
        raise DataError(f"{table.label} has an id column but no features.")
    columns = table.columns([by_id] if side is None else [by_id, side])
    ids = _ids(table, columns[by_id], by_id)
    _check_once(table, ids, None if side is None else columns[side])
    node = _nodes_of(stream, table, ids, None if side is None else columns[side])
    rows = table.numbers(others)
    assert rows is not None
    known = node >= 0
    if not known.any():
        raise DataError(f"None of the {len(node)} ids in {table.label} occurs in the events.")
    node_x = np.zeros((stream.n_nodes, rows.shape[1]), np.float32)
    node_x[node[known]] = rows[known]
    notes = [f"{rows.shape[1]} features a node from {Path(table.label).name}"]
    n_bare = stream.n_nodes - len(np.unique(node[known]))
    if n_bare:
        notes.append(f"{n_bare} of {stream.n_nodes} nodes have no row of features: zeros")
    if not known.all():
        notes.append(f"{int((~known).sum())} rows of node features belong to no node of the events: left out")
    return stream.with_node_features(node_x, *notes)


def _check_once(table: Table, ids: Any, side: Any) -> None:
    keys = pc.cast(ids, pa.string())
    if side is not None:
        keys = pc.binary_join_element_wise(keys, pc.cast(side, pa.string()), "\0")
    counts = pc.value_counts(keys)
    if len(counts) == len(keys):
        return
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0]
    rows = np.flatnonzero(np.asarray(pc.equal(keys, repeated)))
    raise DataError(f"{table.at(int(rows[1]))}: the id {ids[int(rows[1])].as_py()!r} comes a second time.")


def _nodes_of(stream: EventStream, table: Table, ids: Any, side: Any) -> npt.NDArray[np.int64]:
    """The node every row belongs to, -1 for none."""
    as_src, as_dst = stream.ids.find(ids, "src"), stream.ids.find(ids, "dst")
    if stream.ids.shared:
        return as_src
    if side is not None:
        low = np.array([str(k).strip().lower() for k in side.to_pylist()])
        wrong = np.flatnonzero((low != "src") & (low != "dst"))
        if len(wrong):
            raise DataError(
                f"{table.at(int(wrong[0]))}: side is {side[int(wrong[0])].as_py()!r}; src or dst was expected."
            )
        return np.where(low == "src", as_src, as_dst)
    both = np.flatnonzero((as_src >= 0) & (as_dst >= 0))
    if len(both):
        row = int(both[0])
        raise DataError(
            f"{table.at(row)}: the id {ids[row].as_py()!r} is a source and another node is a destination of that id;"
            " add a column 'side' with src or dst."
        )
    return np.where(as_src >= 0, as_src, as_dst)


# -------------------- PyG


def _is_temporal_data(source: Any) -> bool:
    if isinstance(source, str | os.PathLike | pa.Table | pa.RecordBatch) or hasattr(source, "columns"):
        return False
    return all(hasattr(source, k) for k in ("src", "dst", "t"))


def _from_temporal_data(data: Any, ids: Ids, name: str) -> EventStream:
    label = _array(getattr(data, "y", None))
    message = _array(getattr(data, "msg", None))
    if message is not None and message.ndim == 1:
        message = message[:, None]
    shared = ids != "separate"
    note = "one id space" if shared else "two id spaces"
    try:
        return EventStream.from_columns(
            _array(data.src), _array(data.dst), _array(data.t), message,
            label.reshape(-1) if label is not None and label.size == len(data.src) else None,
            shared_ids=shared, name=name, notes=(f"{note} for sources and destinations (--ids shared|separate)",),
        )  # fmt: skip
    except DataError as error:
        raise DataError(f"In the TemporalData: {error}") from None


def _array(values: Any) -> Any:
    return None if values is None else np.asarray(values.cpu() if hasattr(values, "cpu") else values)


# -------------------- questions


def read_pairs(
    source: Any,
    *,
    src: Column = None,
    dst: Column = None,
    time: Column = None,
    need_time: bool = False,
    axis: TimeAxis | None = None,
) -> tuple[Any, Any, Any]:
    """The pairs in a file or table of questions: source ids, destination ids, times or None.

    The ids are Arrow columns of integers or text, for ``NodeIds.find``. The times are as in the file, for
    ``TimeAxis.parse_column``; with ``axis`` they are parsed here, so that an error names the line. The columns are
    recognised as those of events are; a file without a header holds ``src dst [time]``.
    """
    options = ColumnOptions(src, dst, time)
    table = open_table(source, options, need_time=need_time)
    roles = choose(table, options, need_time=need_time)
    columns = table.columns([k for k in (roles.src, roles.dst, roles.time) if k is not None])
    if len(columns[roles.src]) == 0:
        raise DataError(f"{table.label} holds no pairs.")
    when = None if roles.time is None else columns[roles.time]
    if axis is not None and roles.time is not None:
        when = _times_on(table, when, roles.time, axis)
    return _ids(table, columns[roles.src], roles.src), _ids(table, columns[roles.dst], roles.dst), when


def read_ids(source: Any, column: Column = None) -> Any:
    """Node ids, one a row, as an Arrow column of integers or text.

    From the column named; else from the one called id, node or as a source usually is; else from the first.
    """
    table = _open(source, "Ids", lambda lines: _id_dialect(lines, column))
    position = 0
    if column is not None:
        position = _position(table, str(column), "src")
    elif table.header is not None:
        named = _named_in(table.header, _NODE) or _named_in(table.header, _SRC)
        position = named[0] if named else 0
    ids = table.columns([position])[position]
    if len(ids) == 0:
        raise DataError(f"{table.label} holds no ids.")
    return _ids(table, ids, position)


def _id_dialect(lines: list[str], column: Column) -> _Dialect:
    delimiter = _delimiter(lines, 2, whitespace=False)
    first = [k.strip() for k in _fields(lines[:1], delimiter)[0]]
    usual = _NODE | _SRC
    asked = column is not None and not str(column).isdigit()
    return _Dialect(delimiter, asked or any(k.lower() in usual for k in first))


# -------------------- writing


def convert(stream: EventStream, out: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Writes the stream as CSV or Parquet, by the file's ending, so that ``read_events`` gives it back.

    Ids and times are as the user wrote them (dates as ISO text in UTC). Node features go to a second file beside the
    first, ``NAME.nodes.csv``, for ``node_features``. Each file is written whole or not at all.

    Returns:
        The files written. DataError for another ending or a folder that cannot be written.
    """
    path = Path(out)
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise DataError(f"{path} ends in '{path.suffix}'; .csv or .parquet was expected.")
    written = [path]
    tables = [_event_table(stream, typed=ending == ".parquet")]
    if stream.node_x is not None:
        written.append(path.with_name(f"{path.stem}.nodes{path.suffix}"))
        tables.append(_node_table(stream))
    for target, table in zip(written, tables, strict=True):
        write_atomically(target, partial(_write_table, table, ending))
    return tuple(written)


def _event_table(stream: EventStream, *, typed: bool) -> Any:
    src, dst = ("src", "dst") if stream.ids.shared else ("user_id", "item_id")
    columns = {src: stream.ids.take(stream.src), dst: stream.ids.take(stream.dst)}
    columns["time"] = stream.time.format(stream.t)
    if typed and stream.time.kind == "date":
        columns["time"] = pa.array(stream.t).cast(pa.timestamp("us", "UTC"))
    if stream.label is not None:
        columns["label"] = pa.array(stream.label, from_pandas=True)
    if stream.edge_x is not None and typed:
        flat = pa.array(stream.edge_x.reshape(-1))
        columns["features"] = pa.FixedSizeListArray.from_arrays(flat, stream.edge_dim)
    elif stream.edge_x is not None:
        columns |= _feature_table(stream.edge_x)
    return pa.table(columns)


def _node_table(stream: EventStream) -> Any:
    assert stream.node_x is not None
    columns = {"id": stream.ids.names}
    if stream.ids.side is not None:
        columns["side"] = pa.array(np.array(["src", "dst"])[stream.ids.side])
    return pa.table(columns | _feature_table(stream.node_x))


def _feature_table(rows: Features) -> dict[str, Any]:
    return {f"feature_{k}": pa.array(np.ascontiguousarray(rows[:, k])) for k in range(rows.shape[1])}


def _write_table(table: Any, ending: str, part: Path) -> None:
    if ending == ".parquet":
        pq.write_table(table, part)
        return
    columns = [_with_point(table.column(k)) for k in range(table.num_columns)]
    plain = pa.table(columns, names=table.column_names)
    # A first field that begins with # or % would be read as a comment, unless it is quoted.
    first = plain.column(0)
    marked = is_text(first.type) and pc.any(pc.match_substring_regex(first, "^[#%]")).as_py()
    style = "all_valid" if marked else "needed"
    pyarrow.csv.write_csv(plain, part, pyarrow.csv.WriteOptions(quoting_style=style, quoting_header="none"))


def _with_point(column: Any) -> Any:
    """Float64 as text that reads as a float again: 36.0, not 36."""
    if not pa.types.is_float64(column.type):
        return column
    text = pc.cast(column, pa.string())
    return pc.if_else(pc.match_substring_regex(text, r"^-?\d+$"), pc.binary_join_element_wise(text, ".0", ""), text)
