"""Open a path or an object in memory as a `Table`. The format is detected from the content, not from the name.

Text is normalized before Arrow reads it: comments are blanked, and edge lists get one space between fields.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError, EmptyInputError
from cordgt.events.arrays import as_column
from cordgt.files import PARQUET_ERRORS, read_bytes, short_message, validate_table
from cordgt.io.column_names import detect_layout
from cordgt.io.frames import as_arrow_table, is_pandas
from cordgt.io.tables import DECIMAL_COMMA, IN_MEMORY, SAMPLE_BYTES, UTF8_BOM, ArrowTable, Table, TextTable
from cordgt.io.zip_files import check_member, is_zip, read_zip_member

_QUOTED = rb'"[^"]*+(?:""[^"]*+)*+(?:"|\Z)'  # an unclosed quote extends to the end of the text
HEAD_BYTES = 1 << 22  # bytes at the start of a text file from which its format is detected
COMMENT_NOTE = "starting with # or % skipped (ids that begin so belong in quotes)"


@dataclass(frozen=True, kw_only=True)
class TextReadOptions:
    """How to detect the format of text.

    Attributes:
        content: what the table holds, for messages.
        min_columns: the smallest number of columns.
        is_header: whether the first row (fields without surrounding white space) names the columns.
        allow_whitespace: fields may be separated by white space.
        allow_comments: lines that start with # or % are comments; False: only those before the first row.
    """

    content: str
    min_columns: int
    is_header: Callable[[list[str]], bool]
    allow_whitespace: bool = True
    allow_comments: bool = True


@dataclass(frozen=True)
class LoadedFile(os.PathLike[str]):
    """A file in memory. `open_table` takes it instead of a path, and may open it any number of times."""

    path: Path
    data: bytes = field(repr=False)  # uncompressed
    member: str | None = None  # of a zip archive

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def is_parquet(self) -> bool:
        return self.data[:4] == b"PAR1"

    def head(self) -> LoadedFile:
        """Return the first whole lines, up to `HEAD_BYTES`. Parquet, and a file of one longer line, stay whole."""
        end = self.data.rfind(b"\n", 0, HEAD_BYTES) + 1
        if self.is_parquet or len(self.data) <= HEAD_BYTES or end == 0:
            return self
        return replace(self, data=self.data[:end])


def load_file(source: Any, member: str | None = None) -> Any:
    """Read a file or a pipe once, and return it as a `LoadedFile`. ``member``: which file of a zip archive.

    Read an object that holds an Arrow table once too, see `as_arrow_table`. Return anything else unchanged: a folder, a
    path that does not exist, a pandas frame.
    """
    if not isinstance(source, str | os.PathLike):
        return as_arrow_table(source)
    if isinstance(source, LoadedFile) or not os.path.exists(source) or os.path.isdir(source):
        return source
    return _load(Path(source), member)


def _load(path: Path, member: str | None) -> LoadedFile:
    check_member(path, member)
    return LoadedFile(path, read_zip_member(path, member) if is_zip(path) else read_bytes(path), member)


def open_table(source: Any, options: TextReadOptions) -> Table:
    """Open a path, a `LoadedFile`, a pandas frame, an Arrow table, or what `as_arrow_table` converts to one.

    DataError for any other source, and for a file that has no rows or cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        file = source if isinstance(source, LoadedFile) else _load(path, None)
        return _open_parquet(str(path), file.data) if file.is_parquet else open_text(str(path), file.data, options)
    source = as_arrow_table(source)
    if isinstance(source, pa.Table):
        return ArrowTable.from_names(IN_MEMORY, source.column_names, lambda k: as_column(source.column(k)))
    if is_pandas(source):
        return ArrowTable.from_names(IN_MEMORY, source.columns, lambda k: as_column(source.iloc[:, k]))
    raise DataError(
        f"{options.content} cannot be read from {type(source).__name__}; pass a path, a pandas or an Arrow table, or an"
        " object with __arrow_c_stream__ (polars, DuckDB)."
    )


def _open_parquet(name: str, data: bytes) -> ArrowTable:
    with explain_parquet_errors(name):
        file = pq.ParquetFile(pa.BufferReader(data))
        header = file.schema_arrow.names

    def get_column(k: int) -> Any:
        check_unique_names(name, header, [header[k]])
        with explain_parquet_errors(name):
            return as_column(validate_table(file.read(columns=[header[k]])).column(header[k]))

    return ArrowTable.from_names(name, header, get_column)


@contextmanager
def explain_parquet_errors(name: object) -> Iterator[None]:
    """Re-raise Arrow's errors about a damaged Parquet file as DataError."""
    try:
        yield
    except PARQUET_ERRORS as error:
        raise DataError(f"{name} is a damaged Parquet file: {short_message(error)}") from None


def check_unique_names(name: object, header: list[str], columns: list[str]) -> None:
    """Raise DataError if a Parquet file has several columns with one of these names."""
    for column in columns:
        if header.count(column) > 1:
            raise DataError(f"{name} has {header.count(column)} columns called '{column}'. Give each its own name.")


# -------------------- text


def open_text(name: str, data: bytes, options: TextReadOptions) -> TextTable:
    """Open text, or the whole lines at its start, as a table. Its first lines show the delimiter and the header.

    `open_text_chunk` opens the lines that follow. DataError if this is not text, or has no rows.
    """
    raw, text = data, _normalize(name, data)
    bipartite_reason = "the first line is '% bip'" if re.match(rb"\s*%[ \t]*bip\b", text) else ""
    data, n_comments = _blank_comments(text) if options.allow_comments else (_blank_leading_comments(text), 0)
    double_colon = _has_double_colons(_first_lines(data), options)
    if double_colon:
        text, data = (k.replace(b"::", b"\t") for k in (text, data))
    delimiter = "\t" if double_colon else _detect_delimiter(name, _first_lines(data), options)
    has_quoted_returns = not double_colon and _has_quoted_returns(raw)
    if has_quoted_returns:
        text = _normalize(name, raw, delimiter)
        data = text if options.allow_comments else _blank_leading_comments(text)
    if options.allow_comments and (has_quoted_returns or (n_comments and b'"' in text)):
        data, n_comments = _blank_comments(text, delimiter)
    has_spaces = delimiter != " " and _has_space_after_delimiters(_first_lines(data), delimiter)
    data = _normalize_spaces(data, delimiter)
    lines = _first_lines(data)
    if not lines:
        raise EmptyInputError(f"{name} holds nothing but comments.")
    decimal_comma = delimiter == ";" and _has_decimal_commas(data)
    first_row = [field.strip() for field in _split(lines[:1], delimiter)[0]]
    has_header = options.is_header(
        [re.sub(DECIMAL_COMMA, r"\1.\2", k) for k in first_row] if decimal_comma else first_row
    )
    if double_colon and not has_header:
        bipartite_reason = bipartite_reason or "lists separated by '::' are of users and items"
    rows = _split(lines, delimiter)
    header, body, first_line = None, data, 1
    if has_header:
        header = tuple(field.strip() for field in rows[0])
        body, first_line = _skip_header(data, rows[0], delimiter)
        if len(rows) < 2 or not body.strip():
            raise EmptyInputError(f"{name} holds a header but no rows.")
    first = rows[1] if has_header else rows[0]
    layout = detect_layout(header or ())
    n_columns = len(first) if header is None else len(header)
    if layout == "jodie":  # its header has one name for all features, of which there may be none
        n_columns = max(len(first), 4)
    notes: tuple[str, ...] = (
        (f"{n_comments} {'line' if n_comments == 1 else 'lines'} {COMMENT_NOTE}",) if n_comments else ()
    )
    if decimal_comma:
        notes += ("numbers have decimal commas: 1,5 is read as 1.5",)
    return TextTable(
        name=name,
        header=header,
        n_columns=n_columns,
        layout=layout,
        notes=notes,
        bipartite_reason=bipartite_reason,
        body=body,
        first_line=first_line,
        delimiter=delimiter,
        strip_leading_space=has_spaces and len(first) > 1,
        decimal_comma=decimal_comma,
        double_colon=double_colon,
    )


def open_text_chunk(table: TextTable, data: bytes, first_line: int) -> TextTable:
    """Open later lines of the same text; the first of them is ``first_line`` of the file.

    DataError as for `open_text`, but the line number of bytes that are not UTF-8 counts from the start of the chunk.
    """
    data = _normalize(table.name, data, None if table.double_colon else table.delimiter)
    if table.double_colon:
        data = data.replace(b"::", b"\t")
    data, n_comments = _blank_comments(data, table.delimiter)
    notes = (f"lines {COMMENT_NOTE}",) if n_comments else ()
    return replace(table, body=_normalize_spaces(data, table.delimiter), first_line=first_line, notes=notes)


def _normalize(name: str, data: bytes, delimiter: str | None = None) -> bytes:
    """Return UTF-8 text without byte order marks, with ``\\n`` as line end. DataError if it is not UTF-8.

    With a delimiter, a single ``\\r`` in a quoted field is left alone: it is part of the value.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name} is text in UTF-16; save it as UTF-8.")
    while data.startswith(UTF8_BOM):
        data = data.removeprefix(UTF8_BOM)
    if b"\0" in data[:65536]:
        raise DataError(f"{name} is neither text (CSV, TSV, edge list), nor gzip of it, nor Parquet.")
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise DataError(f"{name}, line {line}: not in UTF-8; save the file in UTF-8.") from None
    if b"\r" not in data:
        return data
    data = data.replace(b"\r\n", b"\n")
    if delimiter is None or not _has_quoted_returns(data):
        return data.replace(b"\r", b"\n")
    before = rb"\r\n \t" if delimiter == " " else rb"\r\n" + re.escape(delimiter).encode()
    quoted = rb'((?:\A|(?<=[%s])) *+"[^"]*+(?:""[^"]*+)*+")|\r' % before
    return re.sub(quoted, lambda match: match[1] or b"\n", data)


def _has_quoted_returns(data: bytes) -> bool:
    """Whether a single ``\\r`` may be in a quoted field. A quick test: it may also end a line."""
    return b'"' in data and data.count(b"\r") > data.count(b"\r\n")


def _blank_comments(data: bytes, delimiter: str | None = None) -> tuple[bytes, int]:
    """Return the text with comment lines blanked, and their number.

    With a delimiter, quoted fields are left alone: one may contain a line that starts with #.
    """
    if not (data[:1] in (b"#", b"%") or b"\n#" in data or b"\n%" in data):
        return data, 0
    if delimiter is None:
        return re.subn(rb"(?m)^[#%].*", b"", data)
    n_comments = 0

    def blank(match: re.Match[bytes]) -> bytes:
        nonlocal n_comments
        if match[0][:1] in (b"#", b"%"):
            n_comments += 1
            return b""
        return match[0]

    before = rb"[ \t]" if delimiter == " " else re.escape(delimiter).encode()
    return re.sub(rb"(?m)(?:^|(?<=%s)) *%s|^[#%%].*" % (before, _QUOTED), blank, data), n_comments


def _blank_leading_comments(data: bytes) -> bytes:
    """Return the text with the comment lines before the first row blanked."""
    return re.sub(rb"\A(?:(?:[#%].*|[ \t]*)(?:\n|\Z))+", lambda match: b"\n" * match[0].count(b"\n"), data)


def _has_decimal_commas(data: bytes) -> bool:
    """Whether fields between semicolons are numbers such as 1,5 and none is a number such as 1.5."""
    head = data[:SAMPLE_BYTES]
    field = rb'(?m)(?:^|;) *"?[+-]?[0-9]+%s[0-9]+"? *(?:;|$)'
    return re.search(field % b",", head) is not None and re.search(field % rb"\.", head) is None


def _has_space_after_delimiters(lines: list[str], delimiter: str) -> bool:
    """Whether every delimiter outside quotes is followed by a space."""
    unquoted = [re.sub(r'"[^"]*"', "", line) for line in lines]
    return all(part[:1] == " " for line in unquoted for part in line.split(delimiter)[1:])


def _normalize_spaces(data: bytes, delimiter: str) -> bytes:
    """Remove spaces between a delimiter and a quote. If the delimiter is a space, leave one space between fields."""
    if delimiter == " ":
        return _collapse_spaces(data)
    escaped = re.escape(delimiter).encode()
    if b' "' not in data or not re.search(rb'(?m)(?:^|%s) +"' % escaped, data):
        return data
    return re.sub(rb"(?m)(^|%s) *(%s)" % (escaped, _QUOTED), rb"\1\2", data)


def _collapse_spaces(data: bytes) -> bytes:
    """Replace white space by one space between fields and by none at the ends of a line. Quoted fields stay."""
    if b'"' in data:
        pattern = rb"(?m)((?:^|(?<=[ \t]))%s)|^[ \t]+|[ \t]+$|([ \t]+)" % _QUOTED
        return re.sub(pattern, lambda match: match[1] or (b" " if match[2] else b""), data)
    data = data.replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")


def _first_lines(data: bytes) -> list[str]:
    """Return up to 50 lines that are not blank."""
    head = data[: 1 << 20]
    lines = head.decode("utf-8", errors="ignore").split("\n")
    if len(head) < len(data) and len(lines) > 1:
        lines.pop()
    return [line for line in lines if line.strip()][:50]


def _skip_header(data: bytes, header: list[str], delimiter: str) -> tuple[bytes, int]:
    """Return the text after the header, and the number of its first line."""
    text = io.StringIO(data[: 1 << 20].decode("utf-8", errors="ignore"), newline="\n")
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        if row == header:
            break
    offset = 0
    for _ in range(reader.line_num):
        offset = data.find(b"\n", offset) + 1
        if offset == 0:
            return b"", reader.line_num + 1
    return data[offset:], reader.line_num + 1


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    """Split lines into rows of fields; at every delimiter if the quotes are not valid."""
    try:
        reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, skipinitialspace=True)
        return [row for row in reader if row]
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def _has_double_colons(lines: list[str], options: TextReadOptions) -> bool:
    """Whether fields are separated by ``::``, as MovieLens publishes them. They are then read as tabs."""
    widths = {line.count("::") + 1 for line in lines}
    return len(widths) == 1 and min(widths) >= options.min_columns and not any("\t" in line for line in lines)


def _detect_delimiter(name: str, lines: list[str], options: TextReadOptions) -> str:
    """Return the delimiter that splits most lines into the same, sufficient number of fields.

    A space stands for any run of spaces and tabs.
    """
    if not lines:
        raise EmptyInputError(f"{name} holds nothing but comments.")
    best, best_key = "", (False, 0.0, 0)
    for delimiter in (",", "\t", ";", "|"):
        counts = Counter(len(row) for row in _split(lines, delimiter))
        width = max(counts, key=lambda k: (counts[k], k))
        key = (width >= options.min_columns, counts[width] / len(lines), width)
        if width > 1 and key > best_key:
            best, best_key = delimiter, key
    n_words = min(len(re.split(r"[ \t]+", line.strip(" \t"))) for line in lines)
    is_wide_enough = n_words >= options.min_columns or not best
    if options.allow_whitespace and not best_key[0] and n_words > 1 and is_wide_enough:
        return " "
    return best or ","
