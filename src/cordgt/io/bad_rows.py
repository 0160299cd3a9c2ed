"""Leave out the rows of a table that cannot be read, and count them (``--skip-bad-rows``)."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import is_list, is_text, looks_like_number
from cordgt.events.ids import as_id_column
from cordgt.events.times import guess_time_kind
from cordgt.io.column_roles import ColumnRoles
from cordgt.io.open_table import COMMENT_NOTE
from cordgt.io.tables import ArrowTable, Table, TextTable
from cordgt.io.time_parser import TimeParser

SKIPPED_NOTE = "skipped (--skip-bad-rows): "
MAX_EXAMPLES = 5
_SMALL = 64  # rows that are converted one by one in the search for those that fail
T = TypeVar("T")


def is_skip_note(note: str) -> bool:
    """Whether a note says that lines or rows of the input were left out."""
    return COMMENT_NOTE in note or SKIPPED_NOTE in note


@dataclass(frozen=True)
class SkippedRows:
    """How many rows were left out, and the reasons for the first of them."""

    n_skipped: int = 0
    n_rows: int = 0  # with those that were left out
    examples: tuple[str, ...] = ()

    def __add__(self, other: SkippedRows) -> SkippedRows:
        examples = (*self.examples, *other.examples)[:MAX_EXAMPLES]
        return SkippedRows(self.n_skipped + other.n_skipped, self.n_rows + other.n_rows, examples)

    def notes(self) -> list[str]:
        """Return a note with the number of rows and the first reasons; none if no row was left out."""
        if not self.n_skipped:
            return []
        more = self.n_skipped - len(self.examples)
        rest = f"; and {more:,} more" if more else ""
        return [
            f"{self.n_skipped:,} bad {'row' if self.n_skipped == 1 else 'rows'} {SKIPPED_NOTE}"
            f"{'; '.join(self.examples)}{rest}"
        ]

    def check(self, name: str) -> None:
        """Raise DataError if more than half of the rows were left out."""
        if 2 * self.n_skipped > self.n_rows:
            raise DataError(
                f"{name}: {self.n_skipped:,} of {self.n_rows:,} rows are bad, which is more than half. The first: "
                f"{self.examples[0]}. Check the columns and the separator."
            )


def read_without_bad_rows(
    read: Callable[[Table], T], table: Table, roles: ColumnRoles, parser: TimeParser | None, time_format: str | None
) -> tuple[T | None, SkippedRows]:
    """Return ``read(table)``; if that raises DataError, the same without the bad rows, and these.

    ``parser``: of the times; None if it is to be inferred. The result is None if every row is bad.
    """
    try:
        return read(table), SkippedRows()
    except DataError:
        cleaned, skipped = drop_bad_rows(table, roles, parser, time_format)
        if not skipped.n_skipped:
            raise
    return None if skipped.n_skipped == skipped.n_rows else read(cleaned), skipped


def drop_bad_rows(
    table: Table, roles: ColumnRoles, parser: TimeParser | None, time_format: str | None
) -> tuple[Table, SkippedRows]:
    """Return the table without rows whose fields, ids, times or features cannot be read, and what was left out."""
    return _DROP[type(table)](table, roles, parser, time_format)


def plausible_times(table: Table, column: int) -> Any:
    """Return a column of times from its first plausible value on, without rows of the wrong width."""
    if isinstance(table, TextTable):
        values = pa.array([row[column] for _, _, row in _iter_rows(table) if len(row) == table.n_columns], pa.string())
    else:
        values = pc.drop_null(table.read_columns([column])[column])
    return _from_first_time(table.normalize_numbers(values))


# -------------------- kinds of tables


def _drop_text_rows(
    table: TextTable, roles: ColumnRoles, parser: TimeParser | None, time_format: str | None
) -> tuple[Table, SkippedRows]:
    spans: list[tuple[int, int]] = []
    rows: list[list[str] | None] = []
    reasons: dict[int, str] = {}
    for start, end, row in _iter_rows(table):
        reason = _check_fields(table, row, roles)
        if reason:
            reasons[len(spans)] = reason
        spans.append((start, end))
        rows.append(None if reason else row)
    good_rows = [k for k, row in enumerate(rows) if row is not None]

    def column(k: int) -> Any:
        return table.strip_column(pa.array([row[k] for row in rows if row is not None], pa.string()), k)

    for k, reason in _bad_values(table, roles, column, parser, time_format).items():
        reasons[good_rows[k]] = reason
    lines = table.body.split(b"\n")
    for k in reasons:
        start, end = spans[k]
        for line in range(start, end):
            lines[line - table.first_line] = b""
    examples = [f"line {spans[k][0]}: {reasons[k]}" for k in sorted(reasons)[:MAX_EXAMPLES]]
    return replace(table, body=b"\n".join(lines)), SkippedRows(len(reasons), len(spans), tuple(examples))


def _iter_rows(table: TextTable) -> Iterator[tuple[int, int, list[str]]]:
    try:
        yield from table.iter_row_spans()
    except csv.Error as error:
        raise DataError(f"{table.name} cannot be read as delimited text: {error}.") from None


def _check_fields(table: TextTable, row: list[str], roles: ColumnRoles) -> str:
    """Return what is wrong with the number of fields or with the features of a row; empty if nothing is."""
    if len(row) != table.n_columns:
        return f"found {len(row)} fields, expected {table.n_columns}"
    for k in roles.features:
        text = row[k].replace(",", ".") if table.decimal_comma else row[k]
        if not looks_like_number(text) or not math.isfinite(np.float32(text)):
            return f"the feature {row[k]!r} in {table.describe_column(k)} is not a finite number"
    return ""


def _drop_arrow_rows(
    table: ArrowTable, roles: ColumnRoles, parser: TimeParser | None, time_format: str | None
) -> tuple[Table, SkippedRows]:
    reasons = _bad_values(table, roles, table.get_column, parser, time_format)
    for k in roles.features:
        values = table.get_column(k)
        bad = pc.is_null(values, nan_is_null=not is_list(values.type))
        for row in np.flatnonzero(np.asarray(bad)).tolist():
            reasons.setdefault(row, f"the feature in {table.describe_column(k)} is missing")
    n_rows = len(table.get_column(roles.src))
    keep = np.ones(n_rows, np.bool_)
    keep[list(reasons)] = False
    mask = pa.array(keep)
    old_rows = np.arange(n_rows) if table.rows is None else table.rows
    cleaned = replace(table, get_column=lambda k: table.get_column(k).filter(mask), rows=old_rows[keep])
    examples = [f"row {table.row_number(k)} (counted from 0): {reasons[k]}" for k in sorted(reasons)[:MAX_EXAMPLES]]
    return cleaned, SkippedRows(len(reasons), n_rows, tuple(examples))


_DROP: dict[type[Table], Callable[..., tuple[Table, SkippedRows]]] = {
    TextTable: _drop_text_rows,
    ArrowTable: _drop_arrow_rows,
}


# -------------------- values


def _bad_values(
    table: Table,
    roles: ColumnRoles,
    column: Callable[[int], Any],
    parser: TimeParser | None,
    time_format: str | None,
) -> dict[int, str]:
    """Return the rows with a bad id or time, each with the reason."""
    reasons: dict[int, str] = {}
    assert roles.time is not None, "`assign_roles` requires a time column"
    times = table.normalize_numbers(column(roles.time))
    parser = parser or TimeParser.infer([_from_first_time(times)], time_format)
    if parser is not None:
        reasons |= _failing_rows(parser.parse_column, times)
    for k in (roles.dst, roles.src):
        reasons |= _failing_rows(as_id_column, column(k))
    return reasons


def _from_first_time(times: Any) -> Any:
    """Return the values from the first one on that looks like a time; all if none does."""
    if not is_text(times.type):
        return times
    first = next((k for k, text in enumerate(times.to_pylist()) if text and guess_time_kind(text)), 0)
    return times.slice(first)


def _failing_rows(convert: Callable[[Any], Any], column: Any) -> dict[int, str]:
    """Return the rows that ``convert`` refuses with RowError, each with the reason. Halves the column to find them."""
    reasons: dict[int, str] = {}
    parts = [(0, len(column))]
    while parts:
        start, stop = parts.pop()
        try:
            convert(column.slice(start, stop - start))
        except RowError as error:
            if stop - start == 1:
                reasons[start] = error.reason
            elif stop - start <= _SMALL:
                parts += [(k, k + 1) for k in range(start, stop)]
            else:
                middle = (start + stop) // 2
                parts += [(start, middle), (middle, stop)]
    return reasons
