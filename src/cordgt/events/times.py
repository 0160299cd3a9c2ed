"""Times: numbers in the user's own unit, or dates; told apart, parsed, and written for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import (
    Floats,
    Ints,
    as_column,
    first_failure,
    first_true,
    float64,
    int64,
    is_text,
    looks_like_number,
)

_ZONED = r"[T ]\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
FIRST_DATE, LAST_DATE = -62_167_219_200_000_000, 253_402_300_799_999_999  # microseconds: years 0 to 9999, in UTC
_ISO = "an ISO date such as 2024-03-01 or 2024-03-01T12:30:00Z"


def tie_starts(
    t: npt.NDArray[Any], *, start: int = 0, first: int | None = None, dtype: npt.DTypeLike = np.int64
) -> npt.NDArray[Any]:
    """(n,) position of the first event with the same time, for times ``t`` (n,) that never decrease.

    ``start``: position of ``t[0]`` in the stream. ``first``: position of the first event at ``t[0]``, if earlier.
    """
    positions = np.zeros(len(t), dtype)
    positions[:1] = start if first is None else first
    changes = np.flatnonzero(t[1:] != t[:-1]) + 1
    positions[changes] = changes + start
    return np.maximum.accumulate(positions, out=positions)


@dataclass(frozen=True)
class TimeAxis:
    """What the times are: ``number`` (int64 or float64, in the user's unit) or ``date`` (int64 microseconds since
    1970, UTC; a date without a zone is UTC)."""

    kind: Literal["number", "date"] = "number"

    @classmethod
    def of(cls, column: Any) -> TimeAxis:
        """The axis a column stands on; for text the first value decides (a later one that does not fit is an error)."""
        column = as_column(column)
        if _is_temporal(column.type):
            return cls("date")
        if not is_text(column.type) or len(column) == 0 or column[0].as_py() is None:
            return cls("number")
        return cls("date") if looks_like_time(column[0].as_py()) == "date" else cls("number")

    @property
    def expected(self) -> str:
        """What a value on this axis looks like, for messages."""
        return "a number" if self.kind == "number" else _ISO

    def wrong_axis(self, value: object) -> str:
        """That a value, as the user wrote it, stands on the other axis: for messages."""
        shown = repr(value) if isinstance(value, str) else str(value)
        if self.kind == "number":
            return f"the time {shown} is a date, but numbers are expected here: the times of this stream are numbers"
        return f"the time {shown} is a number, but {_ISO} is expected here: the times of this stream are dates"

    def parse(self, value: Any) -> int | float:
        """One time (text, number, date or datetime) on this axis. DataError where it does not stand on it."""
        if isinstance(value, bool) or not isinstance(value, str | int | float | date | np.generic):
            raise DataError(f"{value!r} is not a time; {self.expected} was expected.")
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        try:
            found: int | float = self.parse_column(pa.array([value]))[0].item()
        except RowError as error:
            raise DataError(f"{error.what[0].upper()}{error.what[1:]}.") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise DataError(f"{value!r} is not a time; {self.expected} was expected.") from None
        return found

    def parse_column(self, column: Any) -> Ints | Floats:
        """A whole column of times on this axis.

        Returns:
            (E,) int64 for dates and where every number is an integer, float64 otherwise. RowError at the first value
            that is missing, not finite, or not on this axis (a date where numbers are expected, or the reverse).
        """
        column = as_column(column)
        if column.null_count:
            raise RowError(first_true(pc.is_null(column)), f"the time is missing; {self.expected} was expected")
        if len(column) == 0:
            return np.zeros(0, np.int64)
        if is_text(column.type):
            column = pc.utf8_trim_whitespace(column)
            return _text_numbers(column) if self.kind == "number" else _in_range(_text_dates(column))
        temporal = _is_temporal(column.type)
        found = _in_range(_typed_dates(column)) if temporal else number_column(column)
        if temporal != (self.kind == "date"):
            raise RowError(0, self.wrong_axis(TimeAxis("date" if temporal else "number").format(found[:1])[0].as_py()))
        return found

    def format(self, values: npt.ArrayLike) -> Any:
        """Times for people, as an Arrow array: numbers as they are, dates as ISO text in UTC (2024-03-01T12:30:00Z)."""
        if self.kind == "number":
            return pa.array(np.asarray(values))
        stamps = pa.array(np.asarray(values, np.int64)).cast(pa.timestamp("us", "UTC"))
        text = pc.replace_substring(pc.cast(stamps, pa.string()), " ", "T")
        return pc.replace_substring(text, ".000000Z", "Z")

    def format_one(self, value: float) -> str:
        """One time as text."""
        return str(self.format([value])[0].as_py())


def looks_like_time(text: str) -> Literal["number", "date", ""]:
    """Which axis a piece of text would stand on; nan and inf look like numbers. Empty: neither."""
    if looks_like_number(text):
        return "number"
    try:
        _text_dates(pa.array([text.strip()]))
        return "date"
    except DataError:
        return ""


def number_column(column: Any) -> Ints | Floats:
    """A typed column of numbers without nulls: int64 where integers fit, else float64.

    RowError at the first value that is not finite; DataError for a column of another type.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        try:
            return int64(pc.cast(column, pa.int64()))
        except pa.ArrowInvalid:
            return float64(pc.cast(column, pa.float64(), safe=False))
    if pa.types.is_decimal(kind):
        try:
            return int64(pc.cast(column, pa.int64()))
        except pa.ArrowInvalid:
            return _finite(pc.cast(column, pa.float64()), column)
    if pa.types.is_floating(kind):
        return _finite(pc.cast(column, pa.float64()), column)
    raise DataError(f"A column of type {kind} cannot hold times; numbers, dates or ISO text can.")


def _is_temporal(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _text_numbers(column: Any) -> Ints | Floats:
    try:
        whole = pc.cast(column, pa.int64())
        if not pc.any(pc.match_substring_regex(column, "[xX]")).as_py():  # Arrow reads 0x1F as 31
            return int64(whole)
    except pa.ArrowInvalid:
        pass
    try:
        return _finite(pc.cast(column, pa.float64()), column)
    except pa.ArrowInvalid:
        row = first_failure(lambda part: pc.cast(part, pa.float64()), column)
    value = column[row].as_py()
    if value == "":
        raise RowError(row, "the time is missing; a number was expected")
    if looks_like_time(value) == "date":
        raise RowError(row, TimeAxis("number").wrong_axis(value))
    # the first one tells whether times are numbers or dates
    raise RowError(row, f"the time {value!r} is not a number{f', nor {_ISO}' if row == 0 else ''}")


def _finite(numbers: Any, column: Any) -> Floats:
    """Numbers as float64. RowError at the first that is not finite, as it is written in ``column``."""
    values = float64(numbers)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise RowError(int(bad[0]), f"the time {column[int(bad[0])].as_py()!r} is not a finite number")
    return values


def _text_dates(column: Any) -> Ints:
    try:
        return _iso_dates(column)
    except pa.ArrowInvalid:
        row = first_failure(_iso_dates, column)
    value = column[row].as_py()
    if value == "":
        raise RowError(row, f"the time is missing; {_ISO} was expected")
    if looks_like_number(value):
        raise RowError(row, TimeAxis("date").wrong_axis(value))
    raise RowError(row, f"the time {value!r} is not {_ISO}")


def _iso_dates(column: Any) -> Ints:
    """ISO text as microseconds, with and without zones side by side. ArrowInvalid where a value is not a date."""
    try:
        return int64(pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64()))
    except pa.ArrowInvalid:
        pass
    column = pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1")
    column = pc.replace_substring_regex(column, r"\s*(z|UTC|GMT)$", "Z")
    column = pc.replace_substring_regex(column, r"(:\d{2}|\.\d+) +([+-]\d{2})", r"\1\2")
    zoned = pc.match_substring_regex(column, _ZONED)
    plain = pc.cast(pc.if_else(zoned, None, column), pa.timestamp("us"))
    shifted = pc.cast(pc.if_else(zoned, column, None), pa.timestamp("us", "UTC"))
    return int64(pc.coalesce(pc.cast(plain, pa.int64()), pc.cast(shifted, pa.int64())))


def _in_range(micros: Ints) -> Ints:
    """The dates as they are. RowError at the first that cannot be written with a year of four digits."""
    outside = np.flatnonzero((micros < FIRST_DATE) | (micros > LAST_DATE))
    if len(outside):
        raise RowError(int(outside[0]), "the date is out of range: years 0 to 9999 can be read")
    return micros


def _typed_dates(column: Any) -> Ints:
    if pa.types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("ms" if pa.types.is_date64(column.type) else "s"))
    zone = column.type.tz
    try:
        # Finer than a microsecond is cut off; the order of events is kept.
        stamps = pc.cast(column, pa.timestamp("us", zone), safe=column.type.unit != "ns")
    except pa.ArrowInvalid:
        row = first_failure(lambda part: pc.cast(part, pa.timestamp("us", zone)), column)
        raise RowError(row, "the date is out of range") from None
    return int64(pc.cast(stamps, pa.int64()))
