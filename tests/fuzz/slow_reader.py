"""Delimited text read the slow and obvious way, one character at a time, to compare with what the readers made of it.

Which delimiter, which columns and whether there is a header are taken from the table that was opened: what a person
sees in its notes. Everything else is done here again, without Arrow, ``csv`` or regular expressions.
"""

from __future__ import annotations

import gzip
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cordgt.events.stream import EventStream
from cordgt.io.column_roles import Roles
from cordgt.io.tables import TextTable


def rows_of(data: bytes, delimiter: str, *, comments: bool = True) -> list[list[str]]:
    """The fields of every row that is neither blank nor a comment; ``comments`` False: only before the first row.

    A quote opens a field only at its start or after spaces there; two of them within are one. A comment begins at the
    start of a line.
    A space as delimiter stands for any run of spaces and tabs.
    """
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    text = data.decode("utf-8").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    rows: list[list[str]] = []
    at = 0
    while at < len(text):
        if text[at] in "#%" and (comments or not rows):
            at = _end_of_line(text, at) + 1
            continue
        row, at = _row(text, at, delimiter)
        if any(field.strip() for field in row) or (len(row) > 1 and delimiter not in " \t"):
            rows.append(row)
    return rows


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _row(text: str, at: int, delimiter: str) -> tuple[list[str], int]:
    """The row that begins at ``at``, and where the next one does."""
    marks = " \t" if delimiter == " " else delimiter
    row: list[str] = []
    while True:
        if delimiter == " ":
            while at < len(text) and text[at] in marks:
                at += 1
            if row and (at == len(text) or text[at] == "\n"):
                return row, at + 1
        field, at = _field(text, at, marks)
        row.append(field)
        if at >= len(text) or text[at] == "\n":
            return row, at + 1
        at += 1


def _field(text: str, at: int, marks: str) -> tuple[str, int]:
    """The field that begins at ``at``, and where the mark after it stands."""
    inside = len(text) - len(text[at:].lstrip(" "))
    if " " not in marks and text[inside : inside + 1] == '"':
        at = inside
    field, quoted, start = "", False, at
    while at < len(text):
        char = text[at]
        if quoted:
            if char != '"':
                field += char
            elif text[at + 1 : at + 2] == '"':
                field += '"'
                at += 1
            else:
                quoted = False
        elif char == '"' and at == start:
            quoted = True
        elif char == "\n" or char in marks:
            break
        else:
            field += char
        at += 1
    return field, at


# -------------------- comparing


def events_differ(data: bytes, table: TextTable, roles: Roles, stream: EventStream) -> str:
    """What a stream that was read from these bytes has wrong, in words; empty where nothing was found."""
    rows = _data_rows(data, table)
    if len(rows) != stream.n_events:
        return f"{len(rows)} rows, {stream.n_events} events"
    assert roles.time is not None
    written = [(_id(row, roles.src, table), _id(row, roles.dst, table)) for row in rows]
    pairs = (stream.ids.take(k).to_pylist() for k in (stream.src, stream.dst))
    found = [(str(a), str(b)) for a, b in zip(*pairs, strict=True)]
    times = [_time(row[roles.time], stream) for row in rows]
    if any(t is None for t in times):  # a date that Arrow reads and Python does not
        return "" if sorted(written) == sorted(found) else f"{sorted(written)} was read as {sorted(found)}"
    order = sorted(range(len(rows)), key=times.__getitem__)
    when = [_time(str(t), stream) for t in stream.time.format(stream.t).to_pylist()]
    for place, number in enumerate(order):
        if written[number] != found[place]:
            return f"row {number}: {written[number]} was read as {found[place]}"
        if times[number] != when[place]:
            return f"row {number}: the time {rows[number][roles.time]!r} was read as {when[place]!r}"
        wrong = _label_or_features_differ(rows[number], table, roles, stream, place)
        if wrong:
            return f"row {number}: {wrong}"
    return ""


def _label_or_features_differ(row: list[str], table: TextTable, roles: Roles, stream: EventStream, place: int) -> str:
    if roles.label is not None and stream.label is not None:
        text, label = row[roles.label].strip(), stream.label[place]
        missing = math.isnan(label) and text.lower().lstrip("+-") in ("", "nan")
        if not missing and not _equals(label, text):
            return f"the label {text!r} was read as {label!r}"
    if roles.features and stream.edge_x is not None and table.layout != "ml":
        with np.errstate(over="ignore"):
            values = np.array([np.float32(row[k].strip()) for k in roles.features])
        if not np.array_equal(values, stream.edge_x[place]):
            return f"the features {values} were read as {stream.edge_x[place]}"
    return ""


def ids_differ(data: bytes, table: TextTable, columns: dict[int, Any]) -> str:
    """The same for the ids of questions, which come back in the order of the file. ``columns``: position to values."""
    rows = _data_rows(data, table, comments=False)
    for position, values in columns.items():
        if len(rows) != len(values):
            return f"{len(rows)} rows, {len(values)} ids"
        for number, (row, value) in enumerate(zip(rows, values.to_pylist(), strict=True)):
            if _id(row, position, table) != str(value):
                return f"row {number}: {row[position]!r} was read as {value!r}"
    return ""


def _data_rows(data: bytes, table: TextTable, *, comments: bool = True) -> list[list[str]]:
    rows = rows_of(data, table.delimiter, comments=comments)
    return rows if table.header is None else rows[1:]


def _trimmed(text: str, table: TextTable) -> str:
    return text.lstrip() if table.trim else text


def _id(row: list[str], position: int, table: TextTable) -> str:
    return _trimmed(row[position], table) if position else row[position]


def _equals(number: Any, text: str) -> bool:
    try:
        return bool(int(text) == number) if isinstance(number, np.int64) else float(text) == number
    except ValueError:
        return False


def _time(text: str, stream: EventStream) -> Any:
    """A time as the number or date that it is; None for a date that Python does not read."""
    text = text.strip()
    if stream.time.kind == "number":
        return int(text) if stream.t.dtype.kind == "i" else float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
