"""Opening a source: a path or a table in memory to a ``Table``, told apart by what it holds, not by its name."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.arrays import as_column
from cordgt.errors import DataError
from cordgt.files import PARQUET_ERRORS, checked_table, read_bytes, short
from cordgt.tables import MARK, Table, TextTable, TypedTable
from cordgt.usual_names import layout_of


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What tells how to read text.

    Attributes:
        what: what the table holds, for messages.
        n_columns: how many columns there are at least.
        is_header: whether the first row (fields without the white space around them) names the columns.
        whitespace: whether white space may separate the fields.
    """

    what: str
    n_columns: int
    is_header: Callable[[list[str]], bool]
    whitespace: bool = True


def open_source(source: Any, expected: Expected) -> Table:
    """A table from a path (read once, so that a pipe will do), a pandas or Arrow table.

    DataError where it is none of these, or a file that holds no rows or cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        data = read_bytes(path)
        return _parquet(str(path), data) if data[:4] == b"PAR1" else _text(str(path), data, expected)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return _typed("the table", source.column_names, lambda k: as_column(source.column(k)))
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        return _typed("the table", source.columns, lambda k: as_column(source.iloc[:, k]))
    raise DataError(
        f"{expected.what} cannot be read from {type(source).__name__}; a path, a pandas or an Arrow table can."
    )


def _typed(label: str, names: Any, get: Callable[[int], Any]) -> TypedTable:
    header = tuple(str(k) for k in names)
    return TypedTable(label=label, header=header, width=len(header), get=get)


def _parquet(label: str, data: bytes) -> TypedTable:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
    except PARQUET_ERRORS as error:
        raise DataError(f"{label} is a damaged Parquet file: {short(error)}") from None

    def get(column: int) -> Any:
        name = names[column]
        if names.count(name) > 1:
            raise DataError(f"{label} has {names.count(name)} columns called '{name}'; each needs a name of its own.")
        try:
            return as_column(checked_table(file.read(columns=[name])).column(name))
        except PARQUET_ERRORS as error:
            raise DataError(f"{label} is a damaged Parquet file: {short(error)}") from None

    return _typed(label, names, get)


# -------------------- text


def _text(label: str, data: bytes, expected: Expected) -> TextTable:
    """Text as a table: the first lines show the delimiter and whether there is a header."""
    data, n_comments = _cleaned(label, data)
    lines = _first_lines(data)
    if not lines:
        raise DataError(f"{label} holds nothing but comments.")
    delimiter = _delimiter(lines, expected)
    first_line = lines[0].split() if delimiter == " " else _fields(lines[:1], delimiter)[0]
    has_header = expected.is_header([k.strip() for k in first_line])
    if delimiter == " ":
        data = _single_spaced(data)
        lines = _first_lines(data)
    rows = _fields(lines, delimiter)
    header, body, body_line = None, data, 1
    if has_header:
        header = tuple(k.strip() for k in rows[0])
        body, body_line = _after_header(data, rows[0], delimiter)
        if len(rows) < 2 or not body.strip():
            raise DataError(f"{label} holds a header but no rows.")
    first = rows[1] if has_header else rows[0]
    layout = layout_of(header or ())
    comments = f"{n_comments} {'line' if n_comments == 1 else 'lines'} starting with # or % skipped"
    return TextTable(
        label=label,
        header=header,
        # The header of JODIE has one name for all the features.
        width=len(first) if header is None or layout == "jodie" else len(header),
        layout=layout,
        notes=(comments,) if n_comments else (),
        body=body,
        first_line=body_line,
        delimiter=delimiter,
        trim=delimiter != " " and len(first) > 1 and all(k[:1] == " " for row in rows for k in row[1:]),
    )


def _cleaned(label: str, data: bytes) -> tuple[bytes, int]:
    """Text in UTF-8 without its mark, one kind of line end, comment lines blanked; and how many these were."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{label} is text in UTF-16; save it as UTF-8.")
    while data.startswith(MARK):
        data = data.removeprefix(MARK)
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
    """The text with comment lines blanked, and how many these were."""
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
    """The rows in these lines; split at every delimiter where the quotes make no sense."""
    try:
        return [k for k in csv.reader((f"{line}\n" for line in lines), delimiter=delimiter) if k]
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def _delimiter(lines: list[str], expected: Expected) -> str:
    """The mark that splits most lines alike into enough fields; a space stands for any white space."""
    needed = expected.n_columns
    best, best_key = "", (False, 0.0, 0)
    for mark in (",", "\t", ";", "|"):
        counts = Counter(len(k) for k in _fields(lines, mark))
        width = max(counts, key=lambda k: (counts[k], k))
        key = (width >= needed, counts[width] / len(lines), width)
        if width > 1 and key > best_key:
            best, best_key = mark, key
    blank_width = min(len(line.split()) for line in lines)
    if expected.whitespace and not best_key[0] and blank_width > 1 and (blank_width >= needed or not best):
        return " "
    return best or ","
