"""The closed forms of a node's rate against numerical integration and simulation, and the fit against known truths."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import CordgtError
from cordgt.events.stream import EventStream
from cordgt.history.activity import ROLES, ActivityBank, DecayedCounts
from cordgt.history.index import TemporalIndex
from cordgt.history.rhythm import Rhythm
from cordgt.models import activity_fit
from cordgt.models.activity import UNITS, RateModel
from cordgt.models.activity_fit import choose_time_constants, fit_bank, fit_rate, period_likelihood
from cordgt.models.activity_rhythm import DAY, HOUR, WEEK, Calendar, estimate_profile, fit_rhythm

from .helpers import TEN, build
from .strategies import Stream, streams

RHYTHM = Rhythm(5.0, 1.25, (0.5, 2.0, 0.25, 1.25))
MODEL = RateModel(
    role="either",
    unit="events",
    time_constants=(0.5, 4.0, 60.0),
    excitation=(0.3, 0.2, 0.4),
    renewal=(0.0, 0.1, 0.6),
    base_rate=0.02,
    known_rate=0.07,
    newcomer_rate=0.01,
    arrival_rate=0.5,
)
every_rhythm = pytest.mark.parametrize("rhythm", [None, RHYTHM], ids=["plain", "rhythm"])


def lookup(place: Any, model: RateModel, node: Any, cut: int, t: Any) -> DecayedCounts:
    index = build(TEN)
    bank = ActivityBank.build(index, model.time_constants, model.role, model.rhythm).with_index(place.index(index))
    return bank.lookup(place.ints(node), place.ints(cut), place.floats(t))


def integrate(values: np.ndarray, step: float) -> float:
    """The integral of values on a regular grid."""
    return float(np.trapezoid(values, dx=step))


@every_rhythm
@pytest.mark.parametrize("node", [0, 1, 4, 5, 40])  # 4 and 5 have no event before the cut, 40 is new
def test_hazard_is_the_integral_of_the_rate(place: Any, node: int, rhythm: Rhythm | None) -> None:
    model, cut, t, h = replace(MODEL, rhythm=rhythm), 7, 5.25, 9.0
    now = lookup(place, model, node, cut, t)
    grid = np.linspace(t, t + h, 20_001)
    rates = model.rate(lookup(place, model, node, cut, grid)).cpu().numpy()
    hazard = integrate(rates, h / 20_000)
    horizon = place.floats(h)
    assert model.cumulative_hazard(now, horizon).item() == pytest.approx(hazard, rel=2e-3 if rhythm else 1e-6)
    assert model.survival(now, horizon).item() == pytest.approx(math.exp(-hazard), rel=2e-3 if rhythm else 1e-6)
    density = model.log_density(now, horizon).item()
    assert density == pytest.approx(math.log(rates[-1]) - hazard, rel=2e-3 if rhythm else 1e-6)
    probability = place.floats([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999])
    quantile = model.quantile(now, probability)
    assert torch.allclose(1 - model.survival(now, quantile), probability, rtol=1e-7, atol=1e-14)
    assert model.survival(now, place.floats(0.0)).item() == 1


@every_rhythm
def test_rate_with_newcomers(place: Any, rhythm: Rhythm | None) -> None:
    """Only nodes without any event before the cut differ: all of them share the rate at which newcomers arrive."""
    model, cut = replace(MODEL, rhythm=rhythm), 4
    for t in (4.0, 5.25):
        counts = lookup(place, model, [0, 1, 2, 3, 4, 5, 40, -1], cut, t)
        is_new = [node not in TEN.src[:cut] + TEN.dst[:cut] for node in (0, 1, 2, 3, 4, 5, 40, -1)]
        usual, rates = model.rate(counts).tolist(), model.rate_with_newcomers(counts).tolist()
        factor = 1.0 if rhythm is None else rhythm.relative_rate(place.floats([t])).item()
        expected = [model.arrival_rate * factor if new else rate for new, rate in zip(is_new, usual, strict=True)]
        assert rates == pytest.approx(expected, rel=1e-12)


def slow_expected_count(model: RateModel, counts: DecayedCounts, i: int, h: float, steps: int = 600) -> float:
    """Runge-Kutta for the expected sums, the probability of not having arrived, and the expected number."""
    taus, a = (np.array(x) for x in (model.time_constants, model.excitation))
    k = len(taus)
    own = model.known_rate if counts.degree[i] > 0 else model.newcomer_rate

    def slope(state: np.ndarray) -> np.ndarray:
        sums, waiting = state[:k], state[k]
        rate = model.base_rate * (1 - waiting) + own * waiting + a @ (sums / taus)
        return np.concatenate([-sums / taus + model.events_per_unit * rate, [-own * waiting], [rate]])

    state = np.concatenate([counts.sums[i].cpu().numpy(), [0.0 if counts.count[i] > 0 else 1.0], [0.0]])
    dt = h / steps
    for _ in range(steps):
        s1 = slope(state)
        s2 = slope(state + dt / 2 * s1)
        s3 = slope(state + dt / 2 * s2)
        state = state + dt / 6 * (s1 + 2 * s2 + 2 * s3 + slope(state + dt * s3))
    return float(state[-1])


@pytest.mark.parametrize("h", [1e-3, 0.7, 30.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"events_per_unit": 1.4},
        {"excitation": (1.2, 0.3, 2.0)},
        {"excitation": (0.0, 0.0, 0.0)},
        {"excitation": (0.0, 0.0, 0.0), "known_rate": 0.25},
    ],
    ids=["stable", "occasions", "explosive", "poisson", "rate equals 1 / tau"],
)
def test_expected_count_solves_its_equation(place: Any, changes: dict[str, Any], h: float) -> None:
    model = replace(MODEL, role="source", renewal=(0.0, 0.0, 0.0), **changes)
    nodes = [0, 1, 2, 4, 40]  # node 4 was never a source, 40 is new
    counts = lookup(place, model, nodes, 7, 5.25)
    got = model.expected_count(counts, place.floats(h)).tolist()
    assert got == pytest.approx([slow_expected_count(model, counts, i, h) for i in range(len(nodes))], rel=1e-5)


def test_expected_count_of_a_long_horizon_is_finite(place: Any) -> None:
    model = replace(MODEL, excitation=(0.9, 0.9, 3.0))
    counts = lookup(place, model, [0, 5, 40], 7, 5.25)
    assert torch.isfinite(model.expected_count(counts, place.floats(1e12))).all()


def simulate(model: RateModel, start: float, stop: float, draw: random.Random) -> list[float]:
    """Event times of one node after its first event at ``start``, by thinning: the rate only falls between events."""
    taus, sums, times = model.time_constants, [1.0] * len(model.time_constants), [start]
    now = start

    def rate(at: float) -> float:
        last = [math.exp(-(at - times[-1]) / tau) for tau in taus]
        terms = zip(model.excitation, sums, model.renewal, last, taus, strict=True)
        return model.base_rate + sum((a * s + r * f) / tau for a, s, r, f, tau in terms)

    while True:
        bound = rate(now)
        wait = draw.expovariate(bound)
        now += wait
        if now > stop:
            return times
        sums = [s * math.exp(-wait / tau) for s, tau in zip(sums, taus, strict=True)]
        if draw.random() * bound < rate(now):
            times.append(now)
            sums = [s + 1 for s in sums]


def simulated_index(model: RateModel, n_nodes: int, span: float, seed: int) -> TemporalIndex:
    """Nodes that arrive uniformly in the first half of the span; every event goes to one more node."""
    draw = random.Random(seed)
    events = sorted((t, u) for u in range(n_nodes) for t in simulate(model, draw.uniform(0, span / 2), span, draw))
    t, src = np.array([t for t, _ in events]), np.array([u for _, u in events])
    return TemporalIndex.build(src, np.full(len(src), n_nodes), t - t[0], n_nodes + 1)


TRUTH = replace(MODEL, role="source", excitation=(0.4, 0.0, 0.3), renewal=(0.0, 0.0, 1.5), base_rate=0.01)


@pytest.fixture(scope="module")
def simulated() -> TemporalIndex:
    return simulated_index(TRUTH, 150, 300.0, seed=3)


@pytest.mark.parametrize("h", [2.0, 60.0])
@pytest.mark.parametrize("renewal", [(0.0, 0.0, 0.0), (0.0, 0.0, 1.5), (0.0, 0.8, 0.0)], ids=["none", "long", "short"])
def test_expected_count_and_survival_agree_with_simulation(renewal: tuple[float, ...], h: float) -> None:
    """The expected number is exact without renewal; with it, close for short horizons and too small for long ones."""
    model = replace(TRUTH, renewal=renewal)
    draw, n = random.Random(1), 3000
    runs = [simulate(model, 0.0, h, draw) for _ in range(n)]
    numbers = np.array([len(times) - 1 for times in runs])
    index = TemporalIndex.build(np.array([0]), np.array([1]), np.array([0.0]), 2)
    bank = ActivityBank.build(index, model.time_constants, "source")
    now = bank.lookup(torch.tensor(0), torch.tensor(1), torch.tensor(0.0, dtype=torch.float64))
    horizon = torch.tensor(h, dtype=torch.float64)
    error = 4 * numbers.std() / math.sqrt(n)
    low = numbers.mean() * (1.0 if not any(renewal) else 0.9 if h == 2.0 else 0.6)
    expected = model.expected_count(now, horizon).item()
    assert low - error < expected < numbers.mean() + error
    assert abs(model.survival(now, horizon).item() - (numbers == 0).mean()) < 4 * math.sqrt(0.25 / n)
    median = model.quantile(now, torch.tensor(0.5)).item()
    if median < h:
        waits = np.array([times[1] if len(times) > 1 else math.inf for times in runs])
        assert (waits < median).mean() == pytest.approx(0.5, abs=0.04)


def test_fit_recovers_the_parameters(simulated: TemporalIndex) -> None:
    bank = ActivityBank.build(simulated, TRUTH.time_constants, "source")
    fit = fit_bank(bank, len(simulated.elapsed))
    got = fit.model
    assert fit.n_events == fit.n_sampled == len(simulated.elapsed) and fit.n_seen == fit.n_events - 150
    assert got.excitation == pytest.approx(TRUTH.excitation, abs=0.06)
    assert got.base_rate == pytest.approx(TRUTH.base_rate, abs=0.006)
    assert sum(got.renewal) == pytest.approx(1.5, abs=0.4)
    truth = period_likelihood(TRUTH, bank, 0, len(simulated.elapsed))
    assert fit.log_likelihood[-1] / fit.n_seen == pytest.approx(truth.mean, abs=0.01)
    assert fit.log_likelihood[-1] >= truth.log_rates - truth.compensator - 1e-3 * truth.n
    own = period_likelihood(got, bank, 0, len(simulated.elapsed))
    assert fit.log_likelihood[-1] == pytest.approx(own.log_rates - own.compensator, rel=1e-9)
    assert own.compensator == pytest.approx(own.n, rel=1e-3)  # at the maximum they are equal


@settings(max_examples=25)
@given(stream=streams(min_events=2), role=st.sampled_from(ROLES), unit=st.sampled_from(UNITS))
def test_no_iteration_lowers_the_likelihood(stream: Stream, role: Any, unit: Any) -> None:
    trace = np.array(fit_rate(build(stream), stream.n_events, role=role, unit=unit).log_likelihood)
    assert (np.diff(trace) >= -1e-9 * np.abs(trace[1:]).max(initial=1)).all()


def test_growth_is_limited() -> None:
    """Nodes whose events double in each unit of time. The expected rate grows at most by e in the period."""
    times = [math.log2(k + 1) for k in range(400)]
    index = TemporalIndex.build(np.zeros(400, np.int64), np.ones(400, np.int64), np.array(times), 2)
    fit = fit_rate(index, 400)
    taus, span = np.array(fit.model.time_constants), times[-1]
    assert fit.is_capped and (np.array(fit.model.excitation) / (1 + taus / span)).sum() == pytest.approx(1, abs=1e-6)
    assert (np.diff(fit.log_likelihood) >= -1e-6).all()
    counts = ActivityBank.build(index, fit.model.time_constants, "source").lookup(
        torch.tensor(0), torch.tensor(400), torch.tensor(span, dtype=torch.float64)
    )
    more = fit.model.expected_count(counts, torch.tensor([span, 2 * span], dtype=torch.float64))
    assert more[1] < 8 * more[0]


@settings(max_examples=25)
@given(stream=streams(min_events=2), role=st.sampled_from(ROLES), unit=st.sampled_from(UNITS), data=st.data())
@every_rhythm
def test_compensator_is_the_integral_of_all_rates(
    rhythm: Rhythm | None, stream: Stream, role: Any, unit: Any, data: st.DataObject
) -> None:
    """In the time after the first part of the stream, for nodes that were seen in the role, at the cut of each time."""
    index = build(stream)
    start = int(index.tie_start[data.draw(st.integers(0, stream.n_events - 1))])
    model = replace(MODEL, role=role, unit=unit, rhythm=rhythm)
    bank = ActivityBank.build(index, model.time_constants, role, rhythm)
    got = period_likelihood(model, bank, start, stream.n_events)
    nodes = torch.arange(stream.n_nodes)
    hazard, times = 0.0, [*sorted({stream.elapsed[max(start - 1, 0)], *stream.elapsed[start:]})]
    for low, high in pairwise(times):
        cut = sum(t <= low for t in stream.elapsed)
        now = bank.lookup(nodes, torch.tensor(cut), torch.tensor(low, dtype=torch.float64))
        wait = torch.tensor(high - low, dtype=torch.float64)
        hazard += float(model.cumulative_hazard(now, wait)[now.count > 0].sum())
    assert got.compensator == pytest.approx(hazard, rel=1e-6, abs=1e-6)
    occasions: dict[tuple[int, float], int] = {}
    for p in range(start, stream.n_events):
        ends = {"source": {stream.src[p]}, "destination": {stream.dst[p]}, "either": {stream.src[p], stream.dst[p]}}
        if stream.history.keep[p]:
            for u in ends[role]:
                occasions[u, stream.elapsed[p]] = occasions.get((u, stream.elapsed[p]), 0) + 1
    total, n = 0.0, 0
    for (u, t), events in occasions.items():
        cut = sum(x < t for x in stream.elapsed)
        now = bank.lookup(torch.tensor(u), torch.tensor(cut), torch.tensor(t, dtype=torch.float64))
        if now.count > 0:
            times_counted = events if unit == "events" else 1
            n += times_counted
            total += times_counted * math.log(model.rate(now))
    assert got.n == pytest.approx(n) and got.log_rates == pytest.approx(total, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("unit", UNITS)
def test_sample_gives_nearly_the_same_fit(simulated: TemporalIndex, unit: Any) -> None:
    n = len(simulated.elapsed)
    whole, part = (fit_rate(simulated, n, unit=unit, max_sample=size) for size in (n, n // 3))
    assert part.n_sampled == pytest.approx(n / 3, rel=0.01) and part.n_events == whole.n_events == n
    bank = ActivityBank.build(simulated, whole.model.time_constants, "source")
    best, got = (period_likelihood(fit.model, bank, 0, n).mean for fit in (whole, part))
    assert best - 0.02 < got <= best + 1e-4


@settings(max_examples=12)
@given(stream=streams(min_events=3, filtered=False), unit=st.sampled_from(UNITS), size=st.sampled_from((2, 1000)))
def test_fit_ignores_events_from_its_end_on(stream: Stream, unit: Any, size: int) -> None:
    """To the bit, also with a sample and with new nodes in the future."""
    stop = max(int(build(stream).tie_start[-1]), 1)
    later = Stream(
        [*stream.src[:stop], *stream.dst[stop:], 9], [*stream.dst[:stop], *stream.src[stop:], 8],
        [*stream.elapsed, stream.elapsed[-1] + 3], 10, None,
    )  # fmt: skip
    expected = fit_rate(build(stream.first(stop)), stop, unit=unit, max_sample=size)
    for other in (stream, later):
        assert fit_rate(build(other), stop, unit=unit, max_sample=size) == expected


def test_fit_of_an_index_without_masked_events() -> None:
    """Masked events are neither counted nor sampled."""
    keep = [p % 3 != 0 for p in range(TEN.n_events)]
    for role in ROLES:
        fit = fit_rate(build(replace(TEN, keep=keep)), TEN.n_events, role=role)
        assert fit.n_events == fit.n_sampled == (2 if role == "either" else 1) * sum(keep)  # no self-loop is kept


STRANGE = {
    "one event": Stream([0], [1], [5], 2, None),
    "one time": Stream([0, 1, 0, 0], [1, 2, 1, 0], [5] * 4, 4, None),
    "two times": Stream([0, 1, 0, 0], [1, 2, 1, 0], [5, 5, 9, 9], 4, None),
    "self-loops": Stream([0, 0, 0], [0, 0, 0], [5, 6, 9], 1, None),
    "all masked": Stream([0, 1, 0], [1, 2, 1], [5, 6, 9], 3, [False] * 3),
    "long times": Stream([0, 1, 0, 0], [1, 2, 1, 0], [0.0, 1e-9, 1e300, 1.5e300], 4, None),
    "short times": Stream([0, 1, 0, 0], [1, 2, 1, 0], [0.0, 1e-300, 2e-300, 5e-300], 4, None),
}


@pytest.mark.parametrize("stream", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("unit", UNITS)
def test_strange_streams_have_finite_answers(stream: Stream, role: Any, unit: Any) -> None:
    index, n = build(stream), stream.n_events
    fit = fit_rate(index, n, role=role, unit=unit)
    model = fit.model
    assert RateModel.from_dict(json.loads(json.dumps(model.to_dict(), allow_nan=False))) == model
    bank = ActivityBank.build(index, model.time_constants, role)
    span = stream.elapsed[-1] or 1.0
    counts = bank.lookup(torch.arange(-1, 6), torch.tensor(n), torch.tensor(span, dtype=torch.float64))
    horizon = torch.tensor(0.1 * span, dtype=torch.float64)
    rate = model.rate(counts)
    assert torch.isfinite(rate).all() and (rate > 0).all()
    for value in (
        model.cumulative_hazard(counts, horizon),
        model.log_density(counts, horizon),
        model.quantile(counts, torch.tensor(0.5, dtype=torch.float64)),
        model.expected_count(counts, horizon),
    ):
        assert torch.isfinite(value).all()
    assert math.isfinite(period_likelihood(model, bank, 0, n).mean)


def test_newcomers_by_hand() -> None:
    """Nodes 0, 3 and 4 are new when they first act, at times 0, 5 and 8: node 3 is a destination at 5 too.

    Nodes 1 and 2 were destinations before. Node 1 waited from 0 to 2, node 2 from 2 to 3.
    """
    model = fit_rate(build(TEN), 8).model
    assert model.arrival_rate == pytest.approx((2 + 0.5) / 4)  # nodes 3 and 4, in the second half
    assert model.newcomer_rate == pytest.approx(model.arrival_rate / 3)
    assert model.known_rate == pytest.approx((2 + 0.5) / (2 + 1 + 8))


def test_time_constants() -> None:
    index = build(TEN)
    taus = choose_time_constants(index, 10, 5)
    assert len(taus) == 5 and taus[0] == pytest.approx(1) and taus[-1] == pytest.approx(40)
    assert choose_time_constants(index, 1) == (1.0,)
    many = TemporalIndex.build(*(np.zeros(3, np.int64) for _ in range(2)), np.array([0.0, 1e-9, 1.0]), 1)
    assert choose_time_constants(many, 3)[0] == pytest.approx(1e-6)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, simulated: TemporalIndex) -> None:
    whole = fit_rate(simulated, len(simulated.elapsed)).model
    monkeypatch.setattr(activity_fit, "_CHUNK", 37)
    part = fit_rate(simulated, len(simulated.elapsed)).model
    assert part.time_constants == whole.time_constants
    assert part.excitation == pytest.approx(whole.excitation, rel=1e-6, abs=1e-9)


def test_bad_arguments_are_refused() -> None:
    for stop in (0, 11):
        with pytest.raises(CordgtError, match="between 1 and 10"):
            fit_bank(ActivityBank.build(build(TEN), (1.0,), "source"), stop)
    with pytest.raises(CordgtError, match="unit"):
        fit_rate(build(TEN), 10, unit="acts")  # type: ignore[arg-type]
    data = MODEL.to_dict()
    del data["base_rate"]
    with pytest.raises(CordgtError, match="base_rate"):
        RateModel.from_dict(data)


def daily_stream(n_days: int, amplitude: float, seed: int) -> TemporalIndex:
    """Events in seconds from Monday 1970-01-05 on, at a rate that is high at noon."""
    draw = np.random.default_rng(seed)
    t = np.sort(draw.uniform(0, n_days * DAY, 40 * n_days))
    t = t[draw.random(len(t)) < (1 - amplitude * np.cos(2 * np.pi * t / DAY)) / (1 + amplitude)]
    t[0] = 0.0
    return TemporalIndex.build(draw.integers(0, 30, len(t)), np.full(len(t), 30), t, 31)


@pytest.mark.parametrize("seed", range(2, 7))
def test_a_day_is_no_week(seed: int) -> None:
    """Weekdays differ by chance. That is no rhythm of the week."""
    index = daily_stream(100, 0.9, seed)
    rhythm = fit_rhythm(index, len(index.elapsed), Calendar(1.0, 4 * DAY))
    assert rhythm is not None and rhythm.period == DAY


def test_daily_rhythm_is_found() -> None:
    index = daily_stream(100, 0.9, seed=1)
    n = len(index.elapsed)
    rhythm = fit_rhythm(index, n, Calendar(1.0, 4 * DAY))
    assert rhythm is not None and rhythm.period == DAY and rhythm.phase == 0
    truth = 1 - 0.9 * np.cos(2 * np.pi * (np.arange(24) + 0.5) / 24)
    assert np.abs(np.array(rhythm.profile) - truth).max() < 0.35
    plain, better = fit_rate(index, n).model, fit_rate(index, n, rhythm=rhythm).model
    mean = [
        period_likelihood(m, ActivityBank.build(index, m.time_constants, "source", m.rhythm), 0, n).mean
        for m in (plain, better)
    ]
    assert mean[1] > mean[0] + 0.1
    assert RateModel.from_dict(json.loads(json.dumps(better.to_dict()))) == better


def test_hours_and_days_are_found_together() -> None:
    """Few events an hour of the week: the hours of a day and the days of a week still show."""
    draw = np.random.default_rng(4)
    t = np.sort(draw.uniform(0, 40 * WEEK, 25_000))
    hour, day = t % DAY / HOUR, t % WEEK // DAY
    share = np.where((hour > 9) & (hour < 18), 1.0, 0.05) * np.choose(day.astype(int), [0.3] * 5 + [1.0, 0.03])
    t = t[draw.random(len(t)) < share]
    t[0] = 0.0
    index = TemporalIndex.build(draw.integers(0, 60, len(t)), np.full(len(t), 60), t, 61)
    rhythm = fit_rhythm(index, len(t), Calendar(1.0, 4 * DAY))
    assert rhythm is not None and rhythm.period == WEEK and len(rhythm.profile) == 168
    profile = np.array(rhythm.profile).reshape(7, 24)
    assert profile[5].mean() > 2 * profile[:5].mean() and profile[6].mean() < 0.3 * profile[:5].mean()
    assert (profile[:6, 10:18].min(axis=1) > 4 * profile[:6, :9].mean(axis=1)).all()


def dated_stream(step: float) -> TemporalIndex:
    """Events of 30 weeks, most of them on the first two days of a week; times are rounded down to a step."""
    draw = np.random.default_rng(3)
    t = np.sort(draw.uniform(0, 30 * WEEK, 30_000))
    t = t[draw.random(len(t)) < np.where(t % WEEK < 2 * DAY, 1.0, 0.2)]
    t = np.floor(t / step) * step
    t[0] = 0.0
    return TemporalIndex.build(draw.integers(0, 300, len(t)), np.full(len(t), 300), t, 301)


@pytest.mark.parametrize(("step", "n_bins"), [(DAY, 7), (6 * HOUR, 28), (1.0, 168)])
def test_bins_are_not_finer_than_the_times(step: float, n_bins: int) -> None:
    """With dates alone, all events of a day are at midnight. That is no rhythm of the day."""
    index = dated_stream(step)
    rhythm = fit_rhythm(index, len(index.elapsed), Calendar(1.0, 4 * DAY))
    assert rhythm is not None and rhythm.period == WEEK and len(rhythm.profile) == n_bins
    days = np.array(rhythm.profile).reshape(7, -1).mean(axis=1)
    assert days[:2].min() > 1.7 and days[2:].max() < 0.8


def test_whole_weeks_have_no_rhythm() -> None:
    index = dated_stream(WEEK)
    assert fit_rhythm(index, len(index.elapsed), Calendar(1.0, 4 * DAY)) is None


def test_rhythm_needs_data_and_a_calendar() -> None:
    steady = daily_stream(100, 0.0, seed=2)
    n = len(steady.elapsed)
    assert fit_rhythm(steady, n, Calendar(1.0, 4 * DAY)) is None
    strong = daily_stream(100, 0.9, seed=1)
    assert fit_rhythm(strong, len(strong.elapsed), None) is None
    assert fit_rhythm(strong, 60, Calendar(1.0, 4 * DAY)) is None  # three days


def test_calendar_of_a_stream() -> None:
    sunday = 1_704_016_800  # 2023-12-31 10:00 UTC
    seconds = EventStream.from_columns([0, 1], [1, 0], [sunday, sunday + 5])
    millis = EventStream.from_columns([0, 1], [1, 0], [sunday * 1000, sunday * 1000 + 5])
    dates = EventStream.from_columns([0, 1], [1, 0], ["2023-12-31T10:00:00Z", "2024-01-01"])
    numbers = EventStream.from_columns([0, 1], [1, 0], [0, 7])
    for stream, hour in ((seconds, 3600.0), (millis, 3.6e6), (dates, 3600.0)):
        calendar = Calendar.of_stream(stream)
        assert calendar is not None
        assert calendar.phase(24 * hour) == pytest.approx(10 * hour)
        assert calendar.phase(168 * hour) == pytest.approx((6 * 24 + 10) * hour)  # weeks begin on Monday
    assert Calendar.of_stream(numbers) is None


def test_profile_counts_the_time_in_each_bin() -> None:
    """One event in each unit of time: no bin is more active, although the last period is not complete."""
    rhythm = estimate_profile(np.arange(0, 995) + 0.5, 995.0, 10.0, 3.0, 5)
    assert rhythm.profile == pytest.approx([1.0] * 5, abs=0.02) and rhythm.phase == 3.0
