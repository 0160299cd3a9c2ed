"""TimeAxis: parse dates and numbers, reject bad rows, format."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordgt.errors import DataError, RowError
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis, epoch_unit, format_time, guess_time_kind, tie_starts
from cordgt.io.convert import convert_to_store
from cordgt.io.readers import read_events

SECOND = 1_000_000
NEW_YEAR = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2024-01-01", NEW_YEAR),
        ("2024-01-01T00:00", NEW_YEAR),
        ("2024-01-01 00:00:05", NEW_YEAR + 5 * SECOND),
        ("2024-01-01T00:00:05.25Z", NEW_YEAR + 5_250_000),
        ("2024-01-01T02:00:00+02:00", NEW_YEAR),
        ("2024-01-01 02:00:00.5+0200", NEW_YEAR + 500_000),
        ("2023-12-31T22:00:00 -02:00", NEW_YEAR),
        ("2024-01-01T00:00:00.123456789", NEW_YEAR + 123_456),
        ("2024-01-01 00:00:00 UTC", NEW_YEAR),
        ("1969-12-31T23:59:59Z", -SECOND),
        (" 2024-01-01 ", NEW_YEAR),
        (date(2024, 1, 1), NEW_YEAR),
        (datetime(2024, 1, 1), NEW_YEAR),
        (datetime(2024, 1, 1, tzinfo=UTC), NEW_YEAR),
        (np.datetime64("2024-01-01T00:00:00.000000001"), NEW_YEAR),
    ],
)
def test_dates_become_microseconds_in_utc(value: object, expected: int) -> None:
    assert TimeAxis("date").parse(value) == expected


@pytest.mark.parametrize("value", ["5", 5, 5.5, "abc", "", None, "2024-02-30", "2024-13-01", "01/02/2024", True, [1]])
def test_parse_rejects_what_is_not_a_date(value: object) -> None:
    with pytest.raises(DataError, match="ISO date"):
        TimeAxis("date").parse(value)


@pytest.mark.parametrize(
    ("value", "expected"), [("5", 5), (" 5 ", 5), ("-2.5", -2.5), ("1e3", 1000.0), (7, 7), (0.5, 0.5)]
)
def test_parse_numbers(value: object, expected: float) -> None:
    found = TimeAxis("number").parse(value)
    assert found == expected
    assert isinstance(found, int) == isinstance(expected, int)


@pytest.mark.parametrize(
    "value", ["2024-01-01", date(2024, 1, 1), "abc", "", None, "nan", float("inf"), "1e999", "0x10", True, (1,), {}]
)
def test_parse_rejects_what_is_not_a_number(value: object) -> None:
    with pytest.raises(DataError, match="number"):
        TimeAxis("number").parse(value)


@pytest.mark.parametrize(
    ("column", "row"),
    [
        (["1", "2", "x", "y"], 2),
        (["1", "2.5", "nan", "x"], 3),
        (["1", "2.5", "nan"], 2),
        (["2024-01-01", "2024-01-02T00:00Z", "3"], 2),
        (["2024-01-01"] * 7 + ["2024-02-30", "zzz"], 7),
        (["1", None], 1),
        ([1.0, 2.0, float("-inf")], 2),
    ],
)
def test_error_names_the_first_bad_row(column: list, row: int) -> None:
    for chunked in (False, True):
        values = pa.chunked_array([column[:1], column[1:]]) if chunked else pa.array(column)
        with pytest.raises(RowError) as caught:
            TimeAxis.infer(values).parse_column(values)
        assert caught.value.row == row


@given(st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), min_size=1, max_size=6))
def test_format_and_parse_round_trip(dates: list[datetime]) -> None:
    axis = TimeAxis("date")
    values = axis.parse_column(dates)
    text = axis.format(values)
    np.testing.assert_array_equal(axis.parse_column(text), values)
    assert axis.parse_column([k.isoformat() for k in dates]).tolist() == values.tolist()
    assert axis.format_one(NEW_YEAR) == "2024-01-01T00:00:00Z"


def test_parse_typed_columns() -> None:
    axis = TimeAxis("date")
    local = pa.array([datetime(2024, 1, 1, 5)], pa.timestamp("ms", "Asia/Tokyo"))
    assert axis.parse_column(pa.array([date(2024, 1, 1)])).tolist() == [NEW_YEAR]
    assert TimeAxis.infer(local) == axis
    assert axis.parse_column(local).tolist() == [local.cast(pa.int64())[0].as_py() * 1000]
    assert TimeAxis().parse_column(pa.array([1, 2], pa.uint8())).dtype == np.int64
    assert TimeAxis().parse_column(pa.array([1, 2], pa.float32())).dtype == np.float64
    with pytest.raises(DataError, match="cannot hold times"):
        TimeAxis().parse_column(pa.array([True]))
    with pytest.raises(DataError, match="cannot hold times"):
        TimeAxis.infer(pa.array([1], pa.duration("s"))).parse_column(pa.array([1], pa.duration("s")))


@pytest.mark.parametrize(
    ("text", "kind"), [("5", "number"), ("nan", "number"), ("2024-01-01", "date"), ("ts", ""), ("", ""), ("1_000", "")]
)
def test_guess_time_kind(text: str, kind: str) -> None:
    assert guess_time_kind(text) == kind


def test_parse_numpy_dates() -> None:
    axis = TimeAxis("date")
    assert axis.parse(np.datetime64("2024-03-01")) == axis.parse("2024-03-01")
    assert axis.parse(np.datetime64("2024-03-01T12:30:00", "ns")) == axis.parse("2024-03-01T12:30:00")
    with pytest.raises(DataError):
        axis.parse(np.datetime64("NaT"))


def test_tie_starts_continue_across_chunks() -> None:
    t = np.array([1, 1, 2, 5, 5, 5, 7])
    whole = [0, 0, 2, 3, 3, 3, 6]
    assert tie_starts(t).tolist() == whole
    assert tie_starts(t[4:], start=4, first=3).tolist() == whole[4:]
    assert tie_starts(t[3:], start=3).tolist() == whole[3:]
    assert tie_starts(t[:0], dtype=np.int32).dtype == np.int32 and tie_starts(t[:0]).size == 0


# -------------------- digits that are lost


@pytest.mark.parametrize(
    "values",
    [
        ["9223372036854775808", "9223372036854775809", "9223372036854775809"],
        np.array([2**63, 2**63 + 1, 2**63 + 1], np.uint64),
        [2**63, 2**63 + 1, 2**63 + 1],
    ],
)
def test_whole_numbers_that_would_become_ties_are_refused(values: object) -> None:
    with pytest.raises(DataError, match=r"2\^63 or more, and 1 different ones would become equal. Subtract"):
        EventStream.from_columns(["a"] * 3, ["b"] * 3, values)
    one_value = [str(2**63)] * 2
    assert EventStream.from_columns(["a"] * 2, ["b"] * 2, one_value).t.tolist() == [2.0**63] * 2


def test_nanoseconds_as_whole_numbers_are_exact() -> None:
    nanoseconds = [1_700_000_000_000_000_001, 1_700_000_000_000_000_002, 2**63 - 1]
    stream = EventStream.from_columns(["a"] * 3, ["b"] * 3, [str(k) for k in nanoseconds])
    assert stream.t.tolist() == nanoseconds
    assert stream.tie_start.tolist() == [0, 1, 2]
    assert stream.notes == ()


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (["1700000000.123456781", "1700000000.123456782", "1700000000.5"], "1 different times .* about 16 digits"),
        (["2024-01-01T00:00:00.1234561", "2024-01-01T00:00:00.1234562"], "1 different times .* microseconds"),
        (np.array([1, 2, 3, 1000], "datetime64[ns]"), "2 different times .* microseconds"),
        (["1.50000000000000000", "1.5"], None),
        (["2024-01-01T00:00:00.1234560", "2024-01-01T00:00:00.123456"], None),
        (["1", "2.5"], None),
    ],
)
def test_lost_digits_are_counted(tmp_path: Path, values: object, note: str | None) -> None:
    n = len(values)  # type: ignore[arg-type]
    streams = [EventStream.from_columns(["a"] * n, ["b"] * n, values)]
    pq.write_table(pa.table({"src": ["a"] * n, "dst": ["b"] * n, "time": pa.array(values)}), tmp_path / "e.parquet")
    streams.append(read_events(tmp_path / "e.parquet"))
    streams.append(convert_to_store(tmp_path / "e.parquet", tmp_path / "s.store").stream())
    for stream in streams:
        found = [k for k in stream.notes if "became equal" in k]
        assert len(found) == (note is not None)
        assert note is None or re.search(note, found[0])


# -------------------- time since 1970


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1396640000, "seconds", "1396640000 (2014-04-04 19:33 UTC)"),
        (1396640000.5, "seconds", "1396640000.5 (2014-04-04 19:33 UTC)"),
        (1396640000123, "milliseconds", "1396640000123 (2014-04-04 19:33 UTC)"),
        (1396640000123456789, "nanoseconds", "1396640000123456789 (2014-04-04 19:33 UTC)"),
        (17, "", "17"),
        (20240131, "", "20240131"),
    ],
)
def test_format_time(value: float, unit: str, text: str) -> None:
    assert epoch_unit(value, value) == unit
    assert format_time(value, unit) == text


def test_stream_times_are_shown_with_dates() -> None:
    stream = EventStream.from_columns(["a", "b"], ["b", "c"], [1396640000, 1396726400])
    assert stream.format_time(stream.t[0]) == "1396640000 (2014-04-04 19:33 UTC)"
    assert EventStream.from_columns(["a", "b"], ["b", "c"], [0, 1396726400]).format_time(5) == "5"
    dates = EventStream.from_columns(["a"], ["b"], ["2024-01-01"])
    assert dates.format_time(dates.t[0]) == "2024-01-01T00:00:00Z"


@pytest.mark.parametrize(("per_second", "start"), [(1, 1_700_000_000), (1000, 1_700_000_000_000)])
def test_a_query_may_give_a_date_where_numbers_count_from_1970(per_second: int, start: int) -> None:
    stream = EventStream.from_columns(["a", "b"], ["b", "a"], [start, start + 100 * per_second])
    expected = 1_700_438_400 * per_second
    for value in ("2023-11-20", "2023-11-20T00:00:00Z", date(2023, 11, 20), np.datetime64("2023-11-20")):
        assert stream.parse_time(value) == expected
    assert stream.parse_time(str(start)) == start
    plain = EventStream.from_columns(["a", "b"], ["b", "a"], [1, 2])
    with pytest.raises(DataError, match="numbers are expected"):
        plain.parse_time("2023-11-20")
