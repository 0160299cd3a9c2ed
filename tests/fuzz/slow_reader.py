"""A slow, obvious reader of delimited text, one character at a time, to compare with `read_events`.

Delimiter, header and column roles come from the opened table. Everything else is done here again, without Arrow,
``csv`` or regular expressions.
"""

from __future__ import annotations

import gzip
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cordgt.events.stream import EventStream
from cordgt.io.column_roles import ColumnRoles
from cordgt.io.tables import TextTable


def parse_rows(data: bytes, delimiter: str, *, comments: bool = True) -> list[list[str]]:
    """Return the fields of each row that is neither blank nor a comment; ``comments`` False: only before the first row.

    A quote opens a field only at its start or after leading spaces; two quotes within a field are one. A comment starts
    at the start of a line. A space as delimiter stands for any run of spaces and tabs.
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
    """Return the row that starts at ``at``, and the start of the next one."""
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
    """Return the field that starts at ``at``, and its end."""
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


def compare_events(data: bytes, table: TextTable, roles: ColumnRoles, stream: EventStream) -> str:
    """Describe the first error in a stream read from these bytes; empty if there is none."""
    rows = _data_rows(data, table)
    if len(rows) != stream.n_events:
        return f"{len(rows)} rows, {stream.n_events} events"
    assert roles.time is not None
    written = [(_id(row, roles.src, table), _id(row, roles.dst, table)) for row in rows]
    pairs = (stream.ids.decode(k).to_pylist() for k in (stream.src, stream.dst))
    found = [(str(a), str(b)) for a, b in zip(*pairs, strict=True)]
    times = [_time(_number(row[roles.time], table), stream) for row in rows]
    if any(t is None for t in times):  # a date that Arrow reads and Python does not
        return "" if sorted(written) == sorted(found) else f"{sorted(written)} was read as {sorted(found)}"
    order = sorted(range(len(rows)), key=times.__getitem__)
    when = [_time(str(t), stream) for t in stream.time.format(stream.t).to_pylist()]
    for place, number in enumerate(order):
        if written[number] != found[place]:
            return f"row {number}: {written[number]} was read as {found[place]}"
        if times[number] != when[place]:
            return f"row {number}: the time {rows[number][roles.time]!r} was read as {when[place]!r}"
        wrong = _compare_label_and_features(rows[number], table, roles, stream, place)
        if wrong:
            return f"row {number}: {wrong}"
    return ""


def _compare_label_and_features(
    row: list[str], table: TextTable, roles: ColumnRoles, stream: EventStream, place: int
) -> str:
    if roles.label is not None and stream.label is not None:
        text, label = _number(row[roles.label].strip(), table), stream.label[place]
        missing = math.isnan(label) and text.lower().lstrip("+-") in ("", "nan")
        if not missing and not _equals(label, text):
            return f"the label {text!r} was read as {label!r}"
    if roles.features and stream.edge_x is not None and table.layout != "ml":
        with np.errstate(over="ignore"):
            values = np.array([np.float32(_number(row[k].strip(), table)) for k in roles.features])
        if not np.array_equal(values, stream.edge_x[place]):
            return f"the features {values} were read as {stream.edge_x[place]}"
    return ""


def compare_ids(data: bytes, table: TextTable, columns: dict[int, Any]) -> str:
    """Describe the first error in the ids of queries, in file order. ``columns``: position to values."""
    rows = _data_rows(data, table, comments=False)
    for position, values in columns.items():
        if len(rows) != len(values):
            return f"{len(rows)} rows, {len(values)} ids"
        for number, (row, value) in enumerate(zip(rows, values.to_pylist(), strict=True)):
            if _id(row, position, table) != str(value):
                return f"row {number}: {row[position]!r} was read as {value!r}"
    return ""


def _data_rows(data: bytes, table: TextTable, *, comments: bool = True) -> list[list[str]]:
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    rows = parse_rows(data.replace(b"::", b"\t") if table.double_colon else data, table.delimiter, comments=comments)
    return rows if table.header is None else rows[1:]


def _number(text: str, table: TextTable) -> str:
    """Return a number with a decimal point."""
    return text.replace(",", ".") if table.decimal_comma and text.count(",") == 1 else text


def _strip(text: str, table: TextTable) -> str:
    return text.lstrip() if table.strip_leading_space else text


def _id(row: list[str], position: int, table: TextTable) -> str:
    return _strip(row[position], table) if position else row[position]


def _equals(number: Any, text: str) -> bool:
    try:
        return bool(int(text) == number) if isinstance(number, np.int64) else float(text) == number
    except ValueError:
        return False


def _time(text: str, stream: EventStream) -> Any:
    """Return a time as number or date; None for a date that Python cannot parse."""
    text = text.strip()
    if stream.time.kind == "number":
        return int(text) if stream.t.dtype.kind == "i" else float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
