"""Horizons: what may be written, in which unit it counts, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from cordgt.errors import SettingError
from cordgt.events.durations import format_duration, parse_horizon, time_after, unit_name
from cordgt.events.stream import EventStream

EPOCH = 1_700_000_000  # seconds


def stream(times: Any) -> EventStream:
    return EventStream.from_columns(["a", "b", "c"], ["b", "c", "a"], times)


DATES = stream(["2024-03-01", "2024-03-02", "2024-03-08"])
SECONDS = stream([EPOCH, EPOCH + 1, EPOCH + 10**6])
MILLISECONDS = stream([EPOCH * 1000, EPOCH * 1000 + 5, EPOCH * 1000 + 10**6])
NUMBERS = stream([0, 5, 5000])
FRACTIONS = stream([0.0, 0.5, 2.5])
ONE_TIME = stream([7, 7, 7])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("4w", 2_419_200), ("1.5h", 5400), (" .5d ", 43_200)],
)
def test_units(text: str, seconds: int) -> None:
    assert parse_horizon(text, DATES) == seconds
    assert parse_horizon(text, SECONDS) == seconds
    assert parse_horizon(text, MILLISECONDS) == seconds * 1000


@pytest.mark.parametrize("value", ["250", 250, 250.0, np.int64(250), "2.5e2"])
def test_a_bare_number_counts_in_the_unit_of_the_stream(value: Any) -> None:
    for some in (DATES, SECONDS, MILLISECONDS, NUMBERS, FRACTIONS, ONE_TIME):
        assert parse_horizon(value, some) == 250.0


def test_a_small_number() -> None:
    assert parse_horizon("1e-3", FRACTIONS) == 0.001


def test_durations_of_python_and_numpy() -> None:
    assert parse_horizon(timedelta(hours=2), DATES) == 7200
    assert parse_horizon(np.timedelta64(2, "m"), MILLISECONDS) == 120_000


@pytest.mark.parametrize("value", ["7d", timedelta(days=7)])
def test_numbers_without_a_unit_refuse_a_unit(value: Any) -> None:
    with pytest.raises(SettingError, match=r"without a known unit, from 0 to 5000\..* number .* such as 10\."):
        parse_horizon(value, NUMBERS)
    with pytest.raises(SettingError, match=r"from 7 to 7.* such as 1\."):
        parse_horizon(value, ONE_TIME)


@pytest.mark.parametrize("value", ["0", "0d", 0, "-7d", -3, "-1e3", timedelta(0), timedelta(-1)])
def test_a_horizon_is_longer_than_zero(value: Any) -> None:
    with pytest.raises(SettingError, match="longer than zero"):
        parse_horizon(value, DATES)


@pytest.mark.parametrize(
    "value",
    ["", "d", "7x", "7 days", "7D", "1d12h", "--7d", "nan", "inf", "0x10", "٧d", None, True, float("nan"), "1e999"],
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r"duration.* Write 90s, 15m, 12h, 7d, 4w"):
        parse_horizon(value, DATES)


def test_absurd_horizons_are_refused() -> None:
    assert parse_horizon("52000w", DATES) == 52_000 * 604_800
    for value, some, limit in (
        ("53000w", DATES, "1,000 years"),
        (1e15, SECONDS, "1,000 years"),
        ("1e300", NUMBERS, "9007199254740992"),
    ):
        with pytest.raises(SettingError, match=f"at most {limit}. Check its unit"):
            parse_horizon(value, some)


def test_text_for_people() -> None:
    assert format_duration(7 * 86_400, DATES) == "7 days"
    assert format_duration(86_400_000, MILLISECONDS) == "1 day"
    assert format_duration(5400, SECONDS) == "1.5 hours"
    assert format_duration(90, DATES) == "1.5 minutes"
    assert format_duration(0.25, DATES) == "0.25 seconds"
    assert format_duration(40_000 * 86_400, DATES) == "40,000 days"
    assert format_duration(5400, NUMBERS) == "5400"
    assert [unit_name(s) for s in (DATES, SECONDS, MILLISECONDS, NUMBERS)] == ["seconds", "seconds", "milliseconds", ""]


def test_time_after_is_the_inverse_of_elapsed() -> None:
    for some in (DATES, SECONDS, MILLISECONDS, NUMBERS, FRACTIONS):
        assert [time_after(some, x) for x in some.elapsed] == some.t.tolist()
    assert DATES.time.format_one(time_after(DATES, 86_400.5)) == "2024-03-02T00:00:00.500000Z"
    assert isinstance(time_after(NUMBERS, 2.6), int) and time_after(NUMBERS, 2.6) == 3
    assert time_after(FRACTIONS, 2.6) == 2.6
    assert time_after(NUMBERS, float("inf")) is None
    assert time_after(DATES, 1e12) is None
    assert time_after(NUMBERS, 1e30) is None
