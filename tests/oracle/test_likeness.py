"""Likeness columns against their definition in plain loops, on every device; the future changes nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.likeness import LIKENESS_DIM, N_PARTNERS, likeness_columns
from cordgt.history.queries import History, Queries

from . import slow
from . import strategies as some
from .helpers import TEN, build
from .strategies import Stream, streams


def cosine(a: list[float], b: list[float]) -> float:
    size = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / size if size else 0.0


def unit(a: list[float]) -> list[float]:
    return [x / (math.hypot(*a) or 1.0) for x in a]


def slow_columns(history: slow.History, rows: list[list[float]], u: int, v: int, cut: int) -> list[float]:
    """The columns of a pair, by their definition."""

    def row(node: int) -> list[float]:
        return rows[node] if 0 <= node < len(rows) else [0.0] * len(rows[0])

    latest = [row(history.partner(u, p)) for p in reversed(history.events_of(u, cut)[-N_PARTNERS:])]
    has_features = float(any(row(v)))
    if not latest:
        return [has_features, 0.0, 0.0, 0.0, 0.0]
    alike = [cosine(row(v), x) for x in latest]
    mean = [sum(column) for column in zip(*map(unit, latest), strict=True)]
    weights = [1 / (k + 1) for k in range(N_PARTNERS)]
    fading = sum(w * x for w, x in zip(weights, alike, strict=False)) / sum(weights)
    return [has_features, cosine(row(v), mean), max(alike), alike[0], fading]


def make_history(place: Any, stream: Stream, rows: list[list[float]] | None) -> History:
    node_x = None if rows is None else place.floats(rows).float()
    return History(place.index(build(stream)), None, node_x, seed=0)


def make_queries(place: Any, src: list[int], dst: list[list[int]], t: float, cut: int) -> Queries:
    cuts = place.ints([cut] * len(src))
    return Queries(place.ints(src), place.ints(dst), place.floats([t] * len(src)), cuts, cuts)


VALUES = st.sampled_from((0.0, 1.0, -2.0, 0.5, 3.0))


@settings(max_examples=40)
@given(stream=streams(), data=st.data())
def test_random_streams(place: Any, stream: Stream, data: st.DataObject) -> None:
    """Ties, repeats, isolated and new nodes, self-loops, nodes without features."""
    roots = data.draw(st.lists(some.nodes(stream), min_size=6, max_size=6))
    cut = data.draw(some.cuts(stream))
    rows = data.draw(
        st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=stream.n_nodes, max_size=stream.n_nodes)
    )
    src, dst = roots[:2], [roots[2:4], roots[4:]]
    queries = make_queries(place, src, dst, stream.elapsed[-1], cut)
    got = likeness_columns(make_history(place, stream, rows), queries)
    known = [[slow_columns(stream.history, rows, u, v, cut) for v in row] for u, row in zip(src, dst, strict=True)]
    torch.testing.assert_close(got.cpu(), torch.tensor(known), rtol=1e-5, atol=2e-6)


def test_without_node_features(place: Any) -> None:
    got = likeness_columns(make_history(place, TEN, None), make_queries(place, [0, 1], [[1, 2], [3, 0]], 30.0, 10))
    assert got.shape == (2, 2, LIKENESS_DIM) and not got.any()


def test_the_future_changes_nothing(place: Any) -> None:
    rows = [[float(k % 3), 1.0, -float(k)] for k in range(6)]
    queries = make_queries(place, [0, 2], [[1, 2, 5], [0, 1, 4]], 9.0, 4)
    whole, before = (likeness_columns(make_history(place, s, rows), queries) for s in (TEN, TEN.first(4)))
    assert torch.equal(whole, before)
