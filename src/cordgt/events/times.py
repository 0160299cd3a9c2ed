"""Times: numbers in the user's own unit, or dates. `TimeAxis` infers, parses and formats them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
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
    is_text,
    looks_like_number,
    to_float64,
    to_int64,
)
from cordgt.events.date_formats import EXAMPLE_FORMAT, is_non_iso_date
from cordgt.events.time_precision import check_integers_kept

_ZONED = r"[T ]\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
MIN_DATE, MAX_DATE = -62_167_219_200_000_000, 253_402_300_799_999_999  # microseconds: years 0 to 9999, in UTC
_ISO = "an ISO date such as 2024-03-01 or 2024-03-01T12:30:00Z"


def tie_starts(
    t: npt.NDArray[Any], *, start: int = 0, first: int | None = None, dtype: npt.DTypeLike = np.int64
) -> npt.NDArray[Any]:
    """Return the (n,) position of the first event with the same time, for non-decreasing times ``t`` (n,).

    ``start``: position of ``t[0]`` in the stream. ``first``: position of the first event at ``t[0]``, if earlier.
    """
    positions = np.zeros(len(t), dtype)
    positions[:1] = start if first is None else first
    changes = np.flatnonzero(t[1:] != t[:-1]) + 1
    positions[changes] = changes + start
    return np.maximum.accumulate(positions, out=positions)


@dataclass(frozen=True)
class TimeAxis:
    """The kind of times: ``number`` (int64 or float64, in the user's unit) or ``date`` (int64 microseconds since 1970).

    Dates are UTC; so is a date without a time zone.
    """

    kind: Literal["number", "date"] = "number"

    @classmethod
    def infer(cls, column: Any) -> TimeAxis:
        """Return the axis of a column. For text the first value decides; a later value of another kind is an error."""
        column = as_column(column)
        if _is_temporal(column.type):
            return cls("date")
        if not is_text(column.type) or len(column) == 0 or column[0].as_py() is None:
            return cls("number")
        return cls("date") if guess_time_kind(column[0].as_py()) == "date" else cls("number")

    @property
    def expected_text(self) -> str:
        """The expected form of a value, for messages."""
        return "a number" if self.kind == "number" else _ISO

    def mismatch_text(self, value: object) -> str:
        """Say that a value, as the user wrote it, is of the other kind, for messages."""
        text = repr(value) if isinstance(value, str) else str(value)
        if self.kind == "number":
            return f"the time {text} is a date, but numbers are expected: the times of this stream are numbers"
        return f"the time {text} is a number, but {_ISO} is expected: the times of this stream are dates"

    def parse(self, value: Any) -> int | float:
        """Parse one time (text, number, date or datetime). DataError if it is not on this axis."""
        if isinstance(value, bool) or not isinstance(value, str | int | float | date | np.generic):
            raise DataError(f"{value!r} is not a time; {self.expected_text} was expected.")
        if value != value and isinstance(value, date):  # pandas.NaT, which Arrow cannot convert
            raise DataError(f"{value!r} is not a time; {self.expected_text} was expected.")
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        try:
            time: int | float = self.parse_column(pa.array([value]))[0].item()
        except RowError as error:
            raise DataError(f"{error.reason[0].upper()}{error.reason[1:]}.") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise DataError(f"{value!r} is not a time; {self.expected_text} was expected.") from None
        return time

    def parse_column(self, column: Any) -> Ints | Floats:
        """Parse a column of times.

        Returns:
            (E,) int64 for dates and if every number is an integer, otherwise float64. RowError at the first value
            that is missing, not finite, or not on this axis.
        """
        column = as_column(column)
        if column.null_count:
            raise RowError(first_true(pc.is_null(column)), f"the time is missing; {self.expected_text} was expected")
        if len(column) == 0:
            return np.zeros(0, np.int64)
        if is_text(column.type):
            column = pc.utf8_trim_whitespace(column)
            return _text_numbers(column) if self.kind == "number" else _in_range(_text_dates(column))
        is_date = _is_temporal(column.type)
        times = _in_range(_typed_dates(column)) if is_date else as_number_column(column)
        if is_date != (self.kind == "date"):
            raise RowError(
                0, self.mismatch_text(TimeAxis("date" if is_date else "number").format(times[:1])[0].as_py())
            )
        return times

    def elapsed(self, t: npt.ArrayLike, first: Any) -> Any:
        """Return float64 times since ``first``: seconds for dates, the user's unit for numbers."""
        elapsed = np.subtract(t, first).astype(np.float64)  # subtract first: float64 rounds large int64
        return elapsed / 1e6 if self.kind == "date" else elapsed

    def format(self, values: npt.ArrayLike) -> Any:
        """Return an Arrow array for people: numbers unchanged, dates as ISO text in UTC (2024-03-01T12:30:00Z)."""
        if self.kind == "number":
            return pa.array(np.asarray(values))
        stamps = pa.array(np.asarray(values, np.int64)).cast(pa.timestamp("us", "UTC"))
        text = pc.replace_substring(pc.cast(stamps, pa.string()), " ", "T")
        return pc.replace_substring(text, ".000000Z", "Z")

    def format_one(self, value: float) -> str:
        """Return one time as text."""
        return str(self.format([value])[0].as_py())


# -------------------- numbers that count from 1970

_EPOCH_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_EPOCH_FIRST, _EPOCH_LAST = 315_532_800, 4_102_444_800  # 1980-01-01 and 2100-01-01, in seconds since 1970


def epoch_unit(low: float, high: float) -> str:
    """Return the unit if times from ``low`` to ``high`` look like time since 1970, between 1980 and 2100; else empty.

    The ranges of the units do not overlap.
    """
    for unit, scale in _EPOCH_UNITS.items():
        if _EPOCH_FIRST * scale <= low and high < _EPOCH_LAST * scale:
            return unit
    return ""


def units_per_second(unit: str) -> int:
    """Return how many of a unit of `epoch_unit` make a second."""
    return _EPOCH_UNITS[unit]


def format_time(value: float, unit: str) -> str:
    """Return a time as text, with its date if it counts ``unit`` (of `epoch_unit`) since 1970; without, if empty.

    For example ``1396640000 (2014-04-04 19:33 UTC)``.
    """
    text = str(value)
    return f"{text} ({_epoch_date(value, unit):%Y-%m-%d %H:%M} UTC)" if unit else text


def epoch_day(value: float, unit: str) -> str:
    """Return the day, in UTC, of a time that counts ``unit`` since 1970."""
    return f"{_epoch_date(value, unit):%Y-%m-%d}"


def epoch_date_text(value: float | None, unit: str) -> str | None:
    """Return the ISO date, in UTC, of a time that counts ``unit`` since 1970; None without one, or after 9999."""
    if value is None or value >= MAX_DATE / 10**6 * _EPOCH_UNITS[unit]:
        return None
    return f"{_epoch_date(value, unit):%Y-%m-%dT%H:%M:%SZ}"


def describe_range(low: float, high: float) -> str:
    """Describe a range of times in words, with the dates if they count from 1970."""
    unit = epoch_unit(low, high)
    if not unit:
        return f"{low} to {high}"
    return f"{unit} since 1970, {epoch_day(low, unit)} to {epoch_day(high, unit)}"


def _epoch_date(value: float, unit: str) -> datetime:
    return datetime.fromtimestamp(int(value // _EPOCH_UNITS[unit]), UTC)


def is_calendar_number(value: int) -> bool:
    """Return whether an integer looks like a date written as 20240531."""
    return 19000101 <= value <= 21001231 and 1 <= value // 100 % 100 <= 12 and 1 <= value % 100 <= 31


# -------------------- parsing


def guess_time_kind(text: str) -> Literal["number", "date", ""]:
    """Return the kind of time that a text looks like, or an empty string. nan and inf look like numbers."""
    if looks_like_number(text):
        return "number"
    try:
        _text_dates(pa.array([text.strip()]))
        return "date"
    except DataError:
        return "date" if is_non_iso_date(text.strip()) else ""


def as_number_column(column: Any) -> Ints | Floats:
    """Convert an Arrow column of numbers without nulls to int64 if all values fit, otherwise to float64.

    RowError at the first value that is not finite; DataError for a column of another type.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        try:
            return to_int64(pc.cast(column, pa.int64()))
        except pa.ArrowInvalid:
            values = to_float64(pc.cast(column, pa.float64(), safe=False))
            check_integers_kept(column, values)
            return values
    if pa.types.is_decimal(kind):
        try:
            return to_int64(pc.cast(column, pa.int64()))
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
            return to_int64(whole)
    except pa.ArrowInvalid:
        pass
    try:
        values = _finite(pc.cast(column, pa.float64()), column)
        if pc.all(pc.match_substring_regex(column, r"^[+-]?\d+$")).as_py():
            check_integers_kept(column, values)
        return values
    except pa.ArrowInvalid:
        row = first_failure(lambda part: pc.cast(part, pa.float64()), column)
    value = column[row].as_py()
    if value == "":
        raise RowError(row, "the time is missing; a number was expected")
    if guess_time_kind(value) == "date":
        raise RowError(row, TimeAxis("number").mismatch_text(value))
    raise RowError(
        row, f"the time {value!r} is not a number{f', nor {_ISO}' if row == 0 else ''}"
    )  # row 0 decides the kind


def _finite(numbers: Any, column: Any) -> Floats:
    """Convert to float64. RowError at the first value that is not finite, quoted from ``column``."""
    values = to_float64(numbers)
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
        raise RowError(row, TimeAxis("date").mismatch_text(value))
    hint = f"; --time-format reads other formats, such as {EXAMPLE_FORMAT}" if is_non_iso_date(value) else ""
    raise RowError(row, f"the time {value!r} is not {_ISO}{hint}")


def _iso_dates(column: Any) -> Ints:
    """Parse ISO text, with or without zones, to microseconds. ArrowInvalid if a value is not a date."""
    try:
        return to_int64(pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64()))
    except pa.ArrowInvalid:
        pass
    column = pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1")
    column = pc.replace_substring_regex(column, r"\s*(z|UTC|GMT)$", "Z")
    column = pc.replace_substring_regex(column, r"(:\d{2}|\.\d+) +([+-]\d{2})", r"\1\2")
    zoned = pc.match_substring_regex(column, _ZONED)
    plain = pc.cast(pc.if_else(zoned, None, column), pa.timestamp("us"))
    shifted = pc.cast(pc.if_else(zoned, column, None), pa.timestamp("us", "UTC"))
    return to_int64(pc.coalesce(pc.cast(plain, pa.int64()), pc.cast(shifted, pa.int64())))


def _in_range(micros: Ints) -> Ints:
    """Return the dates. RowError at the first that a year of four digits cannot express."""
    outside = np.flatnonzero((micros < MIN_DATE) | (micros > MAX_DATE))
    if len(outside):
        raise RowError(int(outside[0]), "the date is out of range: the year must be between 0 and 9999")
    return micros


def _typed_dates(column: Any) -> Ints:
    if pa.types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("ms" if pa.types.is_date64(column.type) else "s"))
    zone = column.type.tz
    try:
        # Nanoseconds are truncated to microseconds, which keeps the order of events.
        stamps = pc.cast(column, pa.timestamp("us", zone), safe=column.type.unit != "ns")
    except pa.ArrowInvalid:
        row = first_failure(lambda part: pc.cast(part, pa.timestamp("us", zone)), column)
        raise RowError(row, "the date is out of range") from None
    return to_int64(pc.cast(stamps, pa.int64()))
