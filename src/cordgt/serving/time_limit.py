"""TimeLimit: how far in the future an event may be. One event of the year 9999 would make all later ones late."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cordgt.errors import SettingError
from cordgt.events.durations import format_duration, parse_horizon, time_units_per_second
from cordgt.events.stream import EventStream

DEFAULT_AHEAD = "1d"  # after the clock, for dates and times since 1970
DEFAULT_SPANS = 100  # for other numbers: after the last event, as a multiple of the span of the first history
MICROSECONDS = 1_000_000  # dates are microseconds since 1970


@dataclass(frozen=True)
class TimeLimit:
    """The latest time that an event may have. Times are on the stream's axis."""

    ahead: float
    text: str  # ``ahead`` for people
    per_second: float | None  # units of the axis in a second; None: the axis has no clock
    clock: Callable[[], float] = time.time

    @classmethod
    def of_stream(cls, stream: EventStream, ahead: str = "") -> TimeLimit:
        """Return the limit of a stream that grows. ``ahead``: a length of time such as 1d; empty: the default.

        SettingError if the text is no length of time of this stream.
        """
        per_second, scale = time_units_per_second(stream), 1.0
        if stream.time.kind == "date":
            per_second = scale = float(MICROSECONDS)
        if not ahead and per_second is None:
            elapsed = DEFAULT_SPANS * float(stream.elapsed[-1]) or math.inf
        else:
            try:
                elapsed = parse_horizon(ahead or DEFAULT_AHEAD, stream)
            except SettingError as error:
                raise SettingError(f"--max-ahead {ahead}: {error}") from None
        return cls(elapsed * scale, format_duration(elapsed, stream), per_second)

    def latest(self, last_time: int | float) -> float:
        """Return the latest time that an event after ``last_time`` may have."""
        now = -math.inf if self.per_second is None else self.clock() * self.per_second
        return max(float(last_time), now) + self.ahead
