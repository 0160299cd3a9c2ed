"""Opening a source: a path or a table in memory to a ``Table``, told apart by what it holds, not by its name."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError
from cordgt.events.arrays import as_column
from cordgt.files import PARQUET_ERRORS, checked_table, read_bytes, short
from cordgt.io.column_names import layout_of
from cordgt.io.tables import MARK, Table, TextTable, TypedTable

_QUOTED = rb'"[^"]*+(?:""[^"]*+)*+(?:"|\Z)'  # to the end of the text where it is never closed
HEAD_BYTES = 1 << 22  # of a text file: enough to know its columns
COMMENTS = "starting with # or % skipped (ids that begin so belong in quotes)"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What tells how to read text.

    Attributes:
        what: what the table holds, for messages.
        n_columns: how many columns there are at least.
        is_header: whether the first row (fields without the white space around them) names the columns.
        whitespace: whether white space may separate the fields.
        comments: whether lines that begin with # or % are none of the table; False: only those before its first line.
    """

    what: str
    n_columns: int
    is_header: Callable[[list[str]], bool]
    whitespace: bool = True
    comments: bool = True


@dataclass(frozen=True)
class LoadedFile(os.PathLike[str]):
    """A file in memory. It replaces the path in `open_source`, which may then open it any number of times."""

    path: Path
    data: bytes = field(repr=False)  # uncompressed

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def is_parquet(self) -> bool:
        return self.data[:4] == b"PAR1"

    def head(self) -> LoadedFile:
        """The first whole lines, up to `HEAD_BYTES`. A Parquet file, and a file of one longer line, stay whole."""
        end = self.data.rfind(b"\n", 0, HEAD_BYTES) + 1
        if self.is_parquet or len(self.data) <= HEAD_BYTES or end == 0:
            return self
        return replace(self, data=self.data[:end])


def load_file(source: Any) -> Any:
    """Read a file or a pipe once, and return it as a `LoadedFile`.

    Anything else comes back unchanged: a table in memory, a folder, a path that does not exist.
    """
    if not isinstance(source, str | os.PathLike) or isinstance(source, LoadedFile):
        return source
    if not os.path.exists(source) or os.path.isdir(source):
        return source
    path = Path(source)
    return LoadedFile(path, read_bytes(path))


def open_source(source: Any, expected: Expected) -> Table:
    """A table from a path, a `LoadedFile`, a pandas or an Arrow table.

    DataError for any other source, and for a file that holds no rows or cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        file = source if isinstance(source, LoadedFile) else LoadedFile(path, read_bytes(path))
        return _parquet(str(path), file.data) if file.is_parquet else open_text(str(path), file.data, expected)
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


def open_text(label: str, data: bytes, expected: Expected) -> TextTable:
    """Text, or the whole lines that it begins with, as a table: the first ones show the delimiter and the header.

    What they show holds for the rest, which `more_text` reads. DataError where it is no text, or holds no rows.
    """
    raw = _cleaned(label, data)
    data, n_comments = _without_comments(raw) if expected.comments else (_without_comments_before(raw), 0)
    delimiter = _delimiter(label, _first_lines(data), expected)
    if n_comments and b'"' in raw:
        data, n_comments = _without_comments(raw, delimiter)
    spaced = delimiter != " " and _is_spaced(_first_lines(data), delimiter)
    data = _single_spaced(data) if delimiter == " " else _quotes_first(data, delimiter)
    lines = _first_lines(data)
    if not lines:
        raise DataError(f"{label} holds nothing but comments.")
    has_header = expected.is_header([k.strip() for k in _fields(lines[:1], delimiter)[0]])
    rows = _fields(lines, delimiter)
    header, body, body_line = None, data, 1
    if has_header:
        header = tuple(k.strip() for k in rows[0])
        body, body_line = _after_header(data, rows[0], delimiter)
        if len(rows) < 2 or not body.strip():
            raise DataError(f"{label} holds a header but no rows.")
    first = rows[1] if has_header else rows[0]
    layout = layout_of(header or ())
    comments = f"{n_comments} {'line' if n_comments == 1 else 'lines'} {COMMENTS}"
    return TextTable(
        label=label,
        header=header,
        # The header of JODIE has one name for all the features, of which there may be none.
        width=len(first) if header is None else max(len(first), 4) if layout == "jodie" else len(header),
        layout=layout,
        notes=(comments,) if n_comments else (),
        body=body,
        first_line=body_line,
        delimiter=delimiter,
        trim=spaced and len(first) > 1,
    )


def more_text(table: TextTable, data: bytes, first_line: int) -> TextTable:
    """Later lines of the same text as a table of their own; the first of them is ``first_line`` of the file.

    Errors as for the beginning, but for line numbers in bytes that are not UTF-8, which count from the piece's start.
    """
    data, n_comments = _without_comments(_cleaned(table.label, data), table.delimiter)
    data = _single_spaced(data) if table.delimiter == " " else _quotes_first(data, table.delimiter)
    notes = table.notes if not n_comments else (f"lines {COMMENTS}",)
    return replace(table, body=data, first_line=first_line, notes=notes)


def _cleaned(label: str, data: bytes) -> bytes:
    """Text in UTF-8 without its mark, with one kind of line end."""
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
    return data


def _without_comments(data: bytes, delimiter: str | None = None) -> tuple[bytes, int]:
    """The text with comment lines blanked, and how many these were.

    A quoted field may hold a line break followed by '#': once the delimiter is known, such a field is passed over
    whole, to the end of the text where the quote is never closed.
    """
    if not (data[:1] in (b"#", b"%") or b"\n#" in data or b"\n%" in data):
        return data, 0
    if delimiter is None:
        return re.subn(rb"(?m)^[#%].*", b"", data)
    n_comments = 0

    def blank(found: re.Match[bytes]) -> bytes:
        nonlocal n_comments
        if found[0][:1] in (b"#", b"%"):
            n_comments += 1
            return b""
        return found[0]

    before = rb"[ \t]" if delimiter == " " else re.escape(delimiter).encode()
    return re.sub(rb"(?m)(?:^|(?<=%s)) *%s|^[#%%].*" % (before, _QUOTED), blank, data), n_comments


def _without_comments_before(data: bytes) -> bytes:
    """The text with the comment lines blanked that stand before its first line of another kind."""
    return re.sub(rb"\A(?:(?:[#%].*|[ \t]*)(?:\n|\Z))+", lambda found: b"\n" * found[0].count(b"\n"), data)


def _is_spaced(lines: list[str], delimiter: str) -> bool:
    """Whether every delimiter outside quotes is followed by a space."""
    bare = [re.sub(r'"[^"]*"', "", line) for line in lines]
    return all(part[:1] == " " for line in bare for part in line.split(delimiter)[1:])


def _quotes_first(data: bytes, delimiter: str) -> bytes:
    """The text without the spaces between a delimiter and a quote: there they are no part of the field."""
    mark = re.escape(delimiter).encode()
    if b' "' not in data or not re.search(rb'(?m)(?:^|%s) +"' % mark, data):
        return data
    return re.sub(rb"(?m)(^|%s) *(%s)" % (mark, _QUOTED), rb"\1\2", data)


def _first_lines(data: bytes) -> list[str]:
    """Up to 50 lines that are not blank."""
    head = data[: 1 << 20]
    lines = head.decode("utf-8", errors="ignore").split("\n")
    if len(head) < len(data) and len(lines) > 1:
        lines.pop()
    return [k for k in lines if k.strip()][:50]


def _single_spaced(data: bytes) -> bytes:
    """Fields separated by one space, none at the ends of a line; what is quoted stays as it is."""
    if b'"' in data:
        spaces = rb"(?m)((?:^|(?<=[ \t]))%s)|^[ \t]+|[ \t]+$|[ \t]+" % _QUOTED
        return re.sub(spaces, _one_space, data)
    data = data.replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")


def _one_space(found: re.Match[bytes]) -> bytes:
    """What to put for white space, which is gone at the ends of a line, or for a quoted field."""
    if found[1] is not None:
        return found[1]
    text, start, end = found.string, found.start(), found.end()
    inside = start > 0 and text[start - 1] != 10 and end < len(text) and text[end] != 10
    return b" " if inside else b""


def _after_header(data: bytes, header: list[str], delimiter: str) -> tuple[bytes, int]:
    """What follows the header's row, and the number of its first line."""
    reader = csv.reader(
        io.StringIO(data[: 1 << 20].decode("utf-8", errors="ignore"), newline="\n"),
        delimiter=delimiter,
        skipinitialspace=True,
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
        reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, skipinitialspace=True)
        return [k for k in reader if k]
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def _words(line: str) -> list[str]:
    """The parts of a line between spaces and tabs."""
    return re.split(r"[ \t]+", line.strip(" \t"))


def _delimiter(label: str, lines: list[str], expected: Expected) -> str:
    """The mark that splits most lines alike into enough fields; a space stands for spaces and tabs."""
    if not lines:
        raise DataError(f"{label} holds nothing but comments.")
    needed = expected.n_columns
    best, best_key = "", (False, 0.0, 0)
    for mark in (",", "\t", ";", "|"):
        counts = Counter(len(k) for k in _fields(lines, mark))
        width = max(counts, key=lambda k: (counts[k], k))
        key = (width >= needed, counts[width] / len(lines), width)
        if width > 1 and key > best_key:
            best, best_key = mark, key
    blank_width = min(len(_words(line)) for line in lines)
    if expected.whitespace and not best_key[0] and blank_width > 1 and (blank_width >= needed or not best):
        return " "
    return best or ","
