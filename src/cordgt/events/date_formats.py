"""Dates that are not ISO text: a format given by the user, or day, month and year with the order inferred."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import Ints, first_failure, first_true, to_int64

# Directives that Arrow's regular expressions can read, with the number of digits. Python reads all others, slower.
_DIGITS = {
    "Y": r"\d{4}", "y": r"\d{2}", "m": r"\d{1,2}", "d": r"\d{1,2}", "H": r"\d{1,2}", "M": r"\d{1,2}",
    "S": r"\d{1,2}", "f": r"\d{1,6}",
}  # fmt: skip
EXAMPLE_FORMAT = '"%d/%m/%Y %H:%M"'
_CLOCK = r"(?:(?P<gap>[ T])\d{1,2}:\d{2}(?P<second>:\d{2}(?P<fraction>\.\d{1,6})?)?(?P<half> ?[AaPp][Mm])?)?"
_YEAR_LAST = re.compile(rf"\d{{1,2}}(?P<mark>[/.-])\d{{1,2}}(?P=mark)\d{{4}}{_CLOCK}")
_YEAR_FIRST = re.compile(rf"(?!\d{{4}}-\d\d-\d\d)\d{{4}}(?P<mark>[/.-])\d{{1,2}}(?P=mark)\d{{1,2}}{_CLOCK}")
_FIRST_PARTS = r"^\s*(?P<first>\d{1,2})[/.-](?P<second>\d{1,2})[/.-]\d{4}"


class AmbiguousDateError(DataError):
    """Nothing shows whether the day or the month comes first."""


def check_date_format(text: str) -> None:
    """Raise DataError if a date format is not valid or has no year."""
    moment = datetime(2001, 2, 3)
    try:
        year = datetime.strptime(moment.strftime(text), text).year
    except (ValueError, re.error) as error:
        raise DataError(
            f"--time-format {text!r} is not a date format: {error}. Write it like {EXAMPLE_FORMAT}."
        ) from None
    if year != moment.year:
        raise DataError(f"--time-format {text!r} has no year. Write it like {EXAMPLE_FORMAT}.")


def is_non_iso_date(text: str) -> bool:
    """Return whether a text is a date in numbers that is not ISO, such as 31/01/2024 or 2024/01/31 12:30."""
    return bool(_YEAR_LAST.fullmatch(text) or _YEAR_FIRST.fullmatch(text))


def infer_date_format(columns: Iterable[Any]) -> str | None:
    """Return the format of the dates in columns of text; None if the first value is not one of `is_non_iso_date`.

    A day above 12 shows whether the day or the month comes first. Columns are consumed only until one is found.
    AmbiguousDateError if there is none.
    """
    first = ""
    for column in columns:
        column = pc.utf8_trim_whitespace(column)
        if not first:
            if len(column) == 0:
                continue
            first = column[0].as_py() or ""
            year_first = _YEAR_FIRST.fullmatch(first)
            if year_first:
                mark = year_first["mark"]
                return f"%Y{mark}%m{mark}%d{_clock_format(year_first)}"
            if not _YEAR_LAST.fullmatch(first):
                return None
        parts = pc.extract_regex(column, _FIRST_PARTS)
        highest = [pc.max(pc.cast(pc.struct_field(parts, k), pa.int32())).as_py() or 0 for k in (0, 1)]
        if max(highest) > 12:
            return _year_last_format(first, day_first=highest[0] > 12)
    if not first:
        return None
    formats = [_year_last_format(first, day_first=k) for k in (True, False)]
    raise AmbiguousDateError(
        f"the dates, such as {first}, could have the day or the month first: no value is above 12. Give the format: "
        f'--time-format "{formats[0]}" or --time-format "{formats[1]}".'
    )


def _year_last_format(text: str, *, day_first: bool) -> str:
    match = _YEAR_LAST.fullmatch(text)
    assert match is not None
    mark = match["mark"]
    return f"{f'%d{mark}%m' if day_first else f'%m{mark}%d'}{mark}%Y{_clock_format(match)}"


def _clock_format(match: re.Match[str]) -> str:
    if match["gap"] is None:
        return ""
    second = "" if match["second"] is None else ":%S" if match["fraction"] is None else ":%S.%f"
    half = "" if match["half"] is None else " %p" if match["half"].startswith(" ") else "%p"
    return f"{match['gap']}{'%I' if half else '%H'}:%M{second}{half}"


def parse_dates(column: Any, text: str) -> Ints:
    """Parse text in a format to microseconds since 1970, in UTC. RowError at the first value in another format."""
    pattern = _as_pattern(text)
    return _parse_with_python(column, text) if pattern is None else _parse_with_arrow(column, text, pattern)


def _as_pattern(text: str) -> str | None:
    """Return a format as a regular expression; None if it has a directive that is not in `_DIGITS`, or one twice."""
    pattern, seen = "", set()
    for part in re.findall(r"%.|\s+|[^%\s]+", text):
        if part[0] == "%":
            if part[1] not in _DIGITS or part[1] in seen:
                return None
            seen.add(part[1])
            pattern += f"(?P<{part[1]}>{_DIGITS[part[1]]})"
        else:
            pattern += r"\s+" if part.isspace() else re.escape(part)
    return None if {"Y", "y"} <= seen or not {"Y", "y"} & seen else f"^{pattern}$"


def _parse_with_arrow(column: Any, text: str, pattern: str) -> Ints:
    parts = pc.extract_regex(column, pattern)
    if isinstance(parts, pa.ChunkedArray):
        parts = parts.combine_chunks()
    missing = first_true(pc.is_null(parts))
    if missing >= 0:
        raise _wrong_format(column, missing, text)
    names = [parts.type.field(k).name for k in range(parts.type.num_fields)]

    def part(name: str, default: str) -> Any:
        if name not in names:
            return default
        return pc.utf8_lpad(pc.struct_field(parts, names.index(name)), 2, "0")

    if "Y" in names:
        year = part("Y", "")
    else:
        short = part("y", "")
        year = pc.binary_join_element_wise(pc.if_else(pc.greater_equal(short, "69"), "19", "20"), short, "")
    fraction = pc.utf8_rpad(pc.struct_field(parts, names.index("f")), 6, "0") if "f" in names else "000000"
    date = pc.binary_join_element_wise(year, part("m", "01"), part("d", "01"), "-")
    clock = pc.binary_join_element_wise(part("H", "00"), part("M", "00"), part("S", "00"), ":")
    if not isinstance(clock, pa.Array):
        clock = pa.array([clock.as_py()] * len(date))
    iso = pc.binary_join_element_wise(pc.binary_join_element_wise(date, clock, "T"), fraction, ".")
    try:
        return to_int64(pc.cast(pc.cast(iso, pa.timestamp("us")), pa.int64()))
    except pa.ArrowInvalid:
        row = first_failure(lambda values: pc.cast(values, pa.timestamp("us")), iso)
    raise _wrong_format(column, row, text)


def _parse_with_python(column: Any, text: str) -> Ints:
    """Parse every distinct value once."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    micros = []
    for value in encoded.dictionary.to_pylist():
        try:
            moment = datetime.strptime(value, text)
        except ValueError:
            raise _wrong_format(column, first_true(pc.equal(column, value)), text) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        whole = moment.replace(microsecond=0)
        micros.append(round(whole.timestamp()) * 10**6 + moment.microsecond)
    return to_int64(pa.array(micros, pa.int64()).take(encoded.indices))


def _wrong_format(column: Any, row: int, text: str) -> RowError:
    value = column[row].as_py()[:100]
    if value == "":
        return RowError(row, f"the time is missing; a date in the format {text} was expected")
    return RowError(row, f"the time {value!r} is not a date in the format {text} (--time-format gives another)")
