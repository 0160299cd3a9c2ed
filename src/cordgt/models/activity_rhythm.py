"""Daily and weekly rhythm of a stream whose times have a unit, kept only where the likelihood shows it.

The profile of a period is the number of occasions in each hour against the time spent in it, shrunk towards 1. The
profile of a week is shrunk towards the product of a day's hours and a week's days, so that few events suffice. A rhythm
that is learned from the first three quarters of the training events is kept if it raises the log likelihood of the
last quarter. A test on the same events would not do: bursts make any profile look real. Hours are in UTC. Times that
are whole days show no hours: they have a weekly rhythm of seven days at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cordgt.events.stream import EventStream
from cordgt.history.activity import ActivityBank, Role
from cordgt.history.index import TemporalIndex
from cordgt.history.rhythm import Rhythm
from cordgt.models.activity_fit import choose_time_constants, fit_bank, period_likelihood, sample_times

HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0
MIN_PERIODS = 4  # in the training period
SAMPLE = 1 << 15  # events whose likelihood decides
_PRIOR_EVENTS = 20.0  # of an average hour; they shrink the profile
_MIN_GAIN = 10.0  # of the log likelihood, for a week instead of a day: weekdays that differ by chance gain up to 5
_MONDAY = 4 * DAY  # 1970-01-05, in seconds since 1970
_SECONDS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}


@dataclass(frozen=True)
class Calendar:
    """How the times of a stream relate to dates."""

    seconds_per_unit: float  # of elapsed times
    epoch: float  # seconds since 1970 of the stream's first event

    @classmethod
    def of_stream(cls, stream: EventStream) -> Calendar | None:
        """Return the calendar of a stream of dates or of times since 1970; None for other numbers."""
        if stream.time.kind == "date":
            return cls(1.0, float(stream.t[0]) / 1e6)
        unit = stream.epoch_unit
        return cls(_SECONDS[unit], float(stream.t[0]) * _SECONDS[unit]) if unit else None

    def phase(self, period: float) -> float:
        """Return the place of the first event in a period of the calendar, both in the stream's unit."""
        seconds = period * self.seconds_per_unit
        phase = (self.epoch - _MONDAY) % seconds / self.seconds_per_unit
        return phase if phase < period else 0.0


def fit_rhythm(
    index: TemporalIndex, stop: int, calendar: Calendar | None, *, role: Role = "source", seed: int = 0
) -> Rhythm | None:
    """Return the daily or weekly rhythm of the first ``stop`` events; None if there is none, or no calendar.

    ``index`` is on the CPU. A period is considered if the first three quarters of the events span at least four of it,
    and if the times are finer than the period.
    """
    if calendar is None:
        return None
    middle = int(index.tie_start[stop * 3 // 4])
    span = float(index.elapsed[max(middle - 1, 0)] - index.elapsed[0])
    periods = [p for p in (DAY, WEEK) if p / calendar.seconds_per_unit * MIN_PERIODS <= span]
    if not periods:
        return None
    bin_width = max(HOUR, time_step(sample_times(index, stop, role, max_sample=SAMPLE, seed=seed), calendar))
    periods = [p for p in periods if p > bin_width and p % bin_width == 0]
    if not periods:
        return None

    def learn(seconds: float, until: int) -> Rhythm | None:
        if not seconds:
            return None
        times = sample_times(index, until, role, max_sample=SAMPLE, seed=seed)
        end = float(index.elapsed[until - 1])

        def estimate(seconds: float, bin_width: float, prior: np.ndarray | float = 1.0) -> Rhythm:
            period = seconds / calendar.seconds_per_unit
            return estimate_profile(times, end, period, calendar.phase(period), round(seconds / bin_width), prior)

        if seconds != WEEK or bin_width >= DAY or DAY % bin_width:
            return estimate(seconds, bin_width)
        days, hours = estimate(WEEK, DAY), estimate(DAY, bin_width)
        return estimate(WEEK, bin_width, np.outer(days.profile, hours.profile).ravel())

    def score(seconds: float) -> float:
        bank = ActivityBank.build(index, taus, role, learn(seconds, middle))
        model = fit_bank(bank, middle, max_sample=SAMPLE, seed=seed).model
        found = period_likelihood(model, bank, middle, stop, max_sample=SAMPLE, seed=seed)
        return found.mean - (_MIN_GAIN / max(min(found.n, SAMPLE), 1.0) if seconds == WEEK and DAY in periods else 0.0)

    taus = choose_time_constants(index, middle)
    return learn(max([0.0, *periods], key=score), stop)


def time_step(times: np.ndarray, calendar: Calendar) -> float:
    """Return the seconds of which all distances between ``times`` are multiples: a day, if all are whole days."""
    seconds = np.rint((times - times[0]) * calendar.seconds_per_unit).astype(np.int64)
    return float(np.gcd.reduce(seconds))


def estimate_profile(
    times: np.ndarray, span: float, period: float, phase: float, n_bins: int, prior: np.ndarray | float = 1.0
) -> Rhythm:
    """Return the profile of event times between 0 and ``span``, shrunk towards ``prior``, (n_bins,) or a number."""
    width = period / n_bins
    starts = np.arange(n_bins) * width

    def time_in_bins(x: float) -> np.ndarray:
        whole = np.floor(x / period)
        return whole * width + (x - whole * period - starts).clip(0, width)

    exposure = time_in_bins(span + phase) - time_in_bins(phase)
    number = np.bincount((((times + phase) % period) / width).astype(np.int64).clip(0, n_bins - 1), minlength=n_bins)
    expected = exposure * (len(times) / max(exposure.sum(), 1e-300))
    profile = (number + _PRIOR_EVENTS * prior) / (expected + _PRIOR_EVENTS)
    return Rhythm(period, phase, tuple((profile / profile.mean()).tolist()))
