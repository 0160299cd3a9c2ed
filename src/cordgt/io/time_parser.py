"""Parse a column of times: numbers, ISO dates, or dates in a format that is given or inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import Floats, Ints, as_column, first_true, is_text
from cordgt.events.date_formats import infer_date_format, parse_dates
from cordgt.events.times import TimeAxis, guess_time_kind


@dataclass(frozen=True)
class TimeParser:
    """Parses the times of a file. ``format``: of dates that are not ISO text; None for numbers and ISO dates."""

    axis: TimeAxis
    format: str | None = None
    is_inferred: bool = False  # the format comes from the values

    @classmethod
    def infer(cls, columns: Iterable[Any], time_format: str | None = None) -> TimeParser | None:
        """Return the parser for a column that comes in parts; None if all of them are empty.

        Further parts are read only if the first does not show whether the day or the month comes first.
        AmbiguousDateError if none does.
        """
        if time_format is not None:
            return cls(TimeAxis("date"), time_format)
        parts = (column for column in columns if len(column))
        first = next(parts, None)
        if first is None:
            return None
        if not is_text(first.type):
            return cls(TimeAxis.infer(first))
        found = infer_date_format(chain([first], _only_text(parts)))
        return cls(TimeAxis.infer(first)) if found is None else cls(TimeAxis("date"), found, is_inferred=True)

    def parse_column(self, column: Any) -> Ints | Floats:
        """Parse a column. Result and errors as for ``TimeAxis.parse_column``."""
        if self.format is None:
            return self.axis.parse_column(column)
        column = as_column(column)
        if column.null_count:
            raise RowError(first_true(pc.is_null(column)), f"the time is missing; {self.format} was expected")
        if pa.types.is_integer(column.type):
            column = pc.cast(column, pa.string())
        if not is_text(column.type):
            raise DataError(f"--time-format applies to text, but this column is of type {column.type}; leave it out.")
        return parse_dates(pc.utf8_trim_whitespace(column), self.format)

    def notes(self) -> list[str]:
        """Return a note if the format was inferred."""
        return (
            [f"times are read in the format {self.format} (inferred; --time-format if not)"] if self.is_inferred else []
        )


def query_parser(axis: TimeAxis, column: Any, time_format: str | None) -> TimeParser:
    """Return the parser for the times of queries: ``time_format`` applies unless they are numbers or ISO dates."""
    first = column[0].as_py() if len(column) and is_text(column.type) else ""
    is_plain = axis.kind == "number" or not first or guess_time_kind(first) == "number" or _is_iso(first)
    return TimeParser(axis) if time_format is None or is_plain else TimeParser(axis, time_format)


def _is_iso(text: str) -> bool:
    try:
        TimeAxis("date").parse(text)
        return True
    except DataError:
        return False


def _only_text(columns: Iterable[Any]) -> Iterator[Any]:
    return (column for column in columns if is_text(column.type))
