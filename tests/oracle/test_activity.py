"""Decayed counts of a node's own events, and the operational time of a rhythm, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import CordgtError
from cordgt.history.activity import ROLES, ActivityBank
from cordgt.history.index import TemporalIndex
from cordgt.history.rhythm import Rhythm

from . import slow
from . import strategies as some
from .helpers import TEN, build, shape_of
from .strategies import Stream, streams

TAUS = (0.3, 2.0, 50.0, 1e9)
RHYTHM = Rhythm(5.0, 1.25, (0.5, 2.0, 0.25, 1.25))
TOLERANCE = {"rel": 1e-11, "abs": 1e-300}  # as the module promises


def bank_of(place: Any, stream: Stream, role: Any, rhythm: Rhythm | None = None) -> ActivityBank:
    index = build(stream)
    return ActivityBank.build(index, TAUS, role, rhythm).with_index(place.index(index))


def check(place: Any, stream: Stream, role: Any, rhythm: Rhythm | None, queries: list[tuple[int, int, float]]) -> None:
    bank = bank_of(place, stream, role, rhythm)
    node, cut = place.ints([u for u, _, _ in queries]), place.ints([c for _, c, _ in queries])
    got = bank.lookup(node, cut, place.floats([t for _, _, t in queries]))
    clock = () if rhythm is None else (rhythm.period, rhythm.phase, rhythm.profile)
    expected = [slow.decayed_counts(stream.history, u, c, t, TAUS, role, *clock) for u, c, t in queries]
    size = (len(queries),)
    sums = shape_of(got.sums, torch.float64, (*size, len(TAUS)), place.device)
    for row, known in zip(sums, expected, strict=True):
        assert row == pytest.approx(known[0], **TOLERANCE if rhythm is None else {"rel": 1e-8})
    found = (
        shape_of(got.count, torch.int64, size, place.device),
        shape_of(got.degree, torch.int64, size, place.device),
        shape_of(got.first, torch.float64, size, place.device),
        shape_of(got.last, torch.float64, size, place.device),
    )
    assert found == tuple([known[k] for known in expected] for k in range(1, 5))


@settings(max_examples=80)
@given(stream=streams(), role=st.sampled_from(ROLES), with_rhythm=st.booleans(), data=st.data())
def test_decayed_counts(place: Any, stream: Stream, role: str, with_rhythm: bool, data: st.DataObject) -> None:
    times = st.sampled_from([0.0, *stream.elapsed, stream.elapsed[-1] + 3.5])
    query = st.tuples(some.nodes(stream), some.cuts(stream), times)
    check(place, stream, role, RHYTHM if with_rhythm else None, data.draw(st.lists(query, min_size=1, max_size=5)))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("rhythm", [None, RHYTHM])
def test_decayed_counts_of_long_rows(place: Any, role: str, rhythm: Rhythm | None) -> None:
    """Rows of more than 32 entries have stored sums; cuts fall before, on and after them."""
    draw = np.random.default_rng(7)
    n = 400
    src, dst = draw.integers(0, 4, n), draw.integers(2, 6, n)
    t = np.sort(draw.integers(0, 150, n))
    stream = Stream(src.tolist(), dst.tolist(), (t - t[0]).tolist(), 7, (draw.random(n) < 0.9).tolist())
    cuts = [0, 1, 30, 64, 65, 128, 129, 200, 255, 256, 257, 399, 400]
    check(place, stream, role, rhythm, [(u, c, float(t[c - 1] - t[0]) + 1.5) for u in range(-1, 8) for c in cuts])


def test_decayed_counts_by_hand(place: Any) -> None:
    """Node 2 is the source of events 3 (a self-loop, time 3) and 8 (time 10), and the destination of 1 (2) and 3."""
    node, cut, t = place.ints(2), place.ints([3, 4, 10]), place.floats([3.0, 4.0, 20.0])
    for role, times in (("source", [[], [3], [3, 10]]), ("destination", [[2], [2, 3], [2, 3]])):
        got = bank_of(place, TEN, role).lookup(node, cut, t)
        expected = [
            [sum(np.exp(-(q - x) / tau) for x in seen) for tau in TAUS]
            for q, seen in zip((3, 4, 20), times, strict=True)
        ]
        assert np.allclose(got.sums.cpu(), expected, rtol=1e-12)
        assert got.count.tolist() == [len(seen) for seen in times]
        assert got.first.tolist() == [seen[0] if seen else 0 for seen in times]
        assert got.last.tolist() == [seen[-1] if seen else 0 for seen in times]
    assert bank_of(place, TEN, "either").lookup(node, cut, t).count.tolist() == [1, 2, 3]


@settings(max_examples=40)
@given(stream=streams(min_events=2), role=st.sampled_from(ROLES), repeats=st.sampled_from((1, 20)), data=st.data())
def test_events_from_the_cut_on_change_nothing(
    place: Any, stream: Stream, role: str, repeats: int, data: st.DataObject
) -> None:
    """To the bit: with the whole stream, with other events after the cut, and with none. Long rows have stored sums."""
    src, dst, times = (
        [x for x in column for _ in range(repeats)] for column in (stream.src, stream.dst, stream.elapsed)
    )
    long = Stream(src, dst, times, stream.n_nodes, None)
    cut = data.draw(some.cuts(long))
    other = Stream(src[:cut] + dst[cut:], dst[:cut] + [0] * (len(dst) - cut), times, stream.n_nodes, None)
    node, t = place.ints(range(-1, stream.n_nodes)), place.floats(times[max(cut - 1, 0)] + 0.5)
    got = [vars(bank_of(place, s, role).lookup(node, place.ints(cut), t)) for s in (long, other, long.first(cut))]
    for name, value in got[0].items():
        assert torch.equal(value, got[1][name]) and torch.equal(value, got[2][name]), name


def test_shapes_broadcast_and_an_empty_stream_works(place: Any) -> None:
    empty = TemporalIndex.build(*(torch.empty(0).numpy() for _ in range(3)), n_nodes=2)
    bank = ActivityBank.build(empty, TAUS, "source").with_index(place.index(empty))
    got = bank.lookup(place.ints([[0, 1, -1]]), place.ints(0), place.floats([[1.0], [2.0]]))
    assert got.sums.shape == (2, 3, len(TAUS)) and got.count.shape == got.first.shape == got.t.shape == (2, 3)
    assert all((value == 0).all() for name, value in vars(got).items() if name != "t")


def test_stored_sums_are_small() -> None:
    """One row of K sums for 32 row entries, and none for a node without events in the role."""
    n = 1000
    index = TemporalIndex.build(np.zeros(n, np.int64), np.ones(n, np.int64), np.arange(n, dtype=np.float64), 2)
    bank = ActivityBank.build(index, TAUS, "source")
    assert bank.start.tolist() == [0, n // 32, n // 32] and bank.stored.shape == (n // 32, len(TAUS))


def test_bad_arguments_are_refused() -> None:
    for taus, role in (((), "source"), ((0.0,), "source"), ((float("inf"),), "source"), (TAUS, "sender")):
        with pytest.raises(CordgtError):
            ActivityBank.build(build(TEN), taus, role)
    for period, phase, profile in ((0.0, 0.0, (1.0,)), (5.0, 5.0, (1.0,)), (5.0, 0.0, ()), (5.0, 0.0, (1.0, 2.0))):
        with pytest.raises(CordgtError):
            Rhythm(period, phase, profile)


@given(t=st.lists(st.floats(0, 1e4), min_size=1, max_size=9))
def test_operational_time(t: list[float]) -> None:
    times = torch.tensor(t, dtype=torch.float64)
    got = RHYTHM.rescale(times)
    expected = [slow.operational_time(x, RHYTHM.period, RHYTHM.phase, RHYTHM.profile) for x in t]
    assert got.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert RHYTHM.invert(got).tolist() == pytest.approx(t, rel=1e-9, abs=1e-9)
    assert RHYTHM.rescale(torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-12)
    assert Rhythm.from_dict(RHYTHM.to_dict()) == RHYTHM
    h = 1e-6  # the slope is the relative rate, away from the bounds of bins
    inside = torch.tensor([0.1, 1.5, 3.0, 4.3], dtype=torch.float64)
    slope = (RHYTHM.rescale(inside + h) - RHYTHM.rescale(inside)) / h
    assert slope.tolist() == pytest.approx(RHYTHM.relative_rate(inside).tolist(), rel=1e-6)
