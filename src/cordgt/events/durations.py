"""Durations: a horizon such as ``7d``, or a number in the stream's own unit, as time of `EventStream.elapsed`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

import numpy as np

from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.events.times import MAX_DATE, units_per_second

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # of each unit that a duration may have
EXAMPLES = "90s, 15m, 12h, 7d, 4w, or a number in the stream's own unit"
MAX_SECONDS = 1000 * 365.25 * 86_400  # a horizon beyond 1,000 years is a mistake
MAX_NUMBER = 2.0**53  # of a stream without a unit
_NAMES = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_PATTERN = re.compile(r"(\d+\.?\d*|\.\d+)(?:e([+-]?\d+))?([a-z]*)", re.ASCII)


def parse_horizon(value: Any, stream: EventStream) -> float:
    """Return a horizon as time on the axis of ``stream.elapsed``: seconds for dates, the file's unit for numbers.

    ``value`` is text such as ``7d``, a number in the stream's own unit, or a timedelta. The unit of dates is the
    second. SettingError if it is no duration, not above zero, or too long, or if the stream's times have no unit.
    """
    number, unit = _split(value)
    per_second = time_units_per_second(stream)
    if unit and per_second is None:
        raise SettingError(
            f"{_quote(value)}: the times of this stream are numbers without a known unit, from {stream.t[0]} to "
            f"{stream.t[-1]}. Give the horizon as a number in the unit of these times, such as {_example(stream)}."
        )
    horizon = number * SECONDS[unit] * per_second if unit and per_second is not None else number
    if not horizon > 0:
        raise SettingError(f"{_quote(value)}: a horizon must be longer than zero, such as {EXAMPLES}.")
    longest = MAX_NUMBER if per_second is None else MAX_SECONDS * per_second
    if horizon > longest:
        limit = f"{longest:.0f}" if per_second is None else "1,000 years"
        raise SettingError(f"{_quote(value)}: a horizon can be at most {limit}. Check its unit.")
    return horizon


def time_units_per_second(stream: EventStream) -> float | None:
    """Return how many units of ``stream.elapsed`` a second has; None if the unit of the times is not known."""
    if stream.time.kind == "date":
        return 1.0
    return units_per_second(stream.epoch_unit) if stream.epoch_unit else None


def unit_name(stream: EventStream) -> str:
    """Return the unit of ``stream.elapsed`` for messages: ``seconds``, ``milliseconds``, …; empty if not known."""
    return "seconds" if stream.time.kind == "date" else stream.epoch_unit


def time_per_rate(stream: EventStream) -> float:
    """Return the time, on the axis of ``stream.elapsed``, that rates are shown for: a day, or 1 without a unit."""
    per_second = time_units_per_second(stream)
    return 1.0 if per_second is None else SECONDS["d"] * per_second


def format_duration(elapsed: float, stream: EventStream) -> str:
    """Return a duration on the axis of ``stream.elapsed`` for people: ``7 days``, ``1.5 hours``, ``250``."""
    per_second = time_units_per_second(stream)
    if per_second is None:
        return f"{elapsed:.6g}"
    seconds = elapsed / per_second
    unit = next((unit for unit in _NAMES if seconds >= SECONDS[unit]), "s")
    text = f"{seconds / SECONDS[unit]:.3g}" if seconds < 1000 * SECONDS[unit] else f"{seconds / SECONDS[unit]:,.0f}"
    return f"{text} {_NAMES[unit]}{'' if text == '1' else 's'}"


def time_after(stream: EventStream, elapsed: float) -> int | float | None:
    """Return the time on the stream's axis at ``elapsed`` since its first event. The inverse of `elapsed_at`.

    Whole numbers stay whole if all times of the stream are. None if it is infinite or after the year 9999.
    """
    if not math.isfinite(elapsed):
        return None
    first = stream.t[0].item()
    if stream.time.kind == "date":
        time = first + round(elapsed * 1e6)
        return time if time <= MAX_DATE else None
    if stream.t.dtype.kind == "f":
        return float(first + elapsed)
    time = first + round(elapsed)
    return time if time < 2**63 else None


def _split(value: Any) -> tuple[float, str]:
    """Return the number and the unit of a duration; the unit is empty for a bare number."""
    if isinstance(value, timedelta | np.timedelta64):
        seconds = value.total_seconds() if isinstance(value, timedelta) else value / np.timedelta64(1, "s")
        return float(seconds), "s"
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number, unit = float(value), ""
    else:
        text = str(value).strip() if isinstance(value, str) else ""
        match = _PATTERN.fullmatch(text.removeprefix("-"))
        if match is None or match[3] not in ("", *SECONDS):
            raise SettingError(f"{_quote(value)} is not a duration. Write {EXAMPLES}.")
        number, unit = float(f"{match[1]}e{match[2] or 0}"), match[3]
        number = -number if text.startswith("-") else number
    if not math.isfinite(number):
        raise SettingError(f"{_quote(value)} is not a finite duration. Write {EXAMPLES}.")
    return number, unit


def _quote(value: Any) -> str:
    return f"The horizon {str(value)[:60]!r}"


def _example(stream: EventStream) -> str:
    """Return a round number near a hundredth of the stream's span, as an example of a horizon."""
    span = float(stream.elapsed[-1])
    return f"{10.0 ** math.floor(math.log10(span / 100)):.15g}" if span > 0 else "1"
