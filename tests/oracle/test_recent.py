"""A node's latest events, their means and co-occurrences, against their definitions, on every device."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.history.cooccurrence import count_occurrences
from cordgt.history.index import TemporalIndex
from cordgt.history.recent import recent_events, recent_neighbor_mean

from . import slow
from . import strategies as some
from .helpers import TEN, build, shape_of
from .strategies import Stream, streams


@settings(max_examples=60)
@given(stream=streams(), n=st.integers(1, 6), oldest_first=st.booleans(), data=st.data())
def test_recent(place: Any, stream: Stream, n: int, oldest_first: bool, data: st.DataObject) -> None:
    queries = data.draw(st.lists(st.tuples(some.nodes(stream), some.cuts(stream)), min_size=1, max_size=5))
    t = stream.elapsed[-1] + 3.5
    node, cut = place.ints([u for u, _ in queries]), place.ints([c for _, c in queries])
    got = recent_events(place.index(build(stream)), node, place.floats(t), cut, n, oldest_first=oldest_first)
    size = (len(queries), n)
    found = (
        shape_of(got.node, torch.int64, size, place.device),
        shape_of(got.pos, torch.int64, size, place.device),
        shape_of(got.elapsed, torch.float64, size, place.device),
    )
    expected = [slow.recent(stream.history, u, t, c, n, oldest_first) for u, c in queries]
    assert found == tuple([row[k] for row in expected] for k in range(3))
    assert got.valid.tolist() == [[p >= 0 for p in row[1]] for row in expected]


def test_recent_by_hand(place: Any) -> None:
    """Before time 30 node 1 interacted with 0 (event 6), 3 (event 5), 0 (event 2), 2 (event 1) and 0 (event 0)."""
    index = place.index(build(TEN))
    got = recent_events(index, place.ints([1, 5]), place.floats(20.0), place.ints(9), 3)
    assert got.node.tolist() == [[0, 3, 0], [-1, -1, -1]]
    assert got.pos.tolist() == [[6, 5, 2], [-1, -1, -1]]
    assert got.elapsed.tolist() == [[15.0, 15.0, 18.0], [0.0, 0.0, 0.0]]
    turned = recent_events(index, place.ints([1]), place.floats(20.0), place.ints(2), 3, oldest_first=True)
    assert turned.node.tolist() == [[0, 2, -1]] and turned.pos.tolist() == [[0, 1, -1]]


def test_shapes_broadcast_and_an_empty_stream_works(place: Any) -> None:
    empty = place.index(TemporalIndex.build(*(torch.empty(0).numpy() for _ in range(3)), n_nodes=2))
    got = recent_events(empty, place.ints([[0, 1, -1]]), place.floats([[1.0], [2.0]]), place.ints(0), 4)
    assert got.node.shape == got.pos.shape == got.elapsed.shape == (2, 3, 4)
    assert not got.valid.any() and (got.node == -1).all() and (got.elapsed == 0).all()


@settings(max_examples=30)
@given(stream=streams(), n=st.sampled_from((1, 3, 250)), data=st.data())
def test_mean_over_recent_neighbors(place: Any, stream: Stream, n: int, data: st.DataObject) -> None:
    queries = data.draw(st.lists(st.tuples(some.nodes(stream), some.cuts(stream)), min_size=1, max_size=5))
    table = [[0.1 * w, 7.0 - w] for w in range(stream.n_nodes)]
    rows = torch.tensor(table, device=place.device)
    node, cut = place.ints([u for u, _ in queries]), place.ints([c for _, c in queries])
    got = recent_neighbor_mean(place.index(build(stream)), rows, node, cut, n)
    expected = [slow.recent_neighbor_mean(stream.history, rows.double().tolist(), u, c, n) for u, c in queries]
    assert got.dtype == torch.float32 and got.tolist() == torch.tensor(expected).tolist()


@given(node=st.lists(st.integers(-1, 4), min_size=1, max_size=6), others=st.lists(st.integers(-1, 4), max_size=6))
def test_count_occurrences(place: Any, node: list[int], others: list[int]) -> None:
    got = count_occurrences(
        place.ints([[node], [node[::-1]]]), place.ints([others, others]), use_numba=place.name == "cpu"
    )
    rows = [slow.count_occurrences(nodes, others) for nodes in (node, node[::-1])]
    assert shape_of(got, torch.int64, (2, 2, len(node)), place.device) == [[row, row] for row in rows]
