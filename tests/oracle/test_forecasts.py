"""Outcomes of questions, drift, and probabilities between calibrated horizons, against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.activity import ROLES, ActivityBank
from cordgt.history.rhythm import Rhythm
from cordgt.tasks.calibration import Calibrator, probability
from cordgt.tasks.drift import PSEUDO_COUNT, Drift
from cordgt.tasks.forecast import ACT_ROLES, Forecaster, _interpolate
from cordgt.tasks.questions import Questions, acts_within, meets_within
from cordgt.tasks.time_grid import TimeGrid

from . import slow
from . import strategies as some
from .helpers import build
from .strategies import Stream, streams
from .test_activity_rates import MODEL as EVENT_MODEL

MODEL = replace(EVENT_MODEL, unit="occasions")
HORIZONS = (0.5, 3.0, 20.0)
roles = st.sampled_from(ROLES)


def bank_of(stream: Stream, role: Any) -> ActivityBank:
    return ActivityBank.build(build(stream), MODEL.time_constants, role)


def hazard(bank: ActivityBank, node: int, cut: int, t: float, length: float) -> float:
    """The expected number of occasions of one node; `test_activity_rates` checks it."""
    time, horizon = (torch.tensor(x, dtype=torch.float64) for x in (t, length))
    counts = bank.lookup(torch.tensor(node), torch.tensor(cut), time)
    return float(replace(MODEL, role=bank.role).cumulative_hazard(counts, horizon))


# -------------------- outcomes of questions


@settings(max_examples=100)
@given(stream=streams(), role=roles, data=st.data())
def test_outcomes(stream: Stream, role: str, data: st.DataObject) -> None:
    """Ties with the horizon's end count. Isolated nodes never act. A self-loop is a meeting with itself."""
    gaps = sorted({b - a for a in stream.elapsed for b in stream.elapsed if b >= a})
    horizon = data.draw(st.sampled_from([*gaps, 0.5, 1e12]))
    node = st.integers(0, stream.n_nodes - 1)
    asked = data.draw(st.lists(st.tuples(node, node, st.sampled_from(stream.elapsed)), min_size=1, max_size=6))
    rows = [(u, t, sum(x <= t for x in stream.elapsed), v) for u, v, t in asked]
    questions = Questions(*(np.array(column) for column in zip(*rows, strict=True)))
    bank, history = bank_of(stream, role), stream.history
    acts = [slow.has_event_within(history, u, cut, t + horizon, role) for u, t, cut, _ in rows]
    meets = [slow.has_event_within(history, u, cut, t + horizon, role, v) for u, t, cut, v in rows]
    assert acts_within(bank, questions, horizon).tolist() == acts
    assert meets_within(bank, questions, horizon).tolist() == meets


# -------------------- drift


def log_ratios(drift: Drift, stream: Stream, role: Any, queries: list[tuple[int, float]]) -> list[float]:
    cut, t = np.array([c for c, _ in queries]), np.array([x for _, x in queries])
    ratios: list[float] = drift.log_ratio(replace(MODEL, role=role), bank_of(stream, role), cut, t, {}).tolist()
    return ratios


@st.composite
def drifts(draw: st.DrawFn, stream: Stream) -> Drift:
    """Windows and spacings of about the stream's gaps: some multiples of the spacing are event times, or nearly."""
    unit = max(stream.elapsed[-1], 1.0)
    gap = min((b - a for a, b in pairwise(stream.elapsed) if b > a), default=1.0)
    shares = draw(st.lists(st.sampled_from((0.01, 0.1, 0.25, 1.0, 3.0)), min_size=1, max_size=3))
    spacing = draw(st.sampled_from((gap, gap, 2 * gap, unit / 200, unit / 7, unit)))
    return Drift(tuple(unit * share for share in shares), spacing, draw(st.sampled_from((1, 7, 200))))


@settings(max_examples=60)
@given(stream=streams(), role=roles, data=st.data())
def test_drift(stream: Stream, role: str, data: st.DataObject) -> None:
    drift, bank = data.draw(drifts(stream)), bank_of(stream, role)
    times = st.sampled_from([*stream.elapsed, stream.elapsed[-1] + 3.5])
    queries = data.draw(st.lists(st.tuples(some.cuts(stream), times), min_size=1, max_size=4))

    def expected_count(node: int, cut: int, t: float, length: float) -> float:
        return hazard(bank, node, cut, t, length)

    def shares(number: int) -> list[float]:
        values: list[float] = np.random.default_rng(number).random(drift.n_nodes).tolist()
        return values

    setup = drift.windows, drift.spacing, shares, expected_count, PSEUDO_COUNT
    expected = [slow.drift(stream.history, role, cut, t, *setup) for cut, t in queries]
    assert log_ratios(drift, stream, role, queries) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    at_one_time = [log_ratios(drift, stream, role, [query] * 2) for query in queries]
    assert at_one_time == [pytest.approx([ratio] * 2, rel=1e-9, abs=1e-9) for ratio in expected]


@settings(max_examples=60)
@given(stream=streams(min_events=2), role=roles, data=st.data())
def test_drift_does_not_depend_on_events_from_the_cut_on(stream: Stream, role: str, data: st.DataObject) -> None:
    """To the bit, also at a cut between tied events."""
    drift, cut = data.draw(drifts(stream)), data.draw(st.integers(1, stream.n_events))
    query = [(cut, stream.elapsed[cut - 1])]
    assert log_ratios(drift, stream, role, query) == log_ratios(drift, stream.first(cut), role, query)


def test_drift_window_ends_not_after_the_last_visible_event() -> None:
    """``0.171 / spacing`` rounds up to 9, but 9 spacings are after 0.171: the event at the cut must not count."""
    spacing, t = 0.019000000000000003, 0.171
    assert math.floor(t / spacing) == 9 and 9 * spacing > t
    drift = Drift((0.05,), spacing)
    stream = Stream([0, 1, 0], [2, 2, 2], [0.0, t, t], 3, None)
    assert log_ratios(drift, stream, "source", [(2, t)]) == log_ratios(drift, stream.first(2), "source", [(2, t)])


# -------------------- between calibrated horizons

values = st.integers(-8, 8).map(lambda k: k / 4)


@settings(max_examples=100)
@given(data=st.data(), n=st.integers(1, 3), size=st.integers(1, 5), width=st.integers(1, 4), is_pair=st.booleans())
def test_interpolation(data: st.DataObject, n: int, size: int, width: int, is_pair: bool) -> None:
    """Several places on one line, or one place on several lines. Points of a line can be equal."""

    def rows(length: int) -> list[list[float]]:
        return data.draw(st.lists(st.lists(values, min_size=length, max_size=length), min_size=n, max_size=n))

    points = [sorted(row) for row in rows(size)]
    lines = [[sorted(row) for row in rows(size)] for _ in range(width if is_pair else 1)]  # by line, then by row
    x = rows(1 if is_pair else width)
    got = _interpolate(np.array(x), np.array(points), np.array(lines).swapaxes(0, 1))
    assert got.shape == (n, width)
    for i in range(n):
        places = x[i] * width if is_pair else x[i]
        expected = [slow.interpolate(places[k], points[i], lines[k if is_pair else 0][i]) for k in range(width)]
        assert got[i].tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60)
@given(stream=streams(), data=st.data())
def test_probabilities_between_calibrated_horizons(stream: Stream, data: st.DataObject) -> None:
    """A pair meets at most as likely as its source acts. A node without events in the role is not calibrated."""
    slopes = (st.sampled_from(x) for x in ((0.25, 1.0, 1.5), (0.0, 0.5), (0.5, 1.0)))
    line = st.none() | st.tuples(values, *slopes)
    lines = {
        kind: data.draw(st.lists(line, min_size=len(HORIZONS), max_size=len(HORIZONS))) for kind in (*ACT_ROLES, "pair")
    }
    calibrators = {
        kind: tuple(k and Calibrator(k[0], k[1:4] if kind == "pair" else k[1:3]) for k in lines[kind]) for kind in lines
    }
    rates = {role: replace(MODEL, role=role) for role in ACT_ROLES}
    forecaster = Forecaster(rates, Drift(), TimeGrid(), HORIZONS, calibrators, (0,), 1)
    index, node, cut = build(stream), data.draw(some.nodes(stream)), data.draw(some.cuts(stream))
    t = stream.elapsed[max(cut - 1, 0)] + data.draw(st.sampled_from((0.0, 0.5, 7.0)))
    horizon = data.draw(st.sampled_from((0.01, 0.5, 1.0, 3.0, 8.0, 20.0, 500.0)))
    log_partner = data.draw(st.lists(values, min_size=1, max_size=3))

    def eta(kind: str, role: str, partner: float = 0.0) -> float:
        def x(h: float) -> float:
            return math.log(hazard(forecaster.bank(index, role), node, cut, t, h))

        own = [p for p in range(cut) if slow.is_in_role(stream.history, node, p, role)]
        fits = {h: fit for h, fit in zip(HORIZONS, lines[kind], strict=True) if fit}
        if not fits:
            return x(horizon) + partner
        if not own:
            fits = dict.fromkeys(fits, (0.0, 1.0, 0.0, 1.0))
        recency = {h: -math.log(1 + (t - stream.elapsed[own[-1]]) / h) if own else 0.0 for h in fits}
        ends = [a + b * x(h) + c * recency[h] + d * partner for h, (a, b, c, d) in fits.items()]
        return slow.interpolate(x(horizon), [x(h) for h in fits], slow.running_maximum(ends))

    for role in ACT_ROLES:
        got = forecaster.act_probability(index, [node], cut, t, horizon, role).tolist()
        assert got == pytest.approx([1 - math.exp(-math.exp(eta(role, role)))], rel=1e-9)
    acts = eta("source", "source")
    expected = [1 - math.exp(-math.exp(min(eta("pair", "source", partner), acts))) for partner in log_partner]
    got = forecaster.pair_probability(index, np.array([log_partner]), [node], cut, t, horizon)[0].tolist()
    assert got == pytest.approx(expected, rel=1e-9)


# -------------------- compiled loops against plain methods


@settings(max_examples=30)
@given(stream=streams(), data=st.data(), step=st.sampled_from((0.0, 0.0, 1.0)))
def test_compiled_probabilities_equal_plain_ones(stream: Stream, data: st.DataObject, step: float) -> None:
    """With steps of an isotonic calibrator, a rhythm, a time grid, drift, and nodes without events.

    Time constants without an effect are left out of the loops.
    """
    rhythm = data.draw(st.sampled_from((None, Rhythm(4.0, 1.0, (0.5, 1.5)))))
    fits = st.none() | st.just(Calibrator(0.2, (0.7, 0.3))) | st.just(STEPS)
    lines: dict[str, Any] = {role: tuple(data.draw(fits) for _ in HORIZONS) for role in ACT_ROLES}
    weights = data.draw(
        st.sampled_from((((0.3, 0.2, 0.4), (0.0, 0.1, 0.6)), ((0, 0, 0.4), (0, 0, 0)), (3 * (0,),) * 2))
    )
    model = replace(MODEL, rhythm=rhythm, excitation=weights[0], renewal=weights[1])
    rates = {role: replace(model, role=role) for role in ACT_ROLES}
    drift = Drift((2.0, 5.0), 1.0, 7)
    forecaster = Forecaster(rates, drift, TimeGrid(step, 0.01 * (step > 0)), HORIZONS, lines, (0,), 1)
    n, index = stream.n_nodes, build(stream)
    node = np.array([*range(n), -1, n + 3])
    cut = np.array([data.draw(some.cuts(stream)) for _ in node])
    t = np.array([stream.elapsed[max(c - 1, 0)] for c in cut]) + data.draw(st.sampled_from((0.0, 0.5, 7.0)))
    one = data.draw(st.sampled_from((0.01, 1.0, 8.0, 500.0)))
    for horizon in (one, one, np.full((1, 1), one), np.linspace(one, 2 * one, len(node))[:, None]):
        for role in ACT_ROLES:
            got = forecaster.act_probability(index, node, cut, t, horizon, role)
            plain = forecaster._curve(forecaster._outlook(index, node, cut, t, role), role)(
                np.reshape(horizon, (-1, 1))
            )
            assert got.tolist() == pytest.approx(probability(plain)[:, 0].tolist(), rel=1e-9, abs=1e-12)


STEPS = Calibrator(0.1, (0.9, 0.1), ((-3.0, -1.0, -0.5, 2.0), (-4.0, -1.0, -1.0, 1.0)))
